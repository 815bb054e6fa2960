"""Make a sandbox of each kind, in which things can go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.containers import DEST, Inside
from tests.faults.cells import Kind
from tests.faults.check import Sandbox
from tests.faults.local import Local
from tests.faults.memory import Memory
from tests.faults.shells import Docker, Packed, Ssh, World
from tests.services import Engine, SshServer


def host_sandbox(kind: Kind, folder: Path) -> Sandbox:
    """Make one that needs no service."""
    if kind == "memory":
        return Memory()
    root = folder / "root"
    if kind == "local":
        return Local(root)
    world = folder / "world"
    world.mkdir()
    return Packed(root, World(world, str(world)))


def ssh_sandbox(server: SshServer, folder: Path) -> Sandbox:
    return Ssh(folder / "root", World(server.world, str(server.world)), server)


@contextmanager
def docker_sandbox(engine: Engine, folder: Path) -> Iterator[Sandbox]:
    first = ("/usr/bin/sleep", "1000000")
    with engine.container("debian", "--env", "PATH=/world", command=first) as name:
        inside = Inside.of(engine, name)
        world = inside.root / "world"
        world.mkdir()
        root = inside.root / DEST.removeprefix("/")
        programs = World(world, "/world", home="/usr/bin/")
        yield Docker(root, programs, engine, name, folder, inside)
