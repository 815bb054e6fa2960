"""What may go well the next time is tried again; what does not is a failure that says so."""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.sources import archive_of, make_small
from tests.ways import every_strategy
from trio_skills import (
    ArchiveCache,
    Event,
    InstallEnded,
    InstallError,
    Limits,
    Plan,
    Report,
    Strategy,
    TransientError,
    Upload,
    install,
    install_sources,
    plan_uploads,
)
from trio_skills.testing import Call, Fault, MemoryRuntime, PackingMemoryRuntime

TARGETS = ("pdf/SKILL.md", "pdf/run", "xlsx/SKILL.md")
PLAN = attrs.evolve(
    plan_uploads([Upload.of(t, t.encode(), executable=t.endswith("run")) for t in TARGETS]),
    folders=("pdf", "xlsx"),
)


def busy(after: float | None = None) -> TransientError:
    error = TransientError("429 Too Many Requests")
    error.retry_after = after
    return error


def first(count: float, *, targets: Iterable[str] = TARGETS, method: str = "write") -> Faults:
    """Let the first `count` calls that carry one of some targets fail."""
    numbers = itertools.count(1)
    wanted = set(targets)

    def faults(call: Call) -> Fault | None:
        is_it = call.method.startswith(method) and (not call.targets or wanted & {*call.targets})
        return Fault(error=busy()) if is_it and next(numbers) <= count else None

    return faults


Faults = Callable[[Call], Fault | None]


@pytest.fixture
def clock() -> MockClock:
    """Named so that every test of this module, which has it as an argument, takes no time."""
    return MockClock(autojump_threshold=0)


async def failed(installing: Awaitable[Report]) -> Report:
    with pytest.raises(InstallError, match="429 Too Many Requests") as caught:
        await installing
    return caught.value.report


class TestRetries:
    @every_strategy
    async def test_what_failed_once_is_tried_again(
        self, clock: MockClock, strategy: Strategy
    ) -> None:
        runtime = PackingMemoryRuntime(faults=first(1))
        report = await install(PLAN, runtime, strategy=strategy, verify=True)
        assert {t: f.data for t, f in runtime.files.items()} == {t: t.encode() for t in TARGETS}
        assert runtime.files["pdf/run"].executable
        assert report.retries == 1
        assert report.round_trips == len(runtime.log)
        assert max(outcome.retries for outcome in report.outcomes) == 1
        assert report.to_dict()["retries"] == 1

    @every_strategy
    async def test_what_outlasts_them_is_a_failure_and_nothing_is_there(
        self, clock: MockClock, strategy: Strategy
    ) -> None:
        runtime = PackingMemoryRuntime(faults=first(math.inf))
        report = await failed(install(PLAN, runtime, strategy=strategy, retries=2))
        assert runtime.files == {}
        assert not report.ok
        assert not report.written
        assert report.failed

    async def test_there_are_as_many_as_was_said(self, clock: MockClock) -> None:
        for retries in range(4):
            runtime = MemoryRuntime(faults=first(math.inf, targets=["pdf/run"]))
            report = await failed(install(PLAN, runtime, retries=retries))
            assert sum(call.targets == ("pdf/run",) for call in runtime.log) == 1 + retries
            assert report.retries == retries
            assert [outcome.retries for outcome in report.outcomes] == [0, retries, 0]

    async def test_less_than_none_makes_no_sense(self) -> None:
        with pytest.raises(ValueError, match="retries is at least 0"):
            await install(PLAN, MemoryRuntime(), retries=-1)

    async def test_files_of_a_failed_batch_share_those_of_the_batch(self, clock: MockClock) -> None:
        runtime = PackingMemoryRuntime(faults=first(math.inf))
        await failed(install(PLAN, runtime, retries=2))
        assert [call.method for call in runtime.log] == ["write_many"] * 3 + ["write"] * 3

    async def test_other_errors_are_not_tried_again(self, clock: MockClock) -> None:
        runtime = MemoryRuntime(faults=lambda call: Fault(error=OSError("no space")))
        with pytest.raises(InstallError):
            await install(PLAN, runtime)
        assert len(runtime.log) == len(TARGETS)

    async def test_what_was_written_though_the_answer_was_lost_is_written_twice(
        self, clock: MockClock
    ) -> None:
        numbers = itertools.count()
        runtime = MemoryRuntime(
            faults=lambda call: Fault(error=busy(), after=True) if next(numbers) < 3 else None
        )
        report = await install(PLAN, runtime, verify=True)
        assert report.ok
        assert report.retries == 3

    async def test_commands_are_tried_again(self, clock: MockClock) -> None:
        runtime = MemoryRuntime(faults=first(2, method="run"))
        report = await install(PLAN, runtime, verify=True, skip_unchanged=True)
        assert report.ok
        assert report.retries == 2
        assert report.round_trips == len(runtime.log)

    async def test_so_are_source_archives(self, clock: MockClock, tmp_path: Path) -> None:
        archive = await archive_of(make_small(tmp_path / "x", "one"))
        runtime = PackingMemoryRuntime(faults=first(2, method="extract", targets=["x"]))
        report = await install_sources(runtime, {"x": archive})
        assert report.ok
        assert (report.retries, report.outcomes[0].retries) == (2, 2)
        assert report.round_trips == len(runtime.log)
        runtime = PackingMemoryRuntime(faults=first(2, method="extract", targets=["x"]))
        await failed(install_sources(runtime, {"x": archive}, retries=1))
        assert runtime.files == {}

    async def test_a_packed_write_that_refuses_what_is_there_is_not(self, clock: MockClock) -> None:
        """It may have been done: then it would refuse what it has written itself."""
        runtime = PackingMemoryRuntime(faults=first(1))
        report = await failed(install(PLAN, runtime, existing="error"))
        assert [call.method for call in runtime.log] == ["run", "write_many"]
        assert report.retries == 0

    @pytest.mark.parametrize("cache", [None, ArchiveCache()])
    async def test_only_the_folders_in_which_something_failed_travel_again(
        self, clock: MockClock, cache: ArchiveCache | None
    ) -> None:
        numbers = itertools.count()
        runtime = PackingMemoryRuntime(
            faults=lambda call: Fault(errors={"pdf/run": busy()}) if next(numbers) < 2 else None
        )
        report = await install(PLAN, runtime, existing="replace", archives=cache)
        assert report.ok
        assert [call.targets for call in runtime.log] == [TARGETS, TARGETS[:2], TARGETS[:2]]

    async def test_what_still_fails_of_a_batch_is_blamed_alone(self, clock: MockClock) -> None:
        runtime = PackingMemoryRuntime(faults=lambda call: Fault(errors={"pdf/run": busy()}))
        report = await failed(install(PLAN, runtime, retries=1))
        assert [outcome.state for outcome in report.outcomes] == ["written", "failed", "written"]


class TestWaits:
    async def waits(self, retries: int, faults: Faults) -> list[float]:
        """Return the seconds between the calls of an install of one file."""
        runtime = MemoryRuntime(faults=faults)
        with suppress(InstallError):
            await install(plan_uploads([Upload.of("f", b"")]), runtime, retries=retries)
        moments = [call.started for call in runtime.log]
        return [late - early for early, late in itertools.pairwise(moments)]

    async def test_they_double_and_are_partly_random_and_bounded(self, clock: MockClock) -> None:
        always = first(math.inf, targets=["f"])
        waits = await self.waits(8, always)
        shortest = [min(0.1 * 2**number, 5.0) for number in range(8)]
        for least, wait in zip(shortest, waits, strict=True):
            assert least - 1e-6 <= wait <= min(least + 0.4, 5.0) + 1e-6
        assert waits != await self.waits(8, always)

    async def test_a_sandbox_may_say_how_long(self, clock: MockClock) -> None:
        numbers = itertools.count()
        afters = [7.0, 0.0, 30.0]

        def faults(call: Call) -> Fault | None:
            number = next(numbers)
            return Fault(error=busy(afters[number])) if number < 3 else None

        assert await self.waits(3, faults) == pytest.approx(afters)

    @pytest.mark.parametrize("after", [61.0, math.inf, math.nan])
    async def test_for_longer_than_a_minute_nobody_waits(
        self, clock: MockClock, after: float
    ) -> None:
        assert await self.waits(3, lambda call: Fault(error=busy(after))) == []

    async def test_who_waits_keeps_his_place(self, clock: MockClock) -> None:
        """So that fewer are sent to a sandbox that has too many."""
        runtime = MemoryRuntime(faults=first(2, targets=["pdf/SKILL.md"]))
        await install(PLAN, runtime, limits=Limits(max_in_flight=1))
        assert [call.targets for call in runtime.log[:4]] == [
            ("pdf/SKILL.md",),
            ("pdf/SKILL.md",),
            ("pdf/SKILL.md",),
            ("pdf/run",),
        ]

    async def test_what_would_outlast_the_deadline_fails_at_once(self, clock: MockClock) -> None:
        """The caller gets a report, with the reason, and in time."""
        runtime = MemoryRuntime(faults=first(math.inf))
        with trio.fail_after(10):
            report = await failed(install(PLAN, runtime, retries=100))
        assert trio.current_time() < 10
        assert len(report.failed) == 3

    async def test_cancelled_in_a_wait_nothing_more_is_sent(self, clock: MockClock) -> None:
        limits = Limits()
        runtime = MemoryRuntime(faults=first(math.inf))
        events: list[Event] = []
        scope = trio.CancelScope()

        async def cancel() -> None:
            await trio.sleep(0.05)  # the first wait is 0.1 s at least
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel)
            with scope:
                await install(PLAN, runtime, limits=limits, on_event=events.append)
        await trio.sleep(100)
        assert scope.cancelled_caught
        assert len(runtime.log) == 3
        assert limits.statistics().in_flight == 0
        assert isinstance(events[-1], InstallEnded)
        assert events[-1].report.summary() == "3 not reached"


@given(
    st.fixed_dictionaries(dict.fromkeys(TARGETS, st.integers(0, 5))),
    st.integers(0, 3),
    st.sampled_from(["sequential", "batched", "concurrent"]),
    st.random_module(),
)
def test_a_file_is_written_if_and_only_if_it_failed_no_more_than_was_allowed(
    failures: dict[str, int], retries: int, strategy: Strategy, schedule: object
) -> None:
    left = dict(failures)

    def faults(call: Call) -> Fault | None:
        [target] = call.targets or [""]
        if left.get(target, 0) == 0:
            return None
        left[target] -= 1
        return Fault(error=busy())

    runtime = MemoryRuntime(faults=faults)
    reports: list[Report] = []

    async def main(plan: Plan) -> None:
        try:
            reports.append(await install(plan, runtime, strategy=strategy, retries=retries))
        except InstallError as exc:
            reports.append(exc.report)

    trio.run(main, PLAN, clock=MockClock(autojump_threshold=0))
    well = {target for target, times in failures.items() if times <= retries}
    assert {outcome.target for outcome in reports[0].written} == well == set(runtime.files)
    assert reports[0].retries == sum(min(times, retries) for times in failures.values())
