"""A wire between a client and a server: it counts, grows slow or is cut, as a bad network does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

Connect = Callable[[], Awaitable[trio.SocketStream]]


@attrs.define(eq=False)
class Wire:
    """What goes from clients to the server, over all connections, is counted and can be cut."""

    cut_after: float = float("inf")
    """Bytes from clients, over all connections, after which every connection is dropped."""
    sent: int = 0
    """Bytes that clients have sent until now."""
    is_cut: bool = False
    """Whether it was cut; then new connections are dropped, too."""
    stays_cut: bool = True
    """Whether new connections are dropped after the cut."""
    connections: int = 0
    """How many there were."""
    port: int = 0
    """Where a TCP wire listens on 127.0.0.1."""
    slow_after: float = float("inf")
    """Bytes from clients, over all connections, after which the wire carries 6 MB in a second."""
    slowed: trio.Event = attrs.Factory(trio.Event)
    """Set when it became slow: then a transfer is under way, and stays so for a while."""
    record: bytearray | None = None
    """Where what clients send is kept, connection after connection as it comes."""
    _open: set[trio.CancelScope] = attrs.Factory(set)

    def cut(self) -> None:
        """Drop every connection now."""
        self.is_cut = True
        for scope in self._open:
            scope.cancel()

    async def carry(self, connect: Connect, client: trio.SocketStream) -> None:
        self.connections += 1
        async with client:
            if self.is_cut and self.stays_cut:
                return
            async with await connect() as server:
                with trio.CancelScope() as scope:
                    self._open.add(scope)
                    try:
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(self._copy, client, server, True)
                            nursery.start_soon(self._copy, server, client, False)
                    finally:
                        self._open.discard(scope)

    async def _copy(
        self, source: trio.SocketStream, sink: trio.SocketStream, counted: bool
    ) -> None:
        try:
            async for data in source:
                kept = data
                if counted and self.record is not None:
                    self.record += data
                if counted and self.sent + len(data) > self.slow_after:
                    self.slowed.set()
                    await trio.sleep(len(data) / 6e6)
                if counted and not self.is_cut:
                    kept = data[: int(min(len(data), max(0, self.cut_after - self.sent)))]
                    self.sent += len(data)
                await sink.send_all(kept)
                if counted and not self.is_cut and self.sent >= self.cut_after:
                    self.cut()
            await sink.send_eof()
        except trio.BrokenResourceError:
            pass


@asynccontextmanager
async def unix_wire(path: Path, server: Path) -> AsyncIterator[Wire]:
    """Listen on the Unix socket `path`, for the server behind the Unix socket `server`."""
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await listener.bind(str(path))
    listener.listen(100)
    async with _serve(
        trio.SocketListener(listener), partial(trio.open_unix_socket, server)
    ) as wire:
        yield wire


@asynccontextmanager
async def tcp_wire(server_port: int) -> AsyncIterator[Wire]:
    """Listen on a free port of 127.0.0.1, for the server behind another one."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    connect = partial(trio.open_tcp_stream, "127.0.0.1", server_port)
    async with _serve(listener, connect) as wire:
        wire.port = port
        yield wire


@asynccontextmanager
async def _serve(listener: trio.SocketListener, connect: Connect) -> AsyncIterator[Wire]:
    wire = Wire()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, partial(wire.carry, connect), [listener])
        yield wire
        nursery.cancel_scope.cancel()
