"""The engine, over sandboxes in memory: what is promised of every install."""

from __future__ import annotations

import itertools
import math
import os
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.trees import make_skill
from tests.ways import every_strategy
from trio_skills import (
    DestinationError,
    Event,
    InstallEnded,
    InstallError,
    Limits,
    PackedResult,
    Plan,
    PlanError,
    RunResult,
    SourceChangedError,
    Strategy,
    Traits,
    TransferEnded,
    TransferStarted,
    Upload,
    UploadError,
    VerifyError,
    install,
    open_local,
    plan_skills,
    plan_uploads,
)
from trio_skills.testing import (
    Call,
    Fault,
    Latency,
    MemoryFile,
    MemoryRuntime,
    PackingMemoryRuntime,
)


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


def files(count: int, *, executables: int = 0, prefix: str = "s/f") -> Plan:
    """Return a plan of files of one byte, the first of which are executable."""
    return plan_uploads(
        Upload.of(f"{prefix}{number:05}", b"x", executable=number < executables)
        for number in range(count)
    )


def holds(runtime: MemoryRuntime, plan: Plan) -> bool:
    """Whether the sandbox holds the plan and nothing else."""
    return runtime.files == {
        upload.target: MemoryFile(bytes(upload.source), upload.executable)
        for upload in plan.uploads
        if isinstance(upload.source, bytes)
    }


def fail_on(*targets: str, error: Exception | None = None) -> Callable[[Call], Fault | None]:
    """Make single writes to some targets fail, and every packed write that holds one."""

    def faults(call: Call) -> Fault | None:
        if set(targets) & set(call.targets):
            return Fault(error=error or OSError(28, "No space left on device"))
        return None

    return faults


class TestEveryTarget:
    @every_strategy
    async def test_gets_one_write_and_one_outcome(
        self, strategy: Strategy, clock: MockClock
    ) -> None:
        plan = files(20, executables=3)
        runtime = PackingMemoryRuntime(latency=Latency.remote())
        report = await install(plan, runtime, strategy=strategy)
        assert holds(runtime, plan)
        written = [target for call in runtime.log for target in call.targets]
        assert sorted(written) == [outcome.target for outcome in report.outcomes]
        assert report.ok
        assert report.strategy == strategy
        assert report.round_trips == len(runtime.log)

    @pytest.mark.parametrize("runtime", [MemoryRuntime(), PackingMemoryRuntime()])
    async def test_an_empty_plan_is_done_at_once(self, runtime: MemoryRuntime) -> None:
        report = await install(plan_uploads([]), runtime, verify=True, skip_unchanged=True)
        assert report.ok
        assert report.summary() == "no files"
        assert runtime.log == []

    async def test_auto_packs_where_the_runtime_can(self) -> None:
        assert (await install(files(2), PackingMemoryRuntime())).strategy == "packed"
        assert (await install(files(2), MemoryRuntime())).strategy == "concurrent"

    async def test_round_trips_do_not_grow_with_the_files(self) -> None:
        """Case 8, vercel/eve#1601: 2,600 of them for 1.3 MB."""
        report = await install(files(2_600), PackingMemoryRuntime())
        assert report.round_trips == 1


class TestTimes:
    """The published figures that the remote model was fitted to, in exact virtual time."""

    @pytest.mark.parametrize(
        ("strategy", "seconds"), [("sequential", 6.10), ("batched", 1.45), ("concurrent", 1.0)]
    )
    async def test_of_32_files(self, strategy: Strategy, seconds: float, clock: MockClock) -> None:
        runtime = MemoryRuntime(latency=Latency.remote())
        report = await install(files(32, executables=1), runtime, strategy=strategy)
        assert report.seconds == pytest.approx(seconds, rel=0.15)
        assert all(o.ended is not None and o.ended <= report.seconds for o in report.outcomes)


class TestFailures:
    @every_strategy
    async def test_every_transfer_settles_before_anything_is_raised(
        self, strategy: Strategy, clock: MockClock
    ) -> None:
        plan = files(20, executables=20)
        order = itertools.count(20, -1)
        runtime = PackingMemoryRuntime(
            latency=lambda call: next(order), faults=fail_on("s/f00003", "s/f00011")
        )
        with pytest.raises(InstallError) as caught:
            await install(plan, runtime, strategy=strategy)
        assert all(call.ended < math.inf for call in runtime.log)
        report = caught.value.report
        assert [outcome.target for outcome in report.failed] == ["s/f00003", "s/f00011"]
        assert len(report.written) == 18
        assert set(runtime.files) == {outcome.target for outcome in report.written}

    @every_strategy
    async def test_chmod_never_runs_after_a_failed_write(self, strategy: Strategy) -> None:
        runtime = PackingMemoryRuntime(faults=fail_on("s/f00001"))
        with pytest.raises(InstallError) as caught:
            await install(files(5, executables=5), runtime, strategy=strategy)
        assert [call for call in runtime.log if call.method == "run"] == []
        assert caught.value.report.not_executable == (
            "s/f00000",
            "s/f00002",
            "s/f00003",
            "s/f00004",
        )
        assert not caught.value.report.ok

    async def test_each_error_has_its_target_and_its_cause(self) -> None:
        runtime = MemoryRuntime(faults=fail_on("s/f00001"))
        with pytest.raises(InstallError, match="1 of 2 files failed") as caught:
            await install(files(2), runtime)
        (error,) = caught.value.exceptions
        assert isinstance(error, UploadError)
        assert error.target == "s/f00001"
        assert isinstance(error.__cause__, OSError)
        assert str(error) == "s/f00001: No space left on device"

    async def test_an_error_without_a_text_is_named_by_its_class(self) -> None:
        """Case 12, PrimeIntellect-ai/prime#903."""
        runtime = MemoryRuntime(faults=fail_on("s/f00000", error=ConnectionResetError()))
        with pytest.raises(InstallError) as caught:
            await install(files(1), runtime)
        assert str(caught.value.exceptions[0]) == "s/f00000: ConnectionResetError"

    async def test_a_batch_that_fails_is_settled_file_by_file(self) -> None:
        plan = files(200, executables=2)
        runtime = PackingMemoryRuntime(faults=fail_on("s/f00150"))
        with pytest.raises(InstallError) as caught:
            await install(plan, runtime)
        assert [outcome.target for outcome in caught.value.report.failed] == ["s/f00150"]
        assert len(caught.value.report.written) == 199

    async def test_a_sandbox_that_is_gone_is_not_asked_for_every_file(self) -> None:
        def gone(call: Call) -> Fault:
            return Fault(error=ConnectionRefusedError("gone"))

        runtime = PackingMemoryRuntime(faults=gone)
        with pytest.raises(InstallError) as caught:
            await install(files(1_000), runtime)
        assert len(caught.value.report.failed) == 3
        assert len(caught.value.report.not_reached) == 997
        assert len(runtime.log) == 4

    async def test_a_single_failure_within_a_packed_write_is_its_own(self) -> None:
        def faults(call: Call) -> Fault:
            return Fault(errors={"s/f00001": PermissionError(13, "Permission denied")})

        runtime = PackingMemoryRuntime(faults=faults)
        with pytest.raises(InstallError) as caught:
            await install(files(3), runtime)
        assert [outcome.target for outcome in caught.value.report.failed] == ["s/f00001"]

    async def test_a_runtime_that_miscounts_its_outcomes_has_failed(self) -> None:
        class Miscounting(PackingMemoryRuntime):
            async def write_many(self, uploads, *, folders, existing):  # type: ignore[no-untyped-def]
                await trio.lowlevel.checkpoint()
                return PackedResult([])

            async def write(self, target: str, data: bytes) -> None:
                await trio.lowlevel.checkpoint()
                raise OSError("no")

        with pytest.raises(InstallError, match="2 of 2 files failed"):
            await install(files(2), Miscounting())

    async def test_a_file_that_changed_after_planning_is_an_error_that_names_it(
        self, tmp_path: Path
    ) -> None:
        pdf = make_skill(tmp_path / "pdf", {"a": b"1", "b": b"2", "c": b"3", "d": b"4"})
        plan = plan_skills([pdf])
        (pdf / "a").write_bytes(b"9")
        (pdf / "b").write_bytes(b"longer")
        (pdf / "c").unlink()
        for runtime in (MemoryRuntime(), PackingMemoryRuntime()):
            with pytest.raises(InstallError) as caught:
                await install(plan, runtime)
            errors = {o.target: o.error and o.error.__cause__ for o in caught.value.report.failed}
            assert {target: type(error) for target, error in errors.items()} == {
                "pdf/a": SourceChangedError,
                "pdf/b": SourceChangedError,
                "pdf/c": FileNotFoundError,
            }
            assert sorted(runtime.files) == ["pdf/SKILL.md", "pdf/d"]

    @every_strategy
    async def test_failures_hold_no_descriptors_and_no_contents(
        self, tmp_path: Path, strategy: Strategy
    ) -> None:
        """A traceback keeps its frames, and those what is in them, for as long as the report."""
        skill = make_skill(tmp_path / "pdf", {f"f{n}": bytes(2**18) for n in range(100)})
        plan = plan_skills([skill])
        for number in range(100):
            (tmp_path / "root" / "pdf" / f"f{number}").mkdir(parents=True)

        def open_files() -> int:
            return len(os.listdir("/proc/self/fd"))

        async with open_local(tmp_path / "root") as runtime:
            before = open_files()
            tracemalloc.start()
            with pytest.raises(InstallError, match="100 of 101") as caught:
                await install(plan, runtime, strategy=strategy)
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert open_files() == before
        assert caught.value.report.failed
        assert held < 2**21  # of 26 MB; tracebacks take the rest

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    async def test_what_is_no_exception_passes_through(self, error: type[BaseException]) -> None:
        class Interrupted(MemoryRuntime):
            async def write(self, target: str, data: bytes) -> None:
                await trio.lowlevel.checkpoint()
                raise error

        limits = Limits()
        with pytest.RaisesGroup(error, flatten_subgroups=True):
            await install(files(3), Interrupted(), limits=limits, strategy="sequential")
        assert limits.statistics().in_flight == 0


class TestExecuteBits:
    async def test_are_set_by_one_command_after_all_writes(self, clock: MockClock) -> None:
        runtime = MemoryRuntime(latency=Latency.remote())
        await install(files(5, executables=2), runtime)
        *writes, chmod = runtime.log
        assert chmod.argv == ("chmod", "+x", "--", "./s/f00000", "./s/f00001")
        assert all(write.ended <= chmod.started for write in writes)

    async def test_a_long_argument_list_is_split(self) -> None:
        """Case 16, langchain-ai/deepagents#2117."""
        plan = files(2_500, executables=2_500, prefix="s/" + "d" * 100)
        runtime = MemoryRuntime()
        await install(plan, runtime, verify=True)
        assert holds(runtime, plan)
        commands = [call.argv for call in runtime.log if call.method == "run"]
        assert len(commands) == 6
        assert max(sum(len(argument) + 1 for argument in argv) for argv in commands) < 128 * 1024

    async def test_a_failing_chmod_fails_those_without_the_bit(self) -> None:
        def faults(call: Call) -> Fault | None:
            return Fault(exit_code=3) if call.argv[:1] == ("chmod",) else None

        runtime = MemoryRuntime(faults=faults)
        plan = files(3, executables=2)
        with pytest.raises(InstallError, match="2 of 3 files failed") as caught:
            await install(plan, runtime)
        assert "chmod failed with exit code 3" in str(caught.value.exceptions[0])

    async def test_a_chmod_that_fails_for_one_file_fails_that_file_alone(self) -> None:
        def faults(call: Call) -> None:
            if call.argv[:1] == ("chmod",):
                del runtime.files["s/f00001"]

        runtime = MemoryRuntime(faults=faults)
        with pytest.raises(InstallError) as caught:
            await install(files(5, executables=4), runtime)
        assert [outcome.target for outcome in caught.value.report.failed] == ["s/f00001"]


class TestVerify:
    @pytest.mark.parametrize("runtime_type", [MemoryRuntime, PackingMemoryRuntime])
    async def test_finds_a_short_write_that_claimed_success(
        self, runtime_type: type[MemoryRuntime]
    ) -> None:
        """Case 9, UKGovernmentBEIS/inspect_k8s_sandbox#225."""
        plan = plan_uploads([Upload.of("a", b"1234"), Upload.of("b", b"")])
        runtime = runtime_type(faults=lambda call: Fault(stored=0.5))
        assert (await install(plan, runtime)).ok  # nobody looked
        with pytest.raises(InstallError) as caught:
            await install(plan, runtime, verify=True)
        (outcome,) = caught.value.report.failed
        assert outcome.target == "a"
        assert outcome.error is not None
        assert isinstance(outcome.error.__cause__, VerifyError)

    async def test_finds_a_lost_execute_bit(self) -> None:
        class Forgetful(PackingMemoryRuntime):
            async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
                self.files = {t: MemoryFile(f.data) for t, f in self.files.items()}
                return await super().run(argv, env)

        with pytest.raises(InstallError, match="1 of 2 files failed") as caught:
            await install(files(2, executables=1), Forgetful(), verify=True)
        assert "has no execute bit" in str(caught.value.exceptions[0])

    async def test_that_cannot_be_done_is_a_failure(self) -> None:
        def faults(call: Call) -> Fault | None:
            return Fault(exit_code=127) if call.method == "run" else None

        with pytest.raises(InstallError, match="2 of 2 files failed"):
            await install(files(2), MemoryRuntime(faults=faults), verify=True)


class TestSkipUnchanged:
    @every_strategy
    async def test_sends_only_what_differs_in_bytes_or_execute_bit(
        self, strategy: Strategy
    ) -> None:
        plan = files(6, executables=3)
        runtime = PackingMemoryRuntime()
        await install(plan, runtime, strategy=strategy)
        runtime.files["s/f00000"] = MemoryFile(b"x", executable=False)
        runtime.files["s/f00005"] = MemoryFile(b"y", executable=False)
        del runtime.files["s/f00003"]
        runtime.log.clear()
        report = await install(plan, runtime, strategy=strategy, skip_unchanged=True)
        assert holds(runtime, plan)
        sent = sorted(target for call in runtime.log for target in call.targets)
        assert sent == ["s/f00000", "s/f00003", "s/f00005"]
        assert report.summary() == "3 written, 3 unchanged"

    async def test_that_cannot_be_told_is_raised_before_anything_is_sent(self) -> None:
        runtime = MemoryRuntime(faults=lambda call: Fault(exit_code=127))
        with pytest.raises(Exception, match="exit code 127"):
            await install(files(2), runtime, skip_unchanged=True)
        assert [call.method for call in runtime.log] == ["run"]


class TestExisting:
    @pytest.fixture
    def plan(self, tmp_path: Path) -> Plan:
        return plan_skills([make_skill(tmp_path / "pdf", {"a": b"1"})])

    @every_strategy
    async def test_merge_keeps_the_other_files(self, plan: Plan, strategy: Strategy) -> None:
        runtime = PackingMemoryRuntime()
        runtime.files["pdf/old"] = MemoryFile(b"")
        await install(plan, runtime, strategy=strategy)
        assert sorted(runtime.files) == ["pdf/SKILL.md", "pdf/a", "pdf/old"]

    async def test_replace_leaves_the_plan_alone(self, plan: Plan) -> None:
        runtime = PackingMemoryRuntime()
        runtime.files |= {"pdf/old": MemoryFile(b""), "pdf-other/x": MemoryFile(b"")}
        await install(plan, runtime, existing="replace")
        assert sorted(runtime.files) == ["pdf-other/x", "pdf/SKILL.md", "pdf/a"]

    @pytest.mark.parametrize("runtime_type", [MemoryRuntime, PackingMemoryRuntime])
    async def test_error_writes_nothing_where_a_folder_is_there(
        self, plan: Plan, runtime_type: type[MemoryRuntime]
    ) -> None:
        runtime = runtime_type()
        await install(plan, runtime, existing="error")
        runtime.log.clear()
        with pytest.raises(DestinationError, match="pdf: it is there already"):
            await install(plan, runtime, existing="error")
        assert [call.method for call in runtime.log] == ["run"]

    async def test_error_holds_for_single_files_too(self) -> None:
        plan = files(3)
        runtime = PackingMemoryRuntime()
        runtime.files["s/f00001"] = MemoryFile(b"mine")
        with pytest.raises(DestinationError, match="s/f00001: it is there already"):
            await install(plan, runtime, existing="error")
        assert runtime.files == {"s/f00001": MemoryFile(b"mine")}

    async def test_a_destination_that_is_a_file_is_refused(self, tmp_path: Path) -> None:
        plan = plan_skills([make_skill(tmp_path / "pdf")], "skills")
        runtime = MemoryRuntime()
        runtime.files["skills"] = MemoryFile(b"")
        with pytest.raises(DestinationError, match="not a folder"):
            await install(plan, runtime, existing="error")


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"strategy": "packed"}, "needs a runtime that can"),
            ({"strategy": "quick"}, "strategy is one of"),
            ({"existing": "keep"}, "existing is one of"),
            ({"existing": "replace"}, "swaps whole folders"),
            ({"strategy": "batched", "batch_size": 0}, "at least 1"),
        ],
    )
    async def test_that_contradict_are_refused(
        self, arguments: dict[str, object], message: str
    ) -> None:
        runtime = MemoryRuntime()
        with pytest.raises(ValueError, match=message):
            await install(files(1), runtime, **arguments)  # type: ignore[arg-type]
        assert runtime.log == []

    async def test_of_the_wrong_type_are_named(self) -> None:
        with pytest.raises(TypeError, match="plan is a Plan"):
            await install("skills/pdf", MemoryRuntime())  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="runtime has the methods"):
            await install(files(1), "local:x")  # type: ignore[arg-type]

    async def test_replace_cannot_skip_files(self) -> None:
        runtime = PackingMemoryRuntime()
        with pytest.raises(ValueError, match="cannot skip unchanged files"):
            await install(files(1), runtime, existing="replace", skip_unchanged=True)

    async def test_names_that_the_runtime_confuses_are_refused(self) -> None:
        plan = plan_uploads([Upload.of("README", b""), Upload.of("readme", b"")])
        runtime = MemoryRuntime(traits=Traits(folds_case=True))
        with pytest.raises(PlanError, match="in case or Unicode"):
            await install(plan, runtime)
        assert runtime.log == []


class TestLimits:
    async def test_bound_what_is_in_flight(self, clock: MockClock) -> None:
        """Case 5, PrimeIntellect-ai/verifiers#2540."""
        runtime = MemoryRuntime(latency=lambda call: 1.0)
        limits = Limits(max_in_flight=10, max_bytes=7)
        await install(files(3_000), runtime, limits=limits)
        assert (runtime.peak_in_flight, runtime.peak_bytes) == (7, 7)
        assert limits.statistics().in_flight == 0

    async def test_are_shared_by_installs(self, clock: MockClock) -> None:
        runtime = MemoryRuntime(latency=lambda call: 1.0)
        limits = Limits(max_in_flight=4)
        async with trio.open_nursery() as nursery:
            for number in range(5):
                plan = files(10, executables=1, prefix=f"s{number}/f")
                nursery.start_soon(partial(install, plan, runtime, limits=limits))
        assert runtime.peak_in_flight == 4
        assert len(runtime.files) == 50

    async def test_what_the_runtime_can_bear_is_respected(self, clock: MockClock) -> None:
        runtime = MemoryRuntime(latency=lambda call: 1.0, traits=Traits(max_in_flight=3))
        await install(files(30, executables=30), runtime)
        assert runtime.peak_in_flight == 3

    async def test_cut_packed_transfers_between_skills(self, tmp_path: Path) -> None:
        skills = [make_skill(tmp_path / f"s{n}", {"x": b"1" * 100, "y": b""}) for n in range(6)]
        plan = plan_skills(skills)
        runtime = PackingMemoryRuntime()
        await install(plan, runtime, limits=Limits(max_bytes=300))
        packed = [{target.split("/")[0] for target in call.targets} for call in runtime.log]
        assert packed == [{"s0", "s1"}, {"s2", "s3"}, {"s4", "s5"}]
        assert runtime.peak_bytes <= 300
        runtime = PackingMemoryRuntime(traits=Traits(max_batch_files=3))
        await install(plan, runtime)
        assert [len(call.targets) for call in runtime.log] == [3] * 6


class TestCancellation:
    @every_strategy
    async def test_no_write_starts_afterwards(self, strategy: Strategy, clock: MockClock) -> None:
        """Case 6, inclusionAI/Avernet#1562: 92 queued writes still ran."""
        runtime = PackingMemoryRuntime(latency=lambda call: 1.0)
        limits = Limits(max_in_flight=8)
        events: list[Event] = []
        with trio.move_on_after(1.5) as scope:
            await install(
                files(2_000), runtime, limits=limits, strategy=strategy, on_event=events.append
            )
        if strategy == "packed":  # one transfer, which was done in time
            assert not scope.cancelled_caught
            return
        assert scope.cancelled_caught
        begun = len(runtime.log)
        assert begun <= 16
        assert runtime.in_flight == 0
        await trio.sleep(10)
        assert len(runtime.log) == begun
        assert limits.statistics().in_flight == limits.statistics().bytes_in_flight == 0
        assert isinstance(events[-1], InstallEnded)
        report = events[-1].report
        assert {outcome.target for outcome in report.written} == set(runtime.files)
        assert len(report.not_reached) == 2_000 - len(runtime.files)

    async def test_nothing_but_cancelled_arrives(self, clock: MockClock) -> None:
        runtime = MemoryRuntime(latency=lambda call: 1.0, faults=fail_on("s/f00003"))
        caught: list[BaseException] = []
        with trio.move_on_after(0.5) as scope:
            try:
                await install(files(20), runtime)
            except BaseException as exc:
                caught.append(exc)
                raise
        assert scope.cancelled_caught
        # In a group, as from every nursery of Trio's that had children.
        (group,) = caught
        assert isinstance(group, BaseExceptionGroup)
        assert group.split(trio.Cancelled)[1] is None

    async def test_an_install_that_was_cancelled_before_does_nothing(self) -> None:
        runtime = MemoryRuntime()
        with trio.CancelScope() as scope:
            scope.cancel()
            await install(files(2), runtime)
        assert scope.cancelled_caught
        assert runtime.log == []


class TestEvents:
    @every_strategy
    async def test_each_transfer_says_when_it_starts_and_ends(
        self, strategy: Strategy, clock: MockClock
    ) -> None:
        events: list[Event] = []
        plan = files(9)
        report = await install(
            plan, PackingMemoryRuntime(), strategy=strategy, on_event=events.append
        )
        started = [event for event in events if isinstance(event, TransferStarted)]
        ended = [event for event in events if isinstance(event, TransferEnded)]
        assert sorted(t for event in started for t in event.targets) == [
            upload.target for upload in plan.uploads
        ]
        assert {event.transfer for event in started} == {event.transfer for event in ended}
        assert events[-1] == InstallEnded(report)

    async def test_a_watcher_that_raises_is_not_called_again_and_hurts_nobody(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls = 0

        def watch(event: Event) -> None:
            nonlocal calls
            calls += 1
            raise ZeroDivisionError

        assert (await install(files(3), MemoryRuntime(), on_event=watch)).ok
        assert calls == 1
        assert "on_event raised" in caplog.text
