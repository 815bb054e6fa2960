"""Watching an install."""

from __future__ import annotations

from contextlib import aclosing

import pytest
import trio
from trio.testing import MockClock

from trio_skills import InstallError, Progress, ProgressTracker, Upload, install, plan_uploads
from trio_skills.testing import Call, Fault, MemoryRuntime


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


async def test_a_watcher_sees_files_and_bytes_grow_to_the_whole(clock: MockClock) -> None:
    plan = plan_uploads(Upload.of(f"{n}", b"12") for n in range(10))
    tracker = ProgressTracker(plan)
    seen: list[Progress] = []

    async def watch() -> None:
        async with aclosing(tracker.progress.eventual_values()) as values:
            async for progress in values:
                seen.append(progress)
                if progress.report is not None:
                    return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        runtime = MemoryRuntime(latency=lambda call: 1.0)
        report = await install(plan, runtime, strategy="sequential", on_event=tracker)
    assert [progress.files_settled for progress in seen] == sorted(
        progress.files_settled for progress in seen
    )
    assert seen[-1] == Progress(10, 20, files_settled=10, bytes_settled=20, report=report)
    assert max(progress.in_flight for progress in seen) == 1


async def test_what_was_unchanged_or_failed_counts_in_the_end() -> None:
    def faults(call: Call) -> Fault | None:
        return Fault(error=OSError("no")) if "b" in call.targets else None

    plan = plan_uploads([Upload.of("a", b""), Upload.of("b", b"1")])
    runtime = MemoryRuntime(faults=faults)
    await install(plan_uploads([Upload.of("a", b"")]), runtime)
    tracker = ProgressTracker(plan)
    with pytest.raises(InstallError):
        await install(plan, runtime, skip_unchanged=True, on_event=tracker)
    progress = tracker.progress.value
    assert (progress.files_settled, progress.files_failed, progress.in_flight) == (2, 1, 0)
