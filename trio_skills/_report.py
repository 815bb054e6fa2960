"""What became of every planned file, and the error that carries it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, TypeAlias

import attrs

from trio_skills._errors import Problem, TrioSkillsError, UploadError
from trio_skills._tree import Excluded

State: TypeAlias = Literal["written", "unchanged", "failed", "not reached"]
"""`unchanged`: it was there already. `not reached`: its turn did not come, because the install was
cancelled or the sandbox seems gone; whatever was there is there, unless an answer was lost."""


@attrs.frozen
class Outcome:
    """What became of one planned file."""

    target: str
    """The upload's target."""
    size: int
    """Its bytes."""
    state: State
    """How it ended."""
    error: UploadError | None = None
    """Why it failed, its cause chained. None in every other state."""
    started: float | None = None
    """When its transfer began, in seconds of Trio's clock since the install began."""
    ended: float | None = None
    """When its transfer had settled, in the same seconds."""
    transfer: int | None = None
    """The number of the transfer that carried it; those of one packed transfer share it."""
    retries: int = 0
    """How often that transfer had been tried again, after a `TransientError`, by then."""


@attrs.frozen
class Report:
    """What an install did: one outcome for every planned file, and what it took."""

    outcomes: tuple[Outcome, ...]
    """Sorted by target; exactly one for each upload of the plan."""
    strategy: str
    """How the files travelled."""
    round_trips: int
    """Calls to the runtime: writes, packed writes and commands."""
    seconds: float
    """How long it took, on Trio's clock."""
    plan_digest: str
    """The digest of the plan that was installed."""
    not_executable: tuple[str, ...] = ()
    """Targets that are there without their execute bit: it is set only when all was written."""
    in_place: tuple[str, ...] = ()
    """Skill folders that could not be renamed, because a file system is mounted there or beneath:
    their files were put there one by one, and other files that were there stayed."""
    skills: tuple[str, ...] = ()
    """The names of the plan's skills."""
    excluded: tuple[Excluded, ...] = ()
    """What the plan left out."""
    warnings: tuple[Problem, ...] = ()
    """What the plan warned of."""
    retries: int = 0
    """How many of the round trips were another try, after a `TransientError`."""

    @property
    def ok(self) -> bool:
        """Whether every planned file is in the sandbox as planned."""
        return not self.not_executable and all(
            outcome.state in ("written", "unchanged") for outcome in self.outcomes
        )

    @property
    def written(self) -> tuple[Outcome, ...]:
        """The files that were sent and arrived."""
        return self._in_state("written")

    @property
    def unchanged(self) -> tuple[Outcome, ...]:
        """The files that were there already."""
        return self._in_state("unchanged")

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The files that could not be written, or are not as planned."""
        return self._in_state("failed")

    @property
    def not_reached(self) -> tuple[Outcome, ...]:
        """The files whose turn did not come."""
        return self._in_state("not reached")

    @property
    def bytes_written(self) -> int:
        """The sum of the written files' sizes."""
        return sum(outcome.size for outcome in self.written)

    def summary(self) -> str:
        """Return one line: how many files ended in which state."""
        states = Counter(outcome.state for outcome in self.outcomes)
        counts = [f"{states[s]:,} {s}" for s in ("written", "unchanged", "failed", "not reached")]
        return ", ".join(count for count in counts if not count.startswith("0 ")) or "no files"

    def to_json(self, *, indent: int | None = None) -> str:
        """Return everything as a JSON object. Holds no file's content."""
        return json.dumps(self.to_dict(), indent=indent)

    def to_dict(self) -> dict[str, Any]:  # Any: what JSON can hold
        """Return what `to_json` writes."""
        return {
            "ok": self.ok,
            "summary": self.summary(),
            "strategy": self.strategy,
            "round_trips": self.round_trips,
            "retries": self.retries,
            "seconds": self.seconds,
            "plan_digest": self.plan_digest,
            "bytes_written": self.bytes_written,
            "not_executable": list(self.not_executable),
            "in_place": list(self.in_place),
            "skills": list(self.skills),
            "excluded": [attrs.asdict(excluded) for excluded in self.excluded],
            "warnings": [attrs.asdict(warning) for warning in self.warnings],
            "outcomes": [
                attrs.asdict(outcome) | {"error": _error_to_dict(outcome.error)}
                for outcome in self.outcomes
            ],
        }

    def chrome_trace(self) -> str:
        """Return the transfers as a Chrome trace: open it in a trace viewer, as Perfetto.

        The format is the Trace Event Format's JSON object; times are in microseconds.
        """
        transfers: dict[int, list[Outcome]] = {}
        for outcome in self.outcomes:
            if outcome.transfer is not None:
                transfers.setdefault(outcome.transfer, []).append(outcome)
        events = [_trace_event(n, outcomes) for n, outcomes in sorted(transfers.items())]
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})

    def _in_state(self, state: State) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.state == state)


def _error_to_dict(error: UploadError | None) -> Mapping[str, str] | None:
    if error is None:
        return None
    return {"type": type(error.__cause__ or error).__name__, "message": error.reason}


def _trace_event(number: int, outcomes: Sequence[Outcome]) -> dict[str, Any]:  # Any: JSON
    started = outcomes[0].started or 0.0
    ended = outcomes[0].ended or started
    more = f" and {len(outcomes) - 1} more" if len(outcomes) > 1 else ""
    return {
        "name": outcomes[0].target + more,
        "cat": "transfer",
        "ph": "X",
        "ts": started * 1e6,
        "dur": (ended - started) * 1e6,
        "pid": 0,
        "tid": number,
        "args": {
            "files": len(outcomes),
            "bytes": sum(outcome.size for outcome in outcomes),
            "failed": sum(outcome.state == "failed" for outcome in outcomes),
        },
    }


class InstallError(ExceptionGroup[Exception], TrioSkillsError):
    """Some planned files are not in the sandbox; holds an `UploadError` for each of them.

    Raised after every transfer has settled. `split`, `subgroup` and `except*` keep the report.
    """

    report: Report
    """What became of every planned file, the successes too."""

    # ExceptionGroup makes itself in __new__, and takes no keyword arguments there.
    def __new__(cls, message: str, errors: Sequence[Exception], *, report: Report) -> Self:
        self = super().__new__(cls, message, errors)
        self.report = report
        return self

    def __init__(self, message: str, errors: Sequence[Exception], *, report: Report) -> None:
        super().__init__(message, errors)

    def derive(self, errors: Sequence[Exception], /) -> InstallError:  # type: ignore[override]  # typeshed: a group of anything; this one holds what it held
        """Return a group of some of the errors, with the same report."""
        return type(self)(self.message, errors, report=self.report)

    def __reduce__(self) -> tuple[Any, ...]:  # Any: as in typeshed
        return _rebuild, (type(self), self.message, self.exceptions, self.report)


def install_error(report: Report, what: str = "files") -> InstallError:
    """Return the error for a report in which something failed."""
    errors = [outcome.error for outcome in report.failed if outcome.error is not None]
    message = f"{len(errors)} of {len(report.outcomes)} {what} failed; first {errors[0]}"
    return InstallError(message, errors, report=report)


def _rebuild(
    cls: type[InstallError], message: str, errors: Sequence[Exception], report: Report
) -> InstallError:
    return cls(message, errors, report=report)
