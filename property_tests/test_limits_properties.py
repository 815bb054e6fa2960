"""`Limits` beside a model that is obviously right: a queue, and two sums."""

from __future__ import annotations

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from trio.testing import wait_all_tasks_blocked

from property_tests.guest_run import GuestRun
from property_tests.simulation import simulate
from trio_skills import Limits


class LimitsBesideAModel(RuleBasedStateMachine):
    """Tasks wait, are let through, release, and are cancelled, also before they have noticed."""

    def __init__(self) -> None:
        super().__init__()
        self.guest = GuestRun()
        self.scopes: list[trio.CancelScope] = []
        self.through: dict[int, int] = {}
        """Sizes of what was let through, as far as the tasks themselves have noticed."""
        self.waiting: list[tuple[int, int]] = []
        self.holding: dict[int, int] = {}

    @initialize(max_in_flight=st.integers(1, 4), max_bytes=st.integers(1, 10))
    def make(self, max_in_flight: int, max_bytes: int) -> None:
        self.limits = Limits(max_in_flight, max_bytes)
        self.max_in_flight = max_in_flight
        self.max_bytes = max_bytes

    def cost(self, size: int) -> int:
        return min(size, self.max_bytes)

    def settle(self) -> None:
        """Let through, in the model, who is first and fits."""
        while self.waiting:
            key, size = self.waiting[0]
            held = sum(map(self.cost, self.holding.values()))
            full = len(self.holding) == self.max_in_flight
            if full or held + self.cost(size) > self.max_bytes:
                return
            self.waiting.pop(0)
            self.holding[key] = size

    @rule(size=st.integers(0, 15))
    def acquire(self, size: int) -> None:
        key = len(self.scopes)
        self.scopes.append(trio.CancelScope())

        async def wait() -> None:
            with self.scopes[key]:
                await self.limits.acquire(size)
                self.through[key] = size

        async def start() -> None:
            self.guest.nursery.start_soon(wait)
            await wait_all_tasks_blocked()

        self.guest.run(start)
        self.waiting.append((key, size))
        self.settle()
        self.tasks_have_noticed()

    @precondition(lambda self: self.holding)
    @rule(data=st.data(), pause=st.booleans())
    def release(self, data: st.DataObject, pause: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.holding)))
        size = self.holding.pop(key)

        async def release() -> None:
            self.limits.release(size)
            if pause:
                await wait_all_tasks_blocked()

        self.guest.run(release)
        self.through.pop(key, None)
        self.settle()
        if pause:
            self.tasks_have_noticed()

    @precondition(lambda self: self.scopes)
    @rule(data=st.data(), pause=st.booleans())
    def cancel(self, data: st.DataObject, pause: bool) -> None:
        """Also one that was let through: that holds what it holds, and must release it."""
        key = data.draw(st.integers(0, len(self.scopes) - 1))

        async def cancel() -> None:
            self.scopes[key].cancel()
            if pause:
                await wait_all_tasks_blocked()

        self.guest.run(cancel)
        self.waiting = [(waiting, size) for waiting, size in self.waiting if waiting != key]
        self.settle()
        if pause:
            self.tasks_have_noticed()

    def tasks_have_noticed(self) -> None:
        # One that was let through and released again, before it ran, notices only now.
        assert {key: self.through[key] for key in self.holding} == self.holding
        assert not {key for key, _ in self.waiting} & self.through.keys()

    @invariant()
    def the_statistics_are_the_model(self) -> None:
        statistics = self.limits.statistics()
        assert statistics.in_flight == len(self.holding)
        assert statistics.bytes_in_flight == sum(map(self.cost, self.holding.values()))
        assert statistics.tasks_waiting == len(self.waiting)

    def teardown(self) -> None:
        """Everybody's turn comes, and in the end the limits are whole."""

        async def drain() -> None:
            while self.holding:
                _, size = self.holding.popitem()
                self.limits.release(size)
                self.settle()

        self.guest.run(drain)
        assert not self.waiting
        if self.scopes:
            whole = Limits(self.max_in_flight, self.max_bytes)
            assert self.limits.statistics() == whole.statistics()
        self.guest.close()


TestLimits = LimitsBesideAModel.TestCase
TestLimits.settings = settings(stateful_step_count=30)


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
