"""How much may be under way at once, shared by every install of a process."""

from __future__ import annotations

from collections import OrderedDict
from typing import final

import attrs
import trio


@attrs.frozen
class LimitsStatistics:
    """What a `Limits` knew at the moment it was asked."""

    in_flight: int
    """Transfers and commands under way."""
    bytes_in_flight: int
    """Bytes that they hold."""
    tasks_waiting: int
    """Tasks in `acquire`."""
    max_in_flight: int
    """The bound of `in_flight`."""
    max_bytes: int
    """The bound of `bytes_in_flight`."""


@final
class Limits:
    """Bounds the transfers, and their bytes, that are in flight at once.

    Make one and pass it to every `install` of the process. Who comes first is served first: a large
    transfer is not overtaken by small ones. Belongs to one Trio run at a time.
    """

    def __init__(self, max_in_flight: int = 64, max_bytes: int = 64 * 2**20) -> None:
        """Bound the transfers in flight to `max_in_flight`, and what they hold to `max_bytes`.

        Raises `ValueError` for a bound under 1.
        """
        if max_in_flight < 1 or max_bytes < 1:
            raise ValueError("max_in_flight and max_bytes are at least 1")
        self._max_in_flight = max_in_flight
        self._max_bytes = max_bytes
        self._in_flight = 0
        self._bytes_in_flight = 0
        # Ordered, so that the first is found, and any cancelled one removed, in constant time.
        self._waiting: OrderedDict[trio.lowlevel.Task, int] = OrderedDict()

    @property
    def max_bytes(self) -> int:
        """The bound of the bytes in flight."""
        return self._max_bytes

    async def acquire(self, size: int) -> None:
        """Wait until one more transfer of `size` bytes may start, and count it.

        One that is larger than `max_bytes` counts as `max_bytes`, and so goes alone.

        **Cancellation:** raises `Cancelled` and counts nothing.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        cost = min(size, self._max_bytes)
        if not self._waiting and self._fits(cost):
            self._take(cost)
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        task = trio.lowlevel.current_task()
        self._waiting[task] = cost

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            del self._waiting[task]
            # It may have been the one, too large for the moment, that held the others up.
            self._wake()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def release(self, size: int) -> None:
        """Count a transfer of `size` bytes, the size it was acquired with, as ended.

        Raises `RuntimeError` where nothing is in flight.
        """
        if self._in_flight == 0:
            raise RuntimeError("release without acquire")
        self._in_flight -= 1
        self._bytes_in_flight -= min(size, self._max_bytes)
        self._wake()

    def statistics(self) -> LimitsStatistics:
        """Return what is in flight, what waits, and the bounds."""
        return LimitsStatistics(
            in_flight=self._in_flight,
            bytes_in_flight=self._bytes_in_flight,
            tasks_waiting=len(self._waiting),
            max_in_flight=self._max_in_flight,
            max_bytes=self._max_bytes,
        )

    def __repr__(self) -> str:
        return (
            f"<Limits {self._in_flight}/{self._max_in_flight} in flight, "
            f"{self._bytes_in_flight}/{self._max_bytes} bytes, {len(self._waiting)} waiting>"
        )

    def _fits(self, cost: int) -> bool:
        return (
            self._in_flight < self._max_in_flight
            and self._bytes_in_flight + cost <= self._max_bytes
        )

    def _take(self, cost: int) -> None:
        self._in_flight += 1
        self._bytes_in_flight += cost

    def _wake(self) -> None:
        while self._waiting:
            task, cost = next(iter(self._waiting.items()))
            if not self._fits(cost):
                return
            del self._waiting[task]
            self._take(cost)  # for it, before it runs: nobody can come between
            trio.lowlevel.reschedule(task)
