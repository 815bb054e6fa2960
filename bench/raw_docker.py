"""What installs into Docker are compared with: bare Engine API calls, and `docker` itself."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import attrs
import httpx2
import trio

from bench.workloads import make_tar, targets, write_each
from tests.services import Engine

_numbers = itertools.count()

_KEPT_SHELL = """\
while read -r size; do
  head -c "$size" | tar -x -C / && echo done
done
"""


@attrs.frozen
class Box:
    """A container that runs, and its engine."""

    engine: Engine
    """The engine."""
    name: str
    """The container's name."""

    @contextmanager
    def fresh(self, count: int) -> Iterator[str]:
        """Yield a path where nothing is; in the end `count` files must be there, and are removed.

        None of this belongs to what is measured.
        """
        self.engine.run(self.name, "mkdir", "-p", "/bench")
        folder = f"/bench/{next(_numbers)}"
        try:
            yield folder
            there = self.engine.run(self.name, "find", folder, "-type", "f").count(b"\n")
            assert there == count, f"{there} files of {count} are in {folder}"
        finally:
            self.engine.run(self.name, "rm", "-rf", folder)


@asynccontextmanager
async def engine_api(engine: Engine) -> AsyncIterator[httpx2.AsyncClient]:
    """Open a client that has made one call already, and keeps its connection."""
    transport = httpx2.AsyncHTTPTransport(uds=str(engine.socket))
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://docker", timeout=None
    ) as client:
        (await client.get("/_ping")).raise_for_status()
        yield client


@attrs.frozen
class RawExec:
    """A command in a container, whose input and output are a bare stream."""

    stream: trio.SocketStream
    """Its input; its output comes from there in frames with headers of eight bytes."""

    async def read_until(self, marker: bytes) -> None:  # noqa: ASYNC910  # a marker is not empty
        """Read until the output has `marker`."""
        seen = b""
        while marker not in seen:
            received = await self.stream.receive_some()
            assert received, f"the command ended after {seen!r}"
            seen += received

    async def read_all(self) -> bytes:
        """Read until the command has closed its output."""
        return b"".join([received async for received in self.stream])


@asynccontextmanager
async def raw_exec(
    client: httpx2.AsyncClient, box: Box, argv: Sequence[str]
) -> AsyncIterator[RawExec]:
    """Start a command in a container; in the end, which comes after its own, it must be 0."""
    options = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Cmd": argv}
    created = await client.post(f"/containers/{box.name}/exec", json=options)
    created.raise_for_status()
    number = created.json()["Id"]
    async with client.stream(
        "POST",
        f"/exec/{number}/start",
        json={"Detach": False, "Tty": False},
        headers={"Connection": "Upgrade", "Upgrade": "tcp"},
    ) as started:
        assert started.status_code == 101, started.status_code
        socket = started.extensions["network_stream"].get_extra_info("socket")
        yield RawExec(trio.SocketStream(socket))
    inspected = (await client.get(f"/exec/{number}/json")).json()
    assert inspected["ExitCode"] == 0, inspected


def _archive(skill: Path, folder: str) -> bytes:
    return make_tar(skill, f"{folder}/{skill.name}".removeprefix("/"))


def tar_by_exec(box: Box, skill: Path, count: int) -> float:
    """Pipe a ready tar into `tar -x`, by one exec."""

    async def main(archive: bytes) -> float:
        async with engine_api(box.engine) as client:
            start = time.perf_counter()
            async with raw_exec(client, box, ["tar", "-x", "-C", "/"]) as command:
                await command.stream.send_all(archive)
                await command.stream.send_eof()
                assert await command.read_all() == b""
            return time.perf_counter() - start

    with box.fresh(count) as folder:
        return trio.run(main, _archive(skill, folder))


def tar_by_a_kept_shell(box: Box, skill: Path, count: int) -> float:
    """Pipe a ready tar into a shell that had to do with another one before."""

    async def send(command: RawExec, archive: bytes) -> None:
        await command.stream.send_all(b"%d\n" % len(archive) + archive)
        await command.read_until(b"done\n")

    async def main(first: bytes, second: bytes) -> float:
        async with (
            engine_api(box.engine) as client,
            raw_exec(client, box, ["sh", "-c", _KEPT_SHELL]) as command,
        ):
            await send(command, first)
            start = time.perf_counter()
            await send(command, second)
            seconds = time.perf_counter() - start
            await command.stream.send_eof()
            await command.read_all()
            return seconds

    with box.fresh(count) as one, box.fresh(count) as two:
        return trio.run(main, _archive(skill, one), _archive(skill, two))


def docker_exec_per_file(box: Box, skill: Path, count: int) -> float:
    """Run `docker exec` for each file, all at once. The folders are there already."""

    async def write(path: Path, target: str) -> None:
        script = ["sh", "-c", 'cat > "$1"', "sh", target]
        with path.open("rb") as source:
            await trio.run_process(
                ["docker", "exec", "-i", box.name, *script],
                stdin=source.fileno(),
                env=box.engine.environment,
            )

    with box.fresh(count) as folder:
        files = targets(skill, folder)
        parents = {target.rpartition("/")[0] for target in files.values()}
        box.engine.run(box.name, "mkdir", "-p", *parents)
        return write_each(write, files)


def docker_cp(box: Box, source: Path, count: int) -> float:
    """Run `docker cp` of a whole folder."""
    with box.fresh(count) as folder:
        start = time.perf_counter()
        box.engine.docker("cp", str(source), f"{box.name}:{folder}")
        return time.perf_counter() - start
