"""The Trio half of `trio-skills install`: progress while it works, and an end by a signal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import attrs
import trio
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from trio_skills._errors import TrioSkillsError
from trio_skills._events import Event, InstallEnded
from trio_skills._install import install
from trio_skills._plan import Plan
from trio_skills._progress import ProgressTracker
from trio_skills._report import InstallError, Report
from trio_skills._runtime import Runtime
from trio_skills.cli import _signals
from trio_skills.cli._sizes import format_size


@attrs.define
class Ending:
    """How an install ended."""

    report: Report | None = None
    """What was done; None where it did not begin."""
    signal: int | None = None
    """The signal that ended it."""
    refusal: Exception | None = None
    """Why nothing was done."""


async def carry_out(
    plan: Plan,
    runtime: AbstractAsyncContextManager[Runtime],
    options: dict[str, Any],
    console: Console,
    held: Sequence[int],
) -> Ending:
    """Install, until it is done or a signal comes, with a progress bar on a terminal.

    `options` are keyword arguments of `install`, `held` what `_signals.hold` returned. Raises
    nothing that `Ending` can say.
    """
    ending = Ending()
    installing = trio.CancelScope()
    with (
        trio.open_signal_receiver(*_signals.BOTH) as signals,
        _progress_bar(plan, console) as on_progress,
    ):

        def on_event(event: Event) -> None:
            # Not from what `install` returns or raises: a cancelled one does neither.
            if isinstance(event, InstallEnded):
                ending.report = event.report
            on_progress(event)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_by_signal, signals, ending, installing)
            if held:
                ending.signal = held[0]
                installing.cancel()
            with installing:
                try:
                    async with runtime as opened:
                        await install(plan, opened, on_event=on_event, **options)
                except InstallError:
                    pass
                except (TrioSkillsError, ValueError, OSError) as exc:
                    ending.refusal = exc
            nursery.cancel_scope.cancel()
    return ending


async def _end_by_signal(
    signals: AsyncIterator[int], ending: Ending, installing: trio.CancelScope
) -> None:
    times = 0
    async for received in signals:
        times += 1
        ending.signal = ending.signal or received
        installing.cancel()
        if times > 2:
            _signals.obey(received)


@contextmanager
def _progress_bar(plan: Plan, console: Console) -> Iterator[Callable[[Event], None]]:
    """Show files, bytes and rate on a terminal, and nothing elsewhere."""
    tracker = ProgressTracker(plan)
    if not console.is_terminal or console.quiet:
        yield tracker
        return
    columns = (
        SpinnerColumn(),
        TextColumn("Installing"),
        BarColumn(),
        TextColumn("{task.fields[files]}"),
        DownloadColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=plan.total_bytes, files=_files(tracker), rate="")

        def on_event(event: Event) -> None:
            tracker(event)
            done = tracker.progress.value.bytes_settled
            elapsed = bar.tasks[0].elapsed
            rate = f"{format_size(done / elapsed)}/s" if elapsed and done else ""
            bar.update(task, completed=done, files=_files(tracker), rate=rate)

        yield on_event


def _files(tracker: ProgressTracker) -> str:
    progress = tracker.progress.value
    failed = f" ({progress.files_failed:,} failed)" if progress.files_failed else ""
    return f"{progress.files_settled:,}/{progress.files:,} files{failed}"
