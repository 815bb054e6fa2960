"""Installs, reinstalls, removals, faults and cancellations, one after another, beside a dictionary.

A synchronous Hypothesis machine over one live Trio run in guest mode: each rule sends a function
into the run and pumps its queue until the result is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import attrs
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from property_tests.guest_run import GuestRun
from property_tests.simulation import STRATEGIES, planned
from trio_skills import Event, InstallEnded, InstallError, Limits, Plan, Report, Strategy, install
from trio_skills.testing import Call, Fault, MemoryFile, PackingMemoryRuntime
from trio_skills.testing.strategies import plans


def without(files: dict[str, MemoryFile], folders: Iterable[str]) -> dict[str, MemoryFile]:
    below = tuple(f"{folder}/" for folder in folders)
    return {path: file for path, file in files.items() if not path.startswith(below)}


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

    def put(self, plan: Plan, deadline: float = math.inf, **options: Any) -> Report:
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
            put = {outcome.target for outcome in report.written}
            for folder in plan.folders:
                if any(target.startswith(f"{folder}/") for target in put):
                    self.model = without(self.model, [folder])
        for written in report.written:
            file = planned(plan)[written.target]
            bit = file.executable and written.target not in report.not_executable
            self.model[written.target] = attrs.evolve(file, executable=bit)
        return report

    def fits(self, plan: Plan, *, replace: bool = False) -> bool:
        """Whether no file stands where the plan needs a folder, or the other way round."""
        old = set(without(self.model, plan.folders) if replace else self.model)
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
        if self.fits(plan, replace=True):
            others = without(self.model, plan.folders)
            self.put(plan, existing="replace")
            assert self.runtime.files == others | planned(plan)

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
            assert {o.target for o in (*report.failed, *report.not_reached)} >= self.bad
            assert report.ok == (not self.bad)
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
TestInstalls.settings = settings(max_examples=settings().max_examples // 3, stateful_step_count=20)
