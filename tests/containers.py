"""Installing into containers, and what is there then: read by Docker's own program."""

from __future__ import annotations

import io
import os
import posixpath
import random
import signal
import tarfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import attrs
import trio

from tests.services import Engine
from tests.services.cutting import Wire, unix_wire
from tests.trees import Tree
from trio_skills import Plan, Report, install
from trio_skills.runtimes.docker import DockerRuntime, open_docker

DEST = "/root/.agents/skills"

LITTER = ".trio-skills"
"""What the name begins with of everything that an install makes for itself there."""


async def put(
    plan: Plan,
    docker: Engine,
    container: str,
    dest: str = DEST,
    *,
    user: str | None = None,
    **options: Any,  # Any: of install
) -> Report:
    """Install into a container, by a connection of its own."""
    async with open_docker(container, dest, host=docker.host, user=user) as runtime:
        return await install(plan, runtime, **options)


def write_files(docker: Engine, container: str, files: Mapping[str, bytes]) -> None:
    """Write files into a container that has a shell; paths are absolute."""
    for path, data in files.items():
        script = 'mkdir -p "${1%/*}" && cat > "$1"'
        command = ["exec", "-i", container, "sh", "-c", script, "sh", path]
        docker.docker(*command, input=data)


@asynccontextmanager
async def wired(
    docker: Engine, container: str, path: Path, dest: str = DEST
) -> AsyncIterator[tuple[DockerRuntime, Wire]]:
    """Open a container by way of a wire."""
    async with (
        unix_wire(path / "wire.sock", docker.socket) as wire,
        open_docker(container, dest, host=f"unix://{path}/wire.sock") as runtime,
    ):
        yield runtime, wire


def noise(size: int) -> bytes:
    """Return bytes that are the same each time, and like nothing else."""
    return random.Random(size).randbytes(size)


def read_container(engine: Engine, name: str, folder: str) -> Tree:
    """Return every file below a folder of a container, as `read_tree` does; empty: no such folder.

    Read by the container's own `tar`, which sees what is mounted; by `docker cp` where it has none.
    """
    tree: Tree = {}
    with _archive(engine, name, folder) as archive:
        members = archive.getmembers()
        above = {posixpath.dirname(member.name) for member in members}
        for member in members:
            path = posixpath.relpath(member.name)
            if member.isreg():
                file = archive.extractfile(member)
                assert file is not None
                tree[path] = (file.read(), bool(member.mode & 0o100))
            elif member.issym():
                tree[path] = (b"a link to " + os.fsencode(member.linkname), False)
            elif member.isdir() and path != "." and member.name not in above:
                tree[path] = (b"an empty folder", False)
    return tree


def read_owners(engine: Engine, name: str, folder: str) -> set[tuple[int, int]]:
    """Return the user and group ids to which everything below a folder of a container belongs."""
    with _archive(engine, name, folder) as archive:
        return {(m.uid, m.gid) for m in archive.getmembers() if posixpath.relpath(m.name) != "."}


def processes(engine: Engine, name: str) -> list[str]:
    """Return the commands that run in a container beside its first process, which is `sleep`.

    Those that have ended and for which that process does not wait are not among them.
    """
    rows = engine.docker("top", name, "-eo", "pid,stat,args").stdout.decode().splitlines()[1:]
    found = [row.split(maxsplit=2) for row in rows]
    return [args for _, state, args in found if "Z" not in state and args != "sleep 1000000"]


def litter(engine: Engine, name: str) -> list[str]:
    """Return the paths, anywhere in a container, of what installs made for themselves."""
    pruned = ["(", "-path", "/proc", "-o", "-path", "/sys", ")", "-prune"]
    found = engine.run(name, "find", "/", *pruned, "-o", "-name", f"{LITTER}*", "-print")
    return found.decode().splitlines()


@attrs.frozen
class Inside:
    """The processes that were started in a container later, as this machine's root sees them."""

    container: str
    """The container's whole id."""
    first: int
    """The id, on this machine, of its first process."""

    @classmethod
    def of(cls, engine: Engine, name: str) -> Self:
        inspected = engine.docker("inspect", "--format", "{{.Id}} {{.State.Pid}}", name)
        container, first = inspected.stdout.decode().split()
        return cls(container, int(first))

    @property
    def root(self) -> Path:
        """The container's root, with what is mounted there."""
        return Path(f"/proc/{self.first}/root")

    def kill(self) -> int:
        """Kill them all, as fast as possible. Returns how many there were."""
        killed = 0
        for pid in self._ids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        return killed

    def are_there(self) -> bool:
        return any(True for _ in self._ids())

    def _ids(self) -> Iterator[int]:
        for folder in Path("/proc").glob("[1-9]*"):
            with suppress(OSError):  # it has ended
                inside = self.container in (folder / "cgroup").read_text()
                if inside and int(folder.name) != self.first and self._lives(folder):
                    yield int(folder.name)

    @staticmethod
    def _lives(folder: Path) -> bool:
        return "Z" not in (folder / "stat").read_text().rpartition(")")[2].split()[0]


async def gone(engine: Engine, name: str) -> None:
    """Wait until nothing that was started in a container is left: it has seen its client go."""
    with trio.fail_after(10):
        while processes(engine, name):
            await trio.sleep(0.01)


async def running(engine: Engine, name: str, command: str) -> None:
    """Wait until a command runs in a container."""
    with trio.fail_after(10):
        while command not in processes(engine, name):
            await trio.sleep(0.01)


def _archive(engine: Engine, name: str, folder: str) -> tarfile.TarFile:
    read = engine.docker("exec", "--user", "0", name, "tar", "-C", folder, "-c", ".", check=False)
    if read.returncode in (126, 127):  # no such program
        read = engine.docker("cp", f"{name}:{folder}/.", "-", check=False)
    if read.returncode != 0:
        missing = (b"No such file", b"can't change directory", b"Could not find", b"no such dir")
        assert any(text in read.stderr for text in missing), read.stderr
        return tarfile.open(fileobj=io.BytesIO(b"\0" * 10240), mode="r:")
    return tarfile.open(fileobj=io.BytesIO(read.stdout), mode="r:")
