"""Do something again and again, each time cancelled a moment later, until it completes.

A moment is one at which something may be cancelled: before a step of any task, whenever all tasks
wait, and before a worker thread opens or changes a file, where it may ask whether it is cancelled.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import final

import trio
from trio.testing import MockClock, active_thread_count


def for_every_checkpoint(
    once: Callable[[Moment], Awaitable[None]],
    *,
    is_virtual: bool = False,
    each_of_first: int = 10_000,
    then_every: int = 1,
) -> int:
    """Run `once` with the moment 0, 1, 2, … until it did not come. Returns how many did.

    With worker threads and sockets two runs never have exactly the same moments. Where there are
    many and each takes long, visit each of the first, and every so many of the others.

    Args:
        once: Lets its moment interrupt something, and checks what is there then.
        is_virtual: Whether time is virtual; there must be no threads then.
        each_of_first: How many moments are visited one by one.
        then_every: How far apart the others are.
    """
    number = 0
    while True:
        moment = Moment(number)
        clock = MockClock(autojump_threshold=0) if is_virtual else None
        try:
            with _nothing_left_open():
                trio.run(_alone, once, moment, clock=clock, instruments=[moment])
            assert moment.was_used
        except BaseException as exc:
            exc.add_note(f"cancelled at moment {number}")
            raise
        if not moment.has_come:
            return number
        number += 1 if number < each_of_first else then_every


async def _alone(once: Callable[[Moment], Awaitable[None]], moment: Moment) -> None:
    before = at_work()
    await once(moment)
    assert at_work() == before


def at_work() -> tuple[int, int]:
    """Return how many tasks there are, and how many threads that work for one."""
    return trio.lowlevel.current_statistics().tasks_living, active_thread_count()


@final
class Moment(trio.abc.Instrument):
    """The n-th moment of what it interrupts; the 0th comes before that begins."""

    def __init__(self, number: int) -> None:
        self.has_come = False
        self.was_used = False
        self._left = number
        self._is_counting = False
        self._scope = trio.CancelScope()
        self._then: Callable[[], object] = lambda: None
        self._lock = threading.Lock()
        self._run: trio.lowlevel.TrioToken | None = None

    async def interrupts(
        self, work: Callable[[], Awaitable[object]], *, then: Callable[[], object] = lambda: None
    ) -> bool:
        """Do some work, and cancel it when the moment comes. Returns whether it was.

        It must not swallow that. `then` is called as soon as it is cancelled.
        """
        global _counting
        self.was_used, self._then = True, then
        self._run = trio.lowlevel.current_trio_token()
        has_completed = False
        with self._scope:
            if self._left == 0:
                self._come()
            self._is_counting, _counting = True, self
            try:
                await work()
                has_completed = True
            finally:
                self._is_counting, _counting = False, None
        assert self._scope.cancelled_caught != has_completed
        return not has_completed

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._is_now():
            self._come()

    def before_io_wait(self, timeout: float) -> None:
        if trio.lowlevel.current_statistics().tasks_runnable == 0 and self._is_now():
            assert self._run is not None
            self._run.run_sync_soon(self._come)  # at once, it would not end this waiting

    def before_file_event(self) -> None:
        """Count a moment of a worker thread; if it is this one, it goes on when it has come."""
        if self._is_now():
            assert self._run is not None
            cancelled = threading.Event()
            self._run.run_sync_soon(self._come)
            self._run.run_sync_soon(cancelled.set)
            cancelled.wait()

    def _is_now(self) -> bool:
        with self._lock:
            if self._is_counting:
                self._left -= 1
            return self._is_counting and self._left == 0

    def _come(self) -> None:
        self.has_come = True
        self._scope.cancel()
        self._then()


_counting: Moment | None = None
"""For the hook below, which can never be taken away again."""

_CALLS = ("chmod", "link", "listdir", "mkdir", "remove", "rename", "rmdir", "scandir", "symlink")
_FILE_EVENTS = frozenset(["open", *(f"os.{name}" for name in _CALLS)])


def _hook(event: str, arguments: object) -> None:
    moment = _counting
    if moment is None or event not in _FILE_EVENTS:
        return
    if threading.current_thread() is not threading.main_thread():
        moment.before_file_event()


sys.addaudithook(_hook)


@contextmanager
def _nothing_left_open() -> Iterator[None]:
    before = descriptors(), _children()
    yield
    assert (descriptors(), _children()) == before


def descriptors() -> list[tuple[str, str]]:
    """Return the numbers of what is open in this process, and what it is."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # what lists them
            found.append((path.name, os.readlink(path)))
    return sorted(found)


def _children() -> set[str]:
    """Return the ids of the processes that this one has started."""
    lists = Path("/proc/self/task").glob("*/children")
    return {child for children in lists for child in children.read_text().split()}
