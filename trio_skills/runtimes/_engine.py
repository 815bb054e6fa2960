"""The Docker Engine API, as far as it is needed: look at a container, run in it, fill it.

https://docs.docker.com/reference/api/engine/. A command's input and output go over a connection
that was upgraded to a raw stream, in both directions; its output comes in frames.
"""

from __future__ import annotations

import json
import socket
import struct
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, closing, contextmanager, suppress
from typing import Any, NoReturn
from urllib.parse import quote

import attrs
import httpcore2
import httpx2
import trio

from trio_skills._errors import CommandError, LostAnswerError, TransientError, describe
from trio_skills._printable import printable
from trio_skills._threads import next_piece
from trio_skills.runtimes._commanded import Payload
from trio_skills.runtimes._processes import PATIENCE, refuse_flood, send, single_error

Json = dict[str, Any]  # Any: what the engine sends

_FRAME = struct.Struct(">BxxxI")
_STDERR = 2

# https://pkg.go.dev/io/fs#FileMode
_GO_FOLDER = 1 << 31
_GO_LINK = 1 << 27
_GO_TYPE = 0x8F280000


class EngineError(CommandError):
    """The engine refused a request; `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(status, message)

    def __str__(self) -> str:
        return str(self.args[1])


class BusyError(EngineError, TransientError):
    """The engine refused a request that it may accept the next time."""


_BUSY = frozenset({408, 409, 429}) | frozenset(range(500, 600))
"""The statuses of a `BusyError`; 409 is a container that starts, or is paused for a moment."""


@attrs.frozen
class Ended:
    """A command that has ended, in a container."""

    identifier: str
    """The engine's name for it."""
    stdout: bytes
    """Its standard output."""
    stderr: bytes
    """Its standard error."""


class Engine:
    """A Docker engine. What goes wrong with it is a `CommandError`."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        """Talk to the engine at the client's base URL."""
        self._client = client

    async def look_at(self, container: str) -> Json:
        """Return what the engine knows of a container."""
        return await self._request("GET", f"/containers/{quote(container, safe='')}/json")

    async def run(
        self,
        container: str,
        argv: Sequence[str],
        payload: Payload,
        user: str | None,
        is_enough: Callable[[bytearray], bool],
    ) -> Ended:
        """Run a command in a container, with `payload` as its input.

        `is_enough` is called with all of the standard output so far, when there is more, and tells
        whether nothing more needs to be sent.

        **Cancellation:** closes its input, and waits `PATIENCE` seconds for its end.
        """
        options = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True}
        command = {**options, "Cmd": list(argv), **({} if user is None else {"User": user})}
        created = await self._request("POST", f"/containers/{container}/exec", json=command)
        identifier = str(created.get("Id"))
        output = _Output(is_enough)
        async with self._start(identifier) as stream:
            try:
                with single_error():
                    async with trio.open_nursery() as nursery:
                        sending = trio.CancelScope()
                        nursery.start_soon(output.collect, stream, sending)
                        if payload is not None:
                            # It may end before it has read everything: its answer tells why.
                            with sending, suppress(trio.BrokenResourceError):
                                await send(payload, stream)
                            # The end of an input that comes before the command has started is
                            # lost at times, and it would be waited for without an end.
                            await output.begun.wait()
                            stream.send_eof()
            finally:
                with trio.move_on_after(PATIENCE, shield=True), suppress(CommandError):
                    await output.end(stream)
                stream.send_eof()
        return Ended(identifier, bytes(output.stdout), bytes(output.stderr))

    async def exit_code(self, identifier: str) -> int:
        """Return the exit code of a command that has ended; 255 where the engine cannot tell."""
        code = (await self._request("GET", f"/exec/{identifier}/json")).get("ExitCode")
        return code if isinstance(code, int) else 255

    async def kind(self, container: str, path: str) -> str:
        """Return `file`, `folder`, `link`, `other` or `missing`, as the engine sees a path."""
        with _as_ours():
            response = await self._client.head(_archive(container, path))
        if response.status_code == 404:
            return "missing"
        if response.is_error:
            _refuse(response)
        with _as_ours():
            header = response.headers["X-Docker-Container-Path-Stat"]
            mode = int(json.loads(b64decode(header))["mode"])  # Go's bits, not Unix's
        if not mode & _GO_TYPE:
            return "file"
        return {_GO_FOLDER: "folder", _GO_LINK: "link"}.get(mode & (_GO_FOLDER | _GO_LINK), "other")

    async def put(self, container: str, path: str, pieces: Generator[bytes, None, None]) -> None:
        """Unpack a tar archive into a folder of a container.

        Its pieces are made in worker threads. It must not be compressed: the engine would run a
        program of the image, as the host's root, to unpack it (CVE-2026-41567).
        """

        async def archive() -> AsyncGenerator[bytes, None]:
            while True:
                piece = await next_piece(pieces)
                if piece is None:
                    return
                yield piece

        headers = {"Content-Type": "application/x-tar"}
        with closing(pieces):
            async with aclosing(archive()) as content:
                path = _archive(container, path)
                await self._request("PUT", path, content=content, headers=headers)

    @asynccontextmanager
    async def get(self, container: str, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield a file or folder of a container as the pieces of a tar archive."""
        with _as_ours():
            headers = {"Accept-Encoding": "identity"}
            request = self._client.stream("GET", _archive(container, path), headers=headers)
            async with request as response:
                if response.is_error:
                    await response.aread()
                    _refuse(response)
                yield response.aiter_raw()

    async def _request(self, method: str, path: str, **options: Any) -> Json:  # Any: httpx2's
        with _as_ours():
            response = await self._client.request(method, path, **options)
            if not response.is_success:
                _refuse(response)
            loaded = json.loads(response.content) if response.content else {}
        if not isinstance(loaded, dict):
            raise CommandError("the Docker engine's answer makes no sense")
        return loaded

    @asynccontextmanager
    async def _start(self, identifier: str) -> AsyncIterator[_Stream]:
        """Start a command, and yield the stream that is its input and its output."""
        headers = {"Connection": "Upgrade", "Upgrade": "tcp"}
        options = {"Detach": False, "Tty": False}
        path = f"/exec/{identifier}/start"
        with _as_ours():
            request = self._client.build_request("POST", path, json=options, headers=headers)
            response = await self._client.send(request, stream=True)
        try:
            if response.status_code != 101:
                with _as_ours():
                    if response.is_error:  # else there may be no end of it
                        await response.aread()
                    _refuse(response)
            yield _Stream(response.extensions["network_stream"])
        finally:
            with trio.CancelScope(shield=True):
                await response.aclose()


def _archive(container: str, path: str) -> str:
    return f"/containers/{container}/archive?path={quote(path, safe='')}"


class _Stream(trio.abc.SendStream):
    """A connection that was upgraded."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        try:
            await self._stream.write(bytes(data))
        except httpcore2.NetworkError as exc:
            raise trio.BrokenResourceError from exc

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self) -> bytes:
        try:
            return await self._stream.read(2**16)
        except httpcore2.NetworkError as exc:
            raise LostAnswerError("the connection to the Docker engine was lost") from exc

    def send_eof(self) -> None:
        with suppress(OSError):  # the other side is gone
            self._stream.get_extra_info("socket").shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@attrs.define
class _Output:
    """What a command prints, which comes in frames: a byte for the stream, and a length."""

    is_enough: Callable[[bytearray], bool]
    stdout: bytearray = attrs.Factory(bytearray)
    stderr: bytearray = attrs.Factory(bytearray)
    unread: bytearray = attrs.Factory(bytearray)
    begun: trio.Event = attrs.Factory(trio.Event)
    """Set when the command has printed something, so that it runs, or has ended."""

    async def collect(self, stream: _Stream, sending: trio.CancelScope) -> None:
        """Receive until the command has ended; then nothing needs to be sent to it any more."""
        while data := await stream.receive_some():
            self._take(data)
            if self.is_enough(self.stdout):
                sending.cancel()
        self.begun.set()
        sending.cancel()

    async def end(self, stream: _Stream) -> None:
        """End the command's input as soon as it runs, and receive what it still prints."""
        if self.begun.is_set():
            stream.send_eof()
        while data := await stream.receive_some():
            self._take(data)
            stream.send_eof()

    def _take(self, data: bytes) -> None:
        self.begun.set()
        self.unread += data
        self._take_frames()
        refuse_flood(len(self.stdout) + len(self.stderr) + len(self.unread))

    def _take_frames(self) -> None:
        start = 0
        while len(self.unread) - start >= _FRAME.size:
            kind, length = _FRAME.unpack_from(self.unread, start)
            end = start + _FRAME.size + length
            if len(self.unread) < end:
                break
            sink = self.stderr if kind == _STDERR else self.stdout
            sink += self.unread[start + _FRAME.size : end]
            start = end
        del self.unread[:start]


def _refuse(response: httpx2.Response) -> NoReturn:
    try:
        message = json.loads(response.content)["message"]
    except httpx2.ResponseNotRead:
        message = f"it answered with status {response.status_code} where it has to upgrade"
    except (ValueError, KeyError, TypeError, RecursionError):
        message = f"status {response.status_code} {response.text[:500]}"  # of a proxy, perhaps
    reason = printable(" ".join(str(message).split())) or f"status {response.status_code}"
    kind = BusyError if response.status_code in _BUSY else EngineError
    raise kind(response.status_code, reason)


@contextmanager
def _as_ours() -> Iterator[None]:
    """Turn the HTTP client's errors into ours."""
    try:
        yield
    except (httpx2.TransportError, httpcore2.NetworkError) as exc:
        raise LostAnswerError(f"the Docker engine cannot be reached: {describe(exc)}") from exc
    except (httpx2.HTTPError, ValueError, RecursionError) as exc:
        raise CommandError(f"the Docker engine cannot be reached: {describe(exc)}") from exc
