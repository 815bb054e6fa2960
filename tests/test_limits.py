"""Limits: what is in flight never exceeds them, and nothing is lost from them."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_skills import Limits


class TestBounds:
    @pytest.mark.parametrize(("count", "size"), [(0, 1), (1, 0), (-1, 1)])
    def test_a_bound_is_at_least_one(self, count: int, size: int) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            Limits(count, size)

    async def test_the_next_waits_for_a_place(self) -> None:
        limits = Limits(max_in_flight=1)
        await limits.acquire(1)
        with trio.move_on_after(0) as scope:
            await limits.acquire(1)
        assert scope.cancelled_caught
        limits.release(1)
        await limits.acquire(1)

    async def test_the_next_waits_for_bytes(self) -> None:
        limits = Limits(max_bytes=10)
        await limits.acquire(6)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limits.acquire, 5)
            await wait_all_tasks_blocked()
            assert limits.statistics().tasks_waiting == 1
            limits.release(6)
        assert limits.statistics().bytes_in_flight == 5

    async def test_what_is_larger_than_the_limit_goes_alone(self) -> None:
        limits = Limits(max_bytes=10)
        await limits.acquire(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limits.acquire, 1_000)
            await wait_all_tasks_blocked()
            assert limits.statistics().tasks_waiting == 1
            limits.release(1)
            await wait_all_tasks_blocked()
            assert limits.statistics().bytes_in_flight == 10
            nursery.start_soon(limits.acquire, 1)
            await wait_all_tasks_blocked()
            assert limits.statistics().tasks_waiting == 1
            limits.release(1_000)
        assert limits.statistics().bytes_in_flight == 1

    def test_nothing_can_be_given_back_twice(self) -> None:
        with pytest.raises(RuntimeError, match="release without acquire"):
            Limits().release(0)


class TestFairness:
    async def test_who_comes_first_is_served_first_and_a_large_one_is_not_overtaken(self) -> None:
        limits = Limits(max_bytes=10)
        await limits.acquire(5)
        served: list[int] = []

        async def wait(size: int) -> None:
            await limits.acquire(size)
            served.append(size)
            limits.release(size)

        async with trio.open_nursery() as nursery:
            for size in (10, 5, 6, 7, 8):
                nursery.start_soon(wait, size)
                await wait_all_tasks_blocked()
            assert limits.statistics().tasks_waiting == 5  # though the one of 5 would fit
            limits.release(5)
        assert served == [10, 5, 6, 7, 8]  # of which no two fit at once


class TestCancellation:
    async def test_a_cancelled_waiter_leaves_no_trace_and_lets_the_others_by(self) -> None:
        limits = Limits(max_bytes=10)
        await limits.acquire(5)
        scope = trio.CancelScope()

        async def large() -> None:
            with scope:
                await limits.acquire(10)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(large)
            await wait_all_tasks_blocked()
            nursery.start_soon(limits.acquire, 5)
            await wait_all_tasks_blocked()
            assert limits.statistics().tasks_waiting == 2
            scope.cancel()
        statistics = limits.statistics()
        assert (statistics.in_flight, statistics.bytes_in_flight) == (2, 10)
        assert statistics.tasks_waiting == 0

    async def test_a_cancelled_caller_takes_no_free_place(self) -> None:
        limits = Limits()
        with trio.CancelScope() as scope:
            scope.cancel()
            await limits.acquire(1)
        assert limits.statistics().in_flight == 0

    async def test_a_place_that_was_given_is_not_lost_by_a_cancellation(self) -> None:
        """Given and cancelled in one step: then it is held, and the holder gives it back."""
        limits = Limits(max_in_flight=1)
        await limits.acquire(1)
        held = []

        async def wait(scope: trio.CancelScope) -> None:
            with scope:
                await limits.acquire(1)
                held.append(True)

        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(wait, scope)
            await wait_all_tasks_blocked()
            limits.release(1)
            scope.cancel()
        assert limits.statistics().in_flight == len(held) == 1


def test_the_repr_has_live_numbers() -> None:
    assert repr(Limits(2, 30)) == "<Limits 0/2 in flight, 0/30 bytes, 0 waiting>"
