"""Make a sandbox of each kind, in which things can go wrong."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.containers import DEST, Inside
from tests.faults.cells import Kind
from tests.faults.check import Sandbox
from tests.faults.disk import SIZE, Disk, small_disk
from tests.faults.local import Local
from tests.faults.memory import Memory
from tests.faults.shells import Docker, Packed, Ssh, World
from tests.services import Engine, SshServer


@contextmanager
def host_sandbox(kind: Kind, folder: Path) -> Iterator[Sandbox]:
    """Make one that needs no service."""
    if kind == "memory":
        yield Memory()
        return
    with small_disk(folder / "disk") as disk:
        root = folder / "disk" / "root"
        if kind == "local":
            yield Local(root, disk)
        else:
            world = folder / "world"
            world.mkdir()
            yield Packed(root, World(world, str(world)), disk)


@contextmanager
def ssh_sandbox(server: SshServer, folder: Path) -> Iterator[Sandbox]:
    with small_disk(folder / "disk") as disk:
        root = folder / "disk" / "root"
        yield Ssh(root, World(server.world, str(server.world)), disk, server)


@contextmanager
def docker_sandbox(engine: Engine, folder: Path) -> Iterator[Sandbox]:
    first = ("/usr/bin/sleep", "1000000")
    above = posixpath.dirname(DEST)
    options = ("--env", "PATH=/world", "--tmpfs", f"{above}:size={SIZE}")
    with engine.container("debian", *options, command=first) as name:
        inside = Inside.of(engine, name)
        world = inside.root / "world"
        world.mkdir()
        root = inside.root / DEST.removeprefix("/")
        programs = World(world, "/world", home="/usr/bin/")
        disk = Disk(inside.root / above.removeprefix("/"))
        yield Docker(root, programs, disk, engine, name, folder, inside)
