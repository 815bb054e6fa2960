"""How far an install is, for whoever wants to watch or wait for it."""

from __future__ import annotations

from typing import final

import attrs
from trio_util import AsyncValue

from trio_skills._events import Event, InstallEnded, TransferEnded, TransferStarted
from trio_skills._plan import Plan
from trio_skills._report import Report


@attrs.frozen
class Progress:
    """Where an install stands."""

    files: int
    """How many files the plan has."""
    size: int
    """How many bytes they have."""
    files_settled: int = 0
    """How many files have an outcome."""
    bytes_settled: int = 0
    """How many bytes those have."""
    files_failed: int = 0
    """How many files have failed."""
    in_flight: int = 0
    """How many transfers are under way."""
    report: Report | None = None
    """The report, once the install has ended, in whatever way."""


@final
class ProgressTracker:
    """Follows an install: pass it as `on_event`, and watch `progress`.

    ```python
    tracker = ProgressTracker(plan)
    nursery.start_soon(watch, tracker)
    await install(plan, runtime, on_event=tracker)


    async def watch(tracker):
        async with aclosing(tracker.progress.eventual_values()) as values:
            async for progress in values:
                print(f"{progress.files_settled}/{progress.files}")
    ```
    """

    progress: AsyncValue[Progress]
    """The latest; `eventual_values`, `transitions` and `wait_value` wait for the next."""

    def __init__(self, plan: Plan) -> None:
        """Follow one install of `plan`."""
        self.progress = AsyncValue(Progress(len(plan.uploads), plan.total_bytes))

    def __call__(self, event: Event) -> None:
        """Take in an event."""
        self.progress.value = _after(event, self.progress.value)


def _after(event: Event, progress: Progress) -> Progress:
    match event:
        case TransferStarted():
            return attrs.evolve(progress, in_flight=progress.in_flight + 1)
        case TransferEnded(outcomes=outcomes):
            return attrs.evolve(
                progress,
                in_flight=progress.in_flight - 1,
                files_settled=progress.files_settled + len(outcomes),
                bytes_settled=progress.bytes_settled + sum(o.size for o in outcomes),
                files_failed=progress.files_failed + sum(o.error is not None for o in outcomes),
            )
        case InstallEnded(report=report):
            # What was unchanged, or failed a check, was in no transfer.
            settled = [o for o in report.outcomes if o.state != "not reached"]
            return attrs.evolve(
                progress,
                in_flight=0,
                files_settled=len(settled),
                bytes_settled=sum(o.size for o in settled),
                files_failed=len(report.failed),
                report=report,
            )
