"""A running container, by the Docker Engine API.

What the image has decides how: `sh` and `tar`, and a packed write is one command. Without `tar`
the engine unpacks the archive into the workspace, and a command publishes it. Without a shell the
engine unpacks it where it belongs; what arrived is then read back and compared.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TypeVar, final

import httpx2
import trio

from trio_skills import _far_side
from trio_skills._archive import Archive
from trio_skills._errors import CommandError, RuntimeOpenError
from trio_skills._far_side import Call, MissingProgramError, Parcel, Reply
from trio_skills._far_side_source import SourceParcel
from trio_skills._runtime import Existing, FileState, RunResult
from trio_skills._tar import Owner
from trio_skills._threads import in_thread
from trio_skills.runtimes._archive_writes import ArchiveWrites
from trio_skills.runtimes._commanded import CommandedRuntime, Payload, Sent, write_packed
from trio_skills.runtimes._docker_host import HostError, docker_host, engine_url
from trio_skills.runtimes._engine import Engine, EngineError, Json

T = TypeVar("T")

# It trusts nobody, and is not used: an engine behind TLS is refused. By default the client would
# read all certificates, for each container: the event loop would wait, and each takes 0.8 MiB.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

MAX_IN_FLIGHT = 32
"""Commands at once: each has a connection, and the engine starts no more in the same time."""


@final
class DockerRuntime(CommandedRuntime):
    """A container that runs. Made by `open_docker`."""

    def __init__(
        self,
        engine: Engine,
        container: str,
        path: str,
        user: str | None,
        without_shell: ArchiveWrites,
    ) -> None:
        """Not public: `open_docker` makes it."""
        super().__init__(path, MAX_IN_FLIGHT)
        self._engine = engine
        self._container = container
        self._user = user
        self._without_shell = without_shell
        self._lacks: str | None = None

    def __repr__(self) -> str:
        return f"<DockerRuntime {self._container[:12]} {self._path!r}>"

    async def write(self, target: str, data: bytes) -> None:
        """Write a whole file, making the folders above it, or raise."""
        await self._by_shell(
            partial(super().write, target, data), partial(write_packed, self, target, data)
        )

    async def inspect(self, targets: Sequence[str]) -> Mapping[str, FileState]:
        """Return the state of every target."""
        return await self._by_shell(
            partial(super().inspect, targets), partial(self._without_shell.inspect, targets)
        )

    async def set_executable(self, targets: Sequence[str]) -> None:
        """Make files executable."""
        await self._by_shell(
            partial(super().set_executable, targets),
            partial(self._without_shell.set_executable, targets),
        )

    async def _by_shell(
        self, shell: Callable[[], Awaitable[T]], without: Callable[[], Awaitable[T]]
    ) -> T:
        """Return what the first way gives, or the second one, where the image has no shell."""
        if self._lacks != "sh":
            try:
                return await shell()
            except MissingProgramError as exc:
                self._notice(exc)
        return await without()

    async def _send(self, parcel: Parcel, existing: Existing) -> Sent:
        if self._lacks is None:
            try:
                return await super()._send(parcel, existing)
            except MissingProgramError as exc:
                self._notice(exc)
        if self._lacks == "tar":
            return await self._send_by_engine(parcel, existing)
        return await self._without_shell.send(parcel, existing)

    def _notice(self, missing: MissingProgramError) -> None:
        """Remember what the image has not; raise where that is no reason to do without a shell."""
        if missing.program not in ("sh", "tar"):
            raise missing
        self._lacks = missing.program

    async def _send_by_engine(self, parcel: Parcel, existing: Existing) -> Sent:
        """Let the engine unpack what a shell in the container then publishes."""
        errors: dict[str, Exception] = {}
        call = parcel.call(self._path, existing, "-")
        reply = await self._let_unpack(call, partial(parcel.archive, existing, errors))
        return Sent(parcel.errors(reply, existing, errors), reply.in_place, round_trips=2)

    async def extract(self, archive: Archive, target: str) -> int:
        """Make a folder an archive's tree; see `Extracts`. The image needs a shell."""
        tried = 0
        if self._lacks is None:
            try:
                return await super().extract(archive, target)
            except MissingProgramError as exc:
                self._notice(exc)
                tried = 1
        if self._lacks == "sh":
            raise CommandError("a source archive is unpacked only where the sandbox has a shell")
        parcel = SourceParcel(archive, target, is_plain=True)
        call = parcel.call(self._path, "-")
        parcel.check(await self._let_unpack(call, partial(parcel.owned, call)))
        return tried + 2

    async def _let_unpack(
        self, call: Call, archive: Callable[[Owner], Generator[bytes, None, None]]
    ) -> Reply:
        """Have the engine unpack into the workspace of a call what belongs to its user."""
        workspace: list[tuple[str, Owner]] = []
        told = trio.Event()

        def heard(output: bytes) -> None:
            if not told.is_set() and (found := _far_side.read_workspace(call, output)):
                workspace.append(found)
                told.set()

        async def fill() -> AsyncGenerator[bytes, None]:
            await told.wait()
            [(folder, owner)] = workspace
            await self._engine.put(self._container, folder, archive(owner))
            yield b"\n"
            await trio.lowlevel.checkpoint()

        async with self._limiter, aclosing(fill()) as payload:
            result = await self._execute(call, payload, heard)
        return _far_side.read_reply(call, result)

    async def _execute(
        self,
        call: Call,
        payload: Payload,
        heard: Callable[[bytes], None] | None = None,
    ) -> RunResult:
        def listen(output: bytearray) -> bool:
            if heard is not None:
                heard(bytes(output[:10_000]))
            return call.end in output[-100:]

        ended = await self._engine.run(self._container, call.argv, payload, self._user, listen)
        if call.end in ended.stdout[-100:]:
            return RunResult(0, ended.stdout, ended.stderr)  # its answer is whole, with its code
        code = await self._engine.exit_code(ended.identifier)
        if call.nonce.encode() not in ended.stdout:
            return RunResult(code, stderr=ended.stdout + ended.stderr)  # the engine's own words
        return RunResult(code, ended.stdout, ended.stderr)


@asynccontextmanager
async def open_docker(
    container: str, path: str = "", *, host: str | None = None, user: str | None = None
) -> AsyncIterator[DockerRuntime]:
    """Attach to a running container.

    Args:
        container: Its name or its identifier.
        path: Where relative targets go; `~/skills` is in the home folder. By default the image's
            working directory.
        host: The engine's address, as in `DOCKER_HOST`; by default that, then the current context,
            then `/var/run/docker.sock`.
        user: Who commands run as and files belong to, as `name`, `uid` or `uid:gid`; by default the
            user that the container runs as.

    Raises:
        RuntimeOpenError: The engine cannot be reached, or the container is missing, stopped or
            paused.
    """
    url = f"docker://{container}"
    try:
        address = host
        if address is None:
            address = await in_thread(docker_host, os.environ)
        base_url, socket = engine_url(address, os.environ)
    except HostError as exc:
        raise RuntimeOpenError(url, str(exc)) from exc
    # No limit and no timeout of its own: the runtime's limit and the caller's scope say enough.
    transport = httpx2.AsyncHTTPTransport(verify=_NO_TLS, uds=socket, limits=httpx2.Limits())
    async with httpx2.AsyncClient(
        transport=transport, base_url=base_url, timeout=None, trust_env=False
    ) as client:
        engine = Engine(client)
        try:
            found = await engine.look_at(container)
        except EngineError as exc:
            raise RuntimeOpenError(url, str(exc)) from exc
        except CommandError as exc:
            reason = f"{exc}; is one running at {address}, and may you use it?"
            raise RuntimeOpenError(url, reason) from exc
        _refuse_state(url, found)
        try:
            without_shell = ArchiveWrites.into(engine, found, path, user)
        except (KeyError, TypeError, AttributeError) as exc:
            reason = f"what answers at {address} is no Docker engine"
            raise RuntimeOpenError(url, reason) from exc
        yield DockerRuntime(engine, without_shell.container, path, user, without_shell)


def _refuse_state(url: str, found: Json) -> None:
    state = found.get("State")
    if not isinstance(state, dict):
        raise RuntimeOpenError(url, "what answers is no Docker engine")
    if state.get("Paused"):
        raise RuntimeOpenError(url, "the container is paused: docker unpause it first")
    if not state.get("Running"):
        status = state.get("Status", "stopped")
        raise RuntimeOpenError(url, f"the container is {status}: docker start it first")
