"""The Trio half of `trio-skills install`: progress while it works, and an end by a signal."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import trio
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TransferSpeedColumn,
)

from trio_skills._errors import TrioSkillsError
from trio_skills._events import Event, InstallEnded
from trio_skills._install import install
from trio_skills._plan import Plan
from trio_skills._progress import ProgressTracker
from trio_skills._report import InstallError, Report
from trio_skills.runtimes import open_runtime


@attrs.define
class Ending:
    """How an install ended."""

    report: Report | None = None
    """What was done; None where it did not begin."""
    signal: int | None = None
    """The signal that ended it."""
    refusal: Exception | None = None
    """Why nothing was done."""


async def carry_out(plan: Plan, url: str, options: dict[str, Any], console: Console) -> Ending:
    """Install, until it is done or a signal comes, with a progress bar on a terminal.

    `options` are keyword arguments of `install`. Raises nothing that `Ending` can say.
    """
    ending = Ending()
    with (
        _progress_bar(plan, console) as on_progress,
        trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals,
    ):

        def on_event(event: Event) -> None:
            if isinstance(event, InstallEnded):
                ending.report = event.report
            on_progress(event)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_by_signal, signals, ending, nursery.cancel_scope)
            try:
                async with open_runtime(url) as runtime:
                    await install(plan, runtime, on_event=on_event, **options)
            except InstallError:
                pass  # its report came with the event
            except (TrioSkillsError, ValueError, OSError) as exc:
                ending.refusal = exc
            nursery.cancel_scope.cancel()
    return ending


async def _end_by_signal(
    signals: AsyncIterator[int], ending: Ending, scope: trio.CancelScope
) -> None:
    async for received in signals:
        if ending.signal is not None:
            # Asked twice: what still runs may hang, and its owner wants out.
            signal.signal(received, signal.SIG_DFL)
            os.kill(os.getpid(), received)
        ending.signal = received
        scope.cancel()


@contextmanager
def _progress_bar(plan: Plan, console: Console) -> Iterator[Callable[[Event], None]]:
    """Show files, bytes and rate on a terminal, and nothing elsewhere."""
    tracker = ProgressTracker(plan)
    if not console.is_terminal or console.quiet:
        yield tracker
        return
    columns = (
        TextColumn("Installing"),
        BarColumn(),
        TextColumn("{task.fields[files]}"),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=plan.total_bytes, files=_files(tracker))

        def on_event(event: Event) -> None:
            tracker(event)
            bar.update(task, completed=tracker.progress.value.bytes_settled, files=_files(tracker))

        yield on_event


def _files(tracker: ProgressTracker) -> str:
    progress = tracker.progress.value
    failed = f" ({progress.files_failed:,} failed)" if progress.files_failed else ""
    return f"{progress.files_settled:,}/{progress.files:,} files{failed}"
