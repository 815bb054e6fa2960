"""`Limits` beside a model that is obviously right: a queue, and two sums."""

from __future__ import annotations

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from property_tests.simulation import simulate
from trio_skills import Limits

operations = st.lists(
    st.one_of(
        st.tuples(st.just("acquire"), st.integers(0, 15)),
        st.tuples(st.just("release"), st.integers(0, 5)),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
    ),
    max_size=40,
)


class Model:
    """Who waits, in order, and who holds what."""

    def __init__(self, max_in_flight: int, max_bytes: int) -> None:
        self.max_in_flight = max_in_flight
        self.max_bytes = max_bytes
        self.waiting: list[tuple[int, int]] = []
        self.holding: dict[int, int] = {}

    def settle(self) -> None:
        while self.waiting:
            key, size = self.waiting[0]
            cost = min(size, self.max_bytes)
            held = sum(min(size, self.max_bytes) for size in self.holding.values())
            if len(self.holding) >= self.max_in_flight or held + cost > self.max_bytes:
                return
            self.waiting.pop(0)
            self.holding[key] = size


@given(st.integers(1, 4), st.integers(1, 10), operations, st.random_module())
def test_limits_give_and_take_as_the_model_does(
    max_in_flight: int, max_bytes: int, steps: list[tuple[str, int]], schedule: object
) -> None:
    async def main() -> None:
        limits = Limits(max_in_flight, max_bytes)
        model = Model(max_in_flight, max_bytes)
        scopes: dict[int, trio.CancelScope] = {}
        holding: dict[int, int] = {}

        async def acquire(key: int, size: int, scope: trio.CancelScope) -> None:
            with scope:
                await limits.acquire(size)
                holding[key] = size

        async with trio.open_nursery() as nursery:
            for key, (operation, argument) in enumerate(steps):
                match operation:
                    case "acquire":
                        scopes[key] = trio.CancelScope()
                        nursery.start_soon(acquire, key, argument, scopes[key])
                        model.waiting.append((key, argument))
                    case "release" if model.holding:
                        held = sorted(model.holding)[argument % len(model.holding)]
                        limits.release(model.holding.pop(held))
                        del holding[held]
                    case "cancel" if model.waiting:
                        waiting, _ = model.waiting.pop(argument % len(model.waiting))
                        scopes[waiting].cancel()
                model.settle()
                await wait_all_tasks_blocked()
                assert holding == model.holding
                statistics = limits.statistics()
                assert statistics.in_flight == len(holding)
                assert statistics.tasks_waiting == len(model.waiting)
                assert statistics.bytes_in_flight <= max_bytes
            nursery.cancel_scope.cancel()
        for size in holding.values():
            limits.release(size)
        assert limits.statistics().in_flight == limits.statistics().bytes_in_flight == 0

    simulate(main)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=20), st.random_module())
def test_who_comes_first_is_served_first(sizes: list[int], schedule: object) -> None:
    async def main() -> None:
        limits = Limits(max_in_flight=1, max_bytes=5)
        served: list[int] = []

        async def use(number: int, size: int) -> None:
            await limits.acquire(size)
            served.append(number)
            await trio.sleep(1)
            limits.release(size)

        async with trio.open_nursery() as nursery:
            for number, size in enumerate(sizes):
                nursery.start_soon(use, number, size)
                await wait_all_tasks_blocked()
        assert served == list(range(len(sizes)))

    simulate(main)
