"""A live Trio run that synchronous code, as a Hypothesis machine is, sends its work into."""

from __future__ import annotations

import queue
from collections.abc import Awaitable, Callable
from typing import TypeVar

import outcome
import trio
from trio.testing import MockClock

T = TypeVar("T")


class GuestRun:
    """A Trio run, in virtual time, whose host is a queue that the caller pumps."""

    nursery: trio.Nursery
    """Where work can start tasks that stay; cancelled in the end."""

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._ended: list[outcome.Outcome[None]] = []
        self._send, receive = trio.open_memory_channel[Callable[[], Awaitable[None]]](1)

        async def main() -> None:
            async with trio.open_nursery() as self.nursery:
                async for work in receive:
                    await work()
                self.nursery.cancel_scope.cancel()

        trio.lowlevel.start_guest_run(
            main,
            run_sync_soon_threadsafe=self._todo.put,
            done_callback=self._ended.append,
            host_uses_signal_set_wakeup_fd=True,
            clock=MockClock(autojump_threshold=0),
        )

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run in it, and return or raise what comes of it."""
        results: list[outcome.Outcome[T]] = []

        async def in_time() -> T:
            with trio.fail_after(1e6):  # should nothing ever happen again
                return await work()

        async def captured() -> None:
            # Nothing cancels this task from outside, so a `Cancelled` can only be a bug.
            results.append(await outcome.acapture(in_time))

        def send() -> None:
            self._send.send_nowait(captured)

        self._todo.put(send)
        while not results:
            self._todo.get(timeout=60)()
        return results[0].unwrap()

    def close(self) -> None:
        self._todo.put(self._send.close)
        while not self._ended:
            self._todo.get(timeout=60)()
        self._ended[0].unwrap()
