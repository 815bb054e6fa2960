"""The Engine API's traps, by an engine that is as mean as it may be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from trio_skills import InstallError, TransientError, Upload, install, plan_uploads
from trio_skills.runtimes.docker import open_docker

STATE = b'{"Id": "0123", "State": {"Running": true, "Status": "running"}, "Config": {}}'


@attrs.define(eq=False)
class SlowEngine:
    """Starts a command late, and loses the end of an input that came before."""

    is_started: bool = False
    """Whether the command runs."""
    lost_an_end: bool = False
    """Whether the input ended before."""
    status: bytes = b"200 OK"
    """What it answers to who wants to run a command."""
    asked: int = 0
    """How often it was asked for that."""

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            while request := await self._request(stream):
                if b"/start" in request.split(b"\r\n")[0]:
                    await stream.send_all(b"HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\n\r\n")
                    await self._run(stream)
                    return
                status, body = b"200 OK", STATE
                if request.startswith(b"POST"):
                    self.asked += 1
                    status, body = self.status, b'{"Id": "e"}'
                head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
                await stream.send_all(head + body)

    async def _request(self, stream: trio.SocketStream) -> bytes:
        request = b""
        while b"\r\n\r\n" not in request:
            data = await stream.receive_some()
            if not data:
                return b""
            request += data
        head, _, body = request.partition(b"\r\n\r\n")
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                while len(body) < int(line.partition(b":")[2]):
                    body += await stream.receive_some()
        return head + b"\r\n\r\n" + body

    async def _run(self, stream: trio.SocketStream) -> None:
        with trio.move_on_after(0.2):
            while await stream.receive_some():
                pass
            self.lost_an_end = True
        self.is_started = True
        await stream.send_all(b"\x01\0\0\0\0\0\0\x02x\n")
        while await stream.receive_some():
            pass


@asynccontextmanager
async def slow_engine(path: Path) -> AsyncIterator[SlowEngine]:
    engine = SlowEngine()
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await listener.bind(str(path))
    listener.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, engine.serve, [trio.SocketListener(listener)])
        yield engine
        nursery.cancel_scope.cancel()


class TestTheEndOfAnInput:
    async def test_never_comes_before_the_command_has_started(self, tmp_path: Path) -> None:
        """Docker 20.10 loses it at times, and the command would wait for it without an end."""
        async with slow_engine(tmp_path / "sock") as engine:
            async with open_docker("c", "/x", host=f"unix://{tmp_path}/sock") as runtime:
                try:
                    await runtime.write("f", b"")
                except Exception as exc:  # noqa: BLE001  # it gives no answer that makes sense
                    assert "ended early" in str(exc)  # noqa: PT017
            assert engine.is_started
            assert not engine.lost_an_end

    async def test_nor_when_it_is_cancelled_before(self, tmp_path: Path) -> None:
        async with slow_engine(tmp_path / "sock") as engine:
            async with open_docker("c", "/x", host=f"unix://{tmp_path}/sock") as runtime:
                with trio.move_on_after(0.1):
                    await runtime.write("f", b"")
            assert engine.is_started
            assert not engine.lost_an_end


class TestStatus:
    @pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
    async def test_of_an_engine_that_is_busy_is_transient_and_then_a_failure(
        self, tmp_path: Path, status: int
    ) -> None:
        async with slow_engine(tmp_path / "sock") as engine:
            engine.status = b"%d Try again" % status
            async with open_docker("c", "/x", host=f"unix://{tmp_path}/sock") as runtime:
                with pytest.raises(InstallError) as caught:
                    await install(plan_uploads([Upload.of("f", b"1")]), runtime, retries=1)
        [error] = caught.value.exceptions
        assert isinstance(error.__cause__, TransientError)
        assert str(status) in str(error)
        assert engine.asked == 3  # the batch twice, then its file
        assert caught.value.report.retries == 1

    @pytest.mark.parametrize("status", [400, 401, 403, 404])
    async def test_of_another_refusal_is_final(self, tmp_path: Path, status: int) -> None:
        async with slow_engine(tmp_path / "sock") as engine:
            engine.status = b"%d No" % status
            async with open_docker("c", "/x", host=f"unix://{tmp_path}/sock") as runtime:
                with pytest.raises(InstallError) as caught:
                    await install(plan_uploads([Upload.of("f", b"1")]), runtime)
        assert not isinstance(caught.value.exceptions[0].__cause__, TransientError)
        assert engine.asked == 2
