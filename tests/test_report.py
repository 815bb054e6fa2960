"""Reports, and the error that carries one."""

from __future__ import annotations

import json
import pickle

import pytest

from trio_skills import InstallError, Outcome, Report, Upload, UploadError, install, plan_uploads
from trio_skills.testing import Fault, MemoryRuntime, PackingMemoryRuntime


def failed(target: str, cause: Exception) -> Outcome:
    return Outcome(target, 1, "failed", UploadError(target, cause), 0.0, 1.0, 0)


@pytest.fixture
def report() -> Report:
    return Report(
        outcomes=(
            failed("a", OSError(28, "No space left on device")),
            failed("b", ValueError("no")),
            Outcome("c", 2, "written", None, 0.0, 0.5, 1),
            Outcome("d", 4, "unchanged"),
            Outcome("e", 8, "not reached"),
        ),
        strategy="concurrent",
        round_trips=3,
        seconds=1.0,
        plan_digest="0" * 64,
    )


@pytest.fixture
def error(report: Report) -> InstallError:
    errors = [outcome.error for outcome in report.failed if outcome.error]
    return InstallError("2 of 5 files failed", errors, report=report)


class TestReport:
    def test_says_how_many_files_ended_in_which_state(self, report: Report) -> None:
        assert report.summary() == "1 written, 1 unchanged, 2 failed, 1 not reached"
        assert not report.ok
        assert report.bytes_written == 2

    def test_of_many_files_counts_them_all(self) -> None:
        outcomes = tuple(Outcome(f"{n:05}", 1, "written") for n in range(2_000))
        report = Report(outcomes, "packed", 1, 0.1, "")
        assert report.summary() == "2,000 written"

    def test_is_not_ok_where_an_execute_bit_is_missing(self) -> None:
        assert not Report((Outcome("a", 1, "written"),), "packed", 1, 0.1, "", ("a",)).ok

    def test_json_has_every_outcome_with_its_cause(self, report: Report) -> None:
        data = json.loads(report.to_json())
        assert [outcome["state"] for outcome in data["outcomes"]] == [
            outcome.state for outcome in report.outcomes
        ]
        assert data["outcomes"][1]["error"] == {"type": "ValueError", "message": "no"}

    def test_the_trace_is_a_chrome_trace(self, report: Report) -> None:
        events = json.loads(report.chrome_trace())["traceEvents"]
        assert [(e["name"], e["ph"], e["ts"], e["dur"]) for e in events] == [
            ("a and 1 more", "X", 0.0, 1e6),
            ("c", "X", 0.0, 5e5),
        ]
        assert events[0]["args"] == {"files": 2, "bytes": 2, "failed": 2}


class TestInstallError:
    def test_split_and_subgroup_keep_the_report(self, error: InstallError, report: Report) -> None:
        full, rest = error.split(lambda e: isinstance(e.__cause__, OSError))
        assert isinstance(full, InstallError)
        assert isinstance(rest, InstallError)
        assert full.report is rest.report is report
        assert len(full.exceptions) == len(rest.exceptions) == 1
        part = error.subgroup(UploadError)
        assert isinstance(part, InstallError)
        assert part.report is report

    def test_except_star_keeps_the_report(self, error: InstallError, report: Report) -> None:
        seen: list[BaseException] = []
        try:
            raise error
        except* UploadError as group:
            seen.append(group)
        assert isinstance(seen[0], InstallError)
        assert seen[0].report is report

    def test_pickle_keeps_the_report(self, error: InstallError) -> None:
        copy = pickle.loads(pickle.dumps(error))
        assert isinstance(copy, InstallError)
        assert copy.report.summary() == error.report.summary()
        assert [str(e) for e in copy.exceptions] == [str(e) for e in error.exceptions]


class TestSecrets:
    @pytest.mark.parametrize("runtime_type", [MemoryRuntime, PackingMemoryRuntime])
    async def test_contents_are_in_no_report_and_no_error(
        self, runtime_type: type[MemoryRuntime]
    ) -> None:
        plan = plan_uploads([Upload.of("a", b"s3cret" * 100)])
        runtime = runtime_type(faults=lambda call: Fault(error=OSError("refused")))
        with pytest.raises(InstallError) as caught:
            await install(plan, runtime)
        report = caught.value.report
        for text in (repr(caught.value), repr(report), report.to_json(), repr(plan)):
            assert "s3cret" not in text
