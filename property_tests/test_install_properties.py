"""The promises of an install, for any plan, limits, latencies, faults, schedule and cancellation.

Each takes `st.random_module()`: Trio shuffles its tasks with `random`, which Hypothesis otherwise
seeds the same way for every example, so that one schedule alone would be seen.
"""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from property_tests.simulation import (
    FAULTS,
    Scenario,
    check_bounds,
    check_order,
    check_report,
    check_settled,
    check_way,
    failed,
    planned,
    scenarios,
    simulate,
)
from trio_skills import (
    Event,
    InstallEnded,
    InstallError,
    Limits,
    Plan,
    Report,
    UploadError,
    install,
)
from trio_skills.testing import MemoryFile, MemoryRuntime

schedules = st.random_module()


async def carry_out(
    scenario: Scenario, runtime: MemoryRuntime, limits: Limits, **options: Any
) -> tuple[Report, InstallError | None]:
    try:
        report = await install(
            scenario.plan,
            runtime,
            limits=limits,
            strategy=scenario.strategy,
            batch_size=scenario.batch_size,
            **options,
        )
    except InstallError as error:
        return error.report, error
    return report, None


@given(scenarios(), st.booleans(), schedules)
def test_every_target_gets_exactly_one_write_and_one_outcome(
    scenario: Scenario, verify: bool, schedule: object
) -> None:
    runtime, limits = scenario.runtime(), scenario.limits()
    report, error = simulate(partial(carry_out, scenario, runtime, limits, verify=verify))
    assert error is None
    assert report.ok
    check_report(report, scenario.plan)
    written = [target for call in runtime.log for target in call.targets]
    assert sorted(written) == [upload.target for upload in scenario.plan.uploads]
    assert runtime.files == planned(scenario.plan)
    assert report.round_trips == len(runtime.log)
    check_settled(runtime, limits)
    check_bounds(runtime, limits)
    check_way(scenario, runtime)
    check_order(runtime)


@given(scenarios(faults=FAULTS, bad_commands=True), schedules)
def test_everything_settles_before_exactly_the_failures_are_raised(
    scenario: Scenario, schedule: object
) -> None:
    runtime, limits = scenario.runtime(), scenario.limits()
    raised_at = []

    async def main() -> tuple[Report, InstallError | None]:
        result = await carry_out(scenario, runtime, limits)
        raised_at.append(trio.current_time())
        return result

    report, error = simulate(main)
    check_settled(runtime, limits)
    check_bounds(runtime, limits)
    check_way(scenario, runtime)
    check_order(runtime)
    check_report(report, scenario.plan)
    assert all(call.ended <= raised_at[0] for call in runtime.log)
    assert report.round_trips == len(runtime.log)
    commands = [call for call in runtime.log if call.method == "run"]
    if scenario.bad:
        assert commands == []  # no chmod after a failure
        assert failed(report.outcomes) == scenario.expected_failures(runtime)
        not_reached = {outcome.target for outcome in report.not_reached}
        assert not_reached == scenario.given_up(runtime)
    elif scenario.bad_command and commands:
        assert failed(report.outcomes) == set(scenario.plan.executables)
    else:
        assert report.ok
    assert (error is None) == (not report.failed)
    expected = planned(scenario.plan)
    for outcome in report.outcomes:
        there = runtime.files.get(outcome.target)
        if outcome.state == "written":
            assert there is not None
            assert there.data == expected[outcome.target].data
            without_bit = outcome.target in report.not_executable
            assert there.executable == (expected[outcome.target].executable and not without_bit)
    assert runtime.files.keys() <= expected.keys()


@given(scenarios(faults=["short"]), schedules)
def test_verify_blames_exactly_what_did_not_arrive_whole(
    scenario: Scenario, schedule: object
) -> None:
    runtime, limits = scenario.runtime(), scenario.limits()
    report, _error = simulate(partial(carry_out, scenario, runtime, limits, verify=True))
    check_settled(runtime, limits)
    check_report(report, scenario.plan)
    expected = planned(scenario.plan)
    short = {target for target in expected if runtime.files[target] != expected[target]}
    assert failed(report.outcomes) == short
    assert {target for target in scenario.bad if expected[target].data} <= short


@given(scenarios(faults=FAULTS, bad_commands=True), schedules)
def test_an_install_error_is_split_and_copied_with_its_report(
    scenario: Scenario, schedule: object
) -> None:
    _, error = simulate(partial(carry_out, scenario, scenario.runtime(), scenario.limits()))
    if error is None:
        return
    targets = [e.target for e in error.exceptions if isinstance(e, UploadError)]
    assert targets == sorted(failed(error.report.outcomes))
    some, others = error.split(lambda e: len(str(e)) % 2 == 0)
    parts = [part for part in (some, others) if part is not None]
    assert sum(len(part.exceptions) for part in parts) == len(error.exceptions)
    parts += filter(None, [error.subgroup(lambda e: len(str(e)) % 2 == 0)])
    assert all(isinstance(p, InstallError) and p.report is error.report for p in parts)
    copy = pickle.loads(pickle.dumps(error))
    assert copy.report.to_json() == error.report.to_json()
    assert list(map(str, copy.exceptions)) == list(map(str, error.exceptions))
    assert all(isinstance(e.__cause__, Exception) for e in copy.exceptions)


@given(
    scenarios(max_skills=2),
    st.lists(scenarios(max_skills=2), min_size=1, max_size=3),
    st.floats(0, 30),
    schedules,
)
def test_installs_that_share_limits_keep_them_together(
    scenario: Scenario, others: list[Scenario], moment: float, schedule: object
) -> None:
    """One of them is cancelled, which hinders no other."""
    # One log of all of them, and nothing that one alone keeps to.
    scenario = attrs.evolve(scenario, bearable=None, batch_files=None)
    runtime, limits = scenario.runtime(), scenario.limits()
    reports: list[Report] = []

    async def main() -> None:
        async def put(other: Scenario) -> None:
            same_way = attrs.evolve(other, strategy=scenario.strategy)
            report, error = await carry_out(same_way, runtime, limits)
            assert error is None
            reports.append(report)

        async def put_and_cancel() -> None:
            with trio.move_on_after(moment):
                await carry_out(scenario, runtime, limits)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(put_and_cancel)
            for number, other in enumerate(others):
                nursery.start_soon(put, attrs.evolve(other, plan=moved(other.plan, f"{number}")))

    simulate(main)
    assert len(reports) == len(others)
    assert all(report.ok for report in reports)
    check_settled(runtime, limits)
    check_bounds(runtime, limits)


def moved(plan: Plan, dest: str) -> Plan:
    """Return the plan for another folder."""
    return attrs.evolve(
        plan,
        uploads=tuple(attrs.evolve(u, target=f"{dest}/{u.target}") for u in plan.uploads),
        folders=tuple(f"{dest}/{folder}" for folder in plan.folders),
    )


@given(scenarios(faults=FAULTS), st.floats(0, 30), st.booleans(), schedules)
def test_after_a_cancellation_nothing_starts_and_nothing_is_left(
    scenario: Scenario, moment: float, skip_unchanged: bool, schedule: object
) -> None:
    runtime, limits = scenario.runtime(), scenario.limits()
    events: list[Event] = []
    finished = []

    async def main() -> None:
        with trio.move_on_after(moment) as scope:
            await carry_out(
                scenario,
                runtime,
                limits,
                on_event=events.append,
                skip_unchanged=skip_unchanged,
            )
            finished.append(True)
        assert scope.cancelled_caught == (not finished)
        assert all(call.started <= scope.deadline for call in runtime.log)
        begun = len(runtime.log)
        check_settled(runtime, limits)
        await trio.sleep(100)
        assert len(runtime.log) == begun

    simulate(main)
    check_interrupted(scenario, runtime, events)


@given(scenarios(faults=FAULTS, max_skills=2), st.integers(), st.booleans(), st.booleans())
@settings(max_examples=settings().max_examples // 4)  # each is as many runs as it has steps
def test_cancelled_at_every_step_of_the_scheduler_it_is_the_same(
    scenario: Scenario, seed: int, verify: bool, skip_unchanged: bool
) -> None:
    options = {"verify": verify, "skip_unchanged": skip_unchanged}
    for step in itertools.count(1):
        random.seed(seed)  # the same schedule, up to the cancellation
        if not cancelled_at(step, scenario, options):
            return


def cancelled_at(step: int, scenario: Scenario, options: dict[str, bool]) -> bool:
    """Install, cancel at a step, check, and return whether the step came before the end."""
    runtime, limits = scenario.runtime(), scenario.limits()
    events: list[Event] = []
    begun: list[int] = []
    instrument = CancelAtStep(step, lambda: begun.append(len(runtime.log)))

    async def main() -> bool:
        with instrument.scope as scope:
            await carry_out(scenario, runtime, limits, on_event=events.append, **options)
        check_settled(runtime, limits)
        return scope.cancelled_caught

    cancelled = simulate(main, [instrument])
    if not cancelled:
        assert scenario.bad or runtime.files == planned(scenario.plan)
    if begun:
        assert len(runtime.log) == begun[0]  # no write, and no command, started afterwards
    if events:
        check_interrupted(scenario, runtime, events)
    return cancelled


class CancelAtStep(trio.abc.Instrument):
    """Cancels a scope before the n-th step of any task."""

    def __init__(self, step: int, then: Callable[[], object] = lambda: None) -> None:
        self.scope = trio.CancelScope()
        self.left = step
        self.then = then

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.left -= 1
        if self.left == 0:
            self.scope.cancel()
            self.then()


def check_interrupted(scenario: Scenario, runtime: MemoryRuntime, events: list[Event]) -> None:
    """The last event's report agrees with the sandbox."""
    assert isinstance(events[-1], InstallEnded)
    report = events[-1].report
    check_report(report, scenario.plan)
    assert report.round_trips == len(runtime.log)
    expected = planned(scenario.plan)
    # Written, but the answer was lost, and the cancellation came before it was tried again.
    unanswered = {
        target
        for call in runtime.log
        if any(scenario.bad.get(target) == "after" for target in call.targets)
        for target in call.targets
    }
    for outcome in report.outcomes:
        there = runtime.files.get(outcome.target)
        match outcome.state:
            case "written":
                assert there is not None
                assert there.data == expected[outcome.target].data
                if outcome.target not in report.not_executable:
                    assert there.executable == expected[outcome.target].executable
            case "not reached":
                assert there is None or outcome.target in unanswered
            case _:
                assert outcome.target in scenario.expected_failures(runtime)


@given(scenarios(), scenarios(), schedules)
def test_skipping_what_is_unchanged_ends_with_the_plan_all_the_same(
    scenario: Scenario, before: Scenario, schedule: object
) -> None:
    runtime, limits = scenario.runtime(), scenario.limits()
    runtime.files = {
        target: MemoryFile(file.data, not file.executable) if len(target) % 2 else file
        for target, file in planned(before.plan).items()
        if target in planned(scenario.plan)
    }
    unchanged = {t for t, f in runtime.files.items() if f == planned(scenario.plan)[t]}
    report, _error = simulate(partial(carry_out, scenario, runtime, limits, skip_unchanged=True))
    assert report.ok
    assert {outcome.target for outcome in report.unchanged} == unchanged
    assert runtime.files == planned(scenario.plan)
