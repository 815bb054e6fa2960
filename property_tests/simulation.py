"""Installs in virtual time: scenarios, and the checks that hold after each."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from zlib import crc32

import attrs
import trio
from hypothesis import strategies as st
from trio.testing import MockClock

from trio_skills import Limits, Outcome, Plan, Report, Strategy, Traits
from trio_skills.testing import Call, Fault, MemoryFile, MemoryRuntime, PackingMemoryRuntime
from trio_skills.testing.strategies import plans

T = TypeVar("T")

STRATEGIES: tuple[Strategy, ...] = ("sequential", "batched", "concurrent", "packed")


def simulate(
    main: Callable[[], Awaitable[T]], instruments: Sequence[trio.abc.Instrument] = ()
) -> T:
    """Run in virtual time, in which a deadlock is over soon."""

    async def in_time() -> T:
        with trio.fail_after(1e6):
            return await main()

    return trio.run(in_time, clock=MockClock(autojump_threshold=0), instruments=instruments)


@attrs.frozen
class Scenario:
    """An install: what, how, how fast, how much at once, and what goes wrong."""

    plan: Plan
    strategy: Strategy
    batch_size: int
    max_in_flight: int
    max_bytes: int
    delays: list[float]
    """Seconds that calls take, each always the same."""
    bearable: int | None = None
    """How much the runtime says that it can bear at once."""
    batch_files: int | None = None
    """How many files it says that a packed transfer should have."""
    bad: dict[str, str] = attrs.Factory(dict)
    """Targets that cannot be written, and how that goes wrong: one of `FAULTS`, or `short`."""
    bad_command: bool = False

    def limits(self) -> Limits:
        return Limits(self.max_in_flight, self.max_bytes)

    def runtime(self) -> MemoryRuntime:
        kind = PackingMemoryRuntime if self.strategy == "packed" else MemoryRuntime
        traits = Traits(self.bearable, self.batch_files)
        return kind(latency=self.delay, faults=self.fault, traits=traits)

    def delay(self, call: Call) -> float:
        # By what is called, not by when: so that the order of starting changes nothing.
        return self.delays[crc32(repr(call.targets).encode()) % len(self.delays)]

    def fault(self, call: Call) -> Fault | None:
        if call.method == "run":
            return Fault(exit_code=1) if self.bad_command else None
        hit = {target: self.bad[target] for target in call.targets if target in self.bad}
        if not hit:
            return None
        if "short" in hit.values():
            return Fault(stored=0.5)
        error = OSError(5, "a fault that was asked for")
        if call.method == "write_many" and set(hit.values()) == {"alone"}:
            return Fault(errors=dict.fromkeys(hit, error))
        return Fault(error=error, after="after" in hit.values())

    def given_up(self, runtime: MemoryRuntime) -> set[str]:
        """Return the targets that are not tried: in their batch all of the first few failed."""
        given_up: set[str] = set()
        for call in runtime.log:
            hit = {self.bad[target] for target in call.targets if target in self.bad}
            whole = call.method == "write_many" and hit not in (set(), {"alone"})
            if whole and all(target in self.bad for target in call.targets[:3]):
                given_up |= set(call.targets[3:])
        return given_up

    def expected_failures(self, runtime: MemoryRuntime) -> set[str]:
        return set(self.bad) - self.given_up(runtime)


FAULTS = ("before", "after", "alone")
"""An error instead of the effect; one after it; one of this file alone, where many travel."""


@st.composite
def scenarios(
    draw: st.DrawFn, *, faults: Sequence[str] = (), bad_commands: bool = False, max_skills: int = 3
) -> Scenario:
    plan = draw(plans(max_skills))
    targets = [upload.target for upload in plan.uploads]
    bad: st.SearchStrategy[dict[str, str]] = st.just({})
    if faults:
        bad = st.dictionaries(st.sampled_from(targets), st.sampled_from(faults))
    return Scenario(
        plan=plan,
        strategy=draw(st.sampled_from(STRATEGIES)),
        batch_size=draw(st.integers(1, 10)),
        max_in_flight=draw(st.integers(1, 10)),
        max_bytes=draw(st.integers(1, 200)),
        delays=draw(st.lists(st.floats(0, 10), min_size=1, max_size=8)),
        bearable=draw(st.none() | st.integers(1, 4)),
        batch_files=draw(st.none() | st.integers(1, 8)),
        bad=draw(bad),
        bad_command=draw(st.booleans()) if bad_commands else False,
    )


def planned(plan: Plan) -> dict[str, MemoryFile]:
    """Return what a sandbox holds that holds a plan and nothing else."""
    return {
        upload.target: MemoryFile(upload.source, upload.executable)
        for upload in plan.uploads
        if isinstance(upload.source, bytes)
    }


def check_report(report: Report, plan: Plan) -> None:
    """Exactly one outcome for each target, in their order; an error in the failed ones alone."""
    assert [o.target for o in report.outcomes] == [upload.target for upload in plan.uploads]
    for outcome in report.outcomes:
        assert (outcome.error is not None) == (outcome.state == "failed")
        if outcome.error is not None:
            assert outcome.error.target == outcome.target
            assert outcome.error.reason
            assert outcome.error.__cause__ is not None


def check_settled(runtime: MemoryRuntime, limits: Limits) -> None:
    """Nothing is in flight, and the limits are whole."""
    assert runtime.in_flight == runtime.bytes_in_flight == 0
    assert all(call.ended < math.inf for call in runtime.log)
    statistics = limits.statistics()
    assert statistics.in_flight == statistics.bytes_in_flight == statistics.tasks_waiting == 0


def check_bounds(runtime: MemoryRuntime, limits: Limits) -> None:
    """Never more at once than the limits; but what is larger than `max_bytes` goes alone."""
    bounds = limits.statistics()
    assert runtime.peak_in_flight <= bounds.max_in_flight
    for call in runtime.log:
        together = [c for c in runtime.log if c.started < call.ended and call.started < c.ended]
        if call.ended > call.started and call.size >= bounds.max_bytes:
            assert [c for c in together if c.size and c is not call] == []
    largest = max((call.size for call in runtime.log), default=0)
    assert runtime.peak_bytes <= max(bounds.max_bytes, largest)


def check_way(scenario: Scenario, runtime: MemoryRuntime) -> None:
    """The files travelled as the strategy says, and no more at once than the runtime can bear."""
    assert runtime.peak_in_flight <= (scenario.bearable or math.inf)
    writes = [call for call in runtime.log if call.method != "run"]
    if scenario.strategy == "packed":
        for call in writes:
            # Only a skill, which must appear whole, and one file are not cut.
            tops = {target.split("/")[0] for target in call.targets}
            is_one = len(call.targets) == 1 or (len(tops) == 1 and tops <= {*scenario.plan.folders})
            fits = call.size <= scenario.max_bytes
            assert is_one or (fits and len(call.targets) <= (scenario.batch_files or math.inf))
    else:
        assert all(call.method == "write" for call in writes)
        size = {"sequential": 1, "batched": scenario.batch_size}.get(scenario.strategy, 10**9)
        for wave in range(size, len(writes), size):
            ended = max(call.ended for call in writes[:wave])
            assert all(call.started >= ended for call in writes[wave:])


def check_order(runtime: MemoryRuntime) -> None:
    """No command begins before every write has ended."""
    writes = [call.ended for call in runtime.log if call.method != "run"]
    commands = [call.started for call in runtime.log if call.method == "run"]
    assert not commands or not writes or max(writes) <= min(commands)


def failed(outcomes: tuple[Outcome, ...]) -> set[str]:
    return {outcome.target for outcome in outcomes if outcome.state == "failed"}
