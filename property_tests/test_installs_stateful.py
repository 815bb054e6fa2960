"""Installs, reinstalls, removals, faults and cancellations, one after another, beside a dictionary.

A synchronous Hypothesis machine over one live Trio run in guest mode: each rule sends a function
into the run and pumps its queue until the result is there.
"""

from __future__ import annotations

import queue
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import attrs
import outcome
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from trio.testing import MockClock

from property_tests.simulation import STRATEGIES, planned
from trio_skills import Event, InstallEnded, InstallError, Limits, Plan, Report, Strategy, install
from trio_skills.testing import Call, Fault, MemoryFile, PackingMemoryRuntime
from trio_skills.testing.strategies import plans

T = TypeVar("T")


class GuestRun:
    """A Trio run whose host is a queue that the caller pumps."""

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._ended: list[outcome.Outcome[None]] = []
        self._send, receive = trio.open_memory_channel[Callable[[], Awaitable[None]]](1)

        async def main() -> None:
            async for work in receive:
                await work()

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

        async def captured() -> None:
            # Nothing cancels this task from outside, so a `Cancelled` can only be a bug.
            results.append(await outcome.acapture(work))

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


class Installs(RuleBasedStateMachine):
    """One sandbox that many installs go into, and the dictionary that it should be equal to."""

    def __init__(self) -> None:
        super().__init__()
        self.guest = GuestRun()
        self.limits = Limits(max_in_flight=3, max_bytes=100)
        self.bad: frozenset[str] = frozenset()
        self.runtime = PackingMemoryRuntime(latency=lambda call: 1.0, faults=self.fault)
        self.model: dict[str, MemoryFile] = {}
        self.last: Plan | None = None

    def fault(self, call: Call) -> Fault | None:
        if self.bad & set(call.targets):
            return Fault(error=ConnectionResetError())
        return None

    def put(self, plan: Plan, deadline: float = 1e9, **options: Any) -> Report:
        """Install, and bring the model to what the report says was done."""
        events: list[Event] = []
        self.last = plan

        async def main() -> None:
            with trio.move_on_after(deadline), suppress(InstallError):
                await install(
                    plan, self.runtime, limits=self.limits, on_event=events.append, **options
                )

        self.guest.run(main)
        assert isinstance(events[-1], InstallEnded)
        report = events[-1].report
        if options.get("existing") == "replace":
            replaced = tuple(o.target.split("/")[0] + "/" for o in report.written)
            self.model = {p: f for p, f in self.model.items() if not p.startswith(replaced)}
        for written in report.written:
            file = planned(plan)[written.target]
            bit = file.executable and written.target not in report.not_executable
            self.model[written.target] = attrs.evolve(file, executable=bit)
        return report

    def fits(self, plan: Plan) -> bool:
        """Whether no file stands where the plan needs a folder, or the other way round."""
        old = set(self.model)
        new = {upload.target for upload in plan.uploads}
        return not any(a.startswith(b + "/") or b.startswith(a + "/") for a in old for b in new)

    strategies = st.sampled_from(STRATEGIES)

    @rule(plan=plans(2, 5), strategy=strategies, verify=st.booleans(), skip=st.booleans())
    def install(self, plan: Plan, strategy: Strategy, verify: bool, skip: bool) -> None:
        if self.fits(plan):
            self.put(plan, strategy=strategy, verify=verify, skip_unchanged=skip)
            assert planned(plan).items() <= self.runtime.files.items()

    @rule(plan=plans(2, 5))
    def replace(self, plan: Plan) -> None:
        self.put(plan, existing="replace")

    @rule(plan=plans(2, 5), strategy=strategies, after=st.floats(0, 6))
    def install_and_cancel(self, plan: Plan, strategy: Strategy, after: float) -> None:
        if self.fits(plan):
            self.put(plan, after, strategy=strategy)

    @rule(plan=plans(2, 5), strategy=strategies, data=st.data())
    def install_with_faults(self, plan: Plan, strategy: Strategy, data: st.DataObject) -> None:
        if self.fits(plan):
            targets = [upload.target for upload in plan.uploads]
            self.bad = frozenset(data.draw(st.sets(st.sampled_from(targets))))
            report = self.put(plan, strategy=strategy)
            assert {o.target for o in report.failed} >= self.bad
            self.bad = frozenset()

    @precondition(lambda self: self.last is not None)
    @rule(strategy=strategies)
    def install_the_last_one_again(self, strategy: Strategy) -> None:
        assert self.last is not None
        if self.fits(self.last):
            self.put(self.last, strategy=strategy, skip_unchanged=True)
            assert planned(self.last).items() <= self.runtime.files.items()

    @precondition(lambda self: self.model)
    @rule(data=st.data(), gone=st.booleans())
    def somebody_changes_the_sandbox(self, data: st.DataObject, gone: bool) -> None:
        path = data.draw(st.sampled_from(sorted(self.model)))
        if gone:
            del self.model[path], self.runtime.files[path]
        else:
            self.model[path] = self.runtime.files[path] = MemoryFile(b"other", executable=True)

    @invariant()
    def the_sandbox_is_the_model(self) -> None:
        assert self.runtime.files == self.model

    @invariant()
    def nothing_is_in_flight(self) -> None:
        statistics = self.limits.statistics()
        assert statistics.in_flight == statistics.bytes_in_flight == statistics.tasks_waiting == 0
        assert self.runtime.in_flight == 0

    def teardown(self) -> None:
        self.guest.close()


TestInstalls = Installs.TestCase
TestInstalls.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=20)
