"""`python -m bench soak`: thousands of installs in one process, after which nothing has grown.

Reads `/proc`, so it needs Linux.
"""

from __future__ import annotations

import gc
import itertools
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
import trio
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.load import Figure, Used, in_memory
from bench.workloads import make_skill
from trio_skills import (
    ArchiveCache,
    DestinationError,
    Event,
    InstallEnded,
    InstallError,
    Limits,
    Packing,
    Plan,
    Report,
    RunResult,
    Runtime,
    TransferStarted,
    TransientError,
    install,
    install_sources,
    open_local,
    plan_skills,
)
from trio_skills._threads import MAX_THREADS
from trio_skills.testing import Call, Fault, Latency, MemoryRuntime, PackingMemoryRuntime

ROUNDS = 40
"""How often it is looked at what there is, when nothing is under way."""

RUNS = 4
"""How many Trio runs share the rounds."""

WARM_UP = ROUNDS // 10
"""Rounds in which caches fill and threads start."""

AT_ONCE = 8
"""Installs that are under way at a time, each into a directory of its own."""

GROWTH = 4 * 2**20
"""Bytes by which the last quarter may be above the second: what malloc keeps varies by as much."""

OBJECTS = 500
"""Python objects by which the last quarter may be above the second."""


@attrs.frozen
class Sample:
    """What there was when nothing was under way."""

    installs: int
    """How many had ended."""
    used: Used
    """What this process had."""
    objects: int
    """What the garbage collector knew, after a collection."""
    tasks: int
    """Trio's."""
    litter: int
    """Files and folders that installs made for themselves, and left."""


@attrs.frozen
class Soak:
    """What became of many installs."""

    samples: Sequence[Sample]
    """One for each round."""
    ended: Mapping[str, int]
    """How many installs there were of each kind."""
    seconds: float
    """How long it took."""


@attrs.define
class _Place:
    """Where one after another is installed, and what."""

    folder: Path
    plan: Plan
    held: Plan
    """The same, with its contents in memory."""
    source: Path
    limits: Limits
    archives: ArchiveCache
    numbers: Iterator[int] = attrs.Factory(itertools.count)

    @property
    def sandbox(self) -> Path:
        return self.folder / "sandbox"

    async def local(self, **options: Any) -> Report:  # Any: of install
        async with open_local(self.sandbox) as runtime:
            return await install(self.plan, runtime, limits=self.limits, **options)

    async def memory(self, runtime: Runtime, **options: Any) -> Report:  # Any: of install
        return await install(self.held, runtime, limits=self.limits, **options)


async def _memory_packed(place: _Place) -> Report:
    return await place.memory(PackingMemoryRuntime(), verify=True)


async def _memory_concurrent(place: _Place) -> Report:
    return await place.memory(MemoryRuntime(latency=Latency(round_trip=0.001)))


async def _local_merged(place: _Place) -> Report:
    return await place.local(strategy="packed")


async def _local_cached(place: _Place) -> Report:
    return await place.local(strategy="packed", archives=place.archives)


async def _local_replaced(place: _Place) -> Report:
    return await place.local(strategy="packed", existing="replace")


async def _local_concurrent(place: _Place) -> Report:
    return await place.local(strategy="concurrent")


async def _local_verified(place: _Place) -> Report:
    return await place.local(verify=True)


async def _local_unchanged(place: _Place) -> Report:
    return await place.local(skip_unchanged=True)


async def _failed(place: _Place) -> Report:
    """Fail for one of the files."""
    broken = place.plan.uploads[1].target

    def faults(call: Call) -> Fault | None:
        return Fault(error=OSError("a fault")) if broken in call.targets else None

    try:
        await place.memory(MemoryRuntime(faults=faults))
    except InstallError as exc:
        report = exc.report
    else:
        raise AssertionError("it did not fail")
    assert len(report.failed) == 1
    return report  # noqa: ASYNC910  # `install` has one


async def _retried(place: _Place) -> Report:
    """Fail twice, and go well then."""
    numbers = itertools.count()

    def faults(call: Call) -> Fault | None:
        error = TransientError("busy")
        error.retry_after = 0.001
        return Fault(error=error) if next(numbers) < 2 else None

    report = await place.memory(PackingMemoryRuntime(faults=faults))
    assert report.retries == 2
    return report


async def _refused(place: _Place) -> Report:
    """Refuse to write where something is, which the others have put there."""
    reports: list[Report] = []
    await place.local(strategy="packed")
    try:
        await place.local(existing="error", on_event=_keep_report(reports))
    except DestinationError:
        return reports[0]
    raise AssertionError("it was not refused")


async def _cancelled_in_memory(place: _Place) -> Report:
    runtime = MemoryRuntime(latency=Latency(round_trip=60))
    return await _cancelled(lambda **options: place.memory(runtime, **options))


async def _cancelled_locally(place: _Place) -> Report:
    return await _cancelled(lambda **options: place.local(strategy="concurrent", **options))


async def _cancelled(start: Callable[..., Awaitable[Report]]) -> Report:
    """Cancel an install when its first transfer has begun."""
    reports: list[Report] = []
    keep = _keep_report(reports)
    with trio.CancelScope() as scope:

        def on_event(event: Event) -> None:
            keep(event)
            if isinstance(event, TransferStarted):
                scope.cancel()

        await start(on_event=on_event)
    assert scope.cancelled_caught
    return reports[0]


def _keep_report(reports: list[Report]) -> Callable[[Event], None]:
    def keep(event: Event) -> None:
        if isinstance(event, InstallEnded):
            reports.append(event.report)

    return keep


async def _sources(place: _Place) -> Report:
    """Install a source tree of which a file is new each time."""
    (place.source / "d0" / "f0").write_text(f"{next(place.numbers)}")
    archive = await place.archives.source_archive(place.source, refresh="stat")
    async with open_local(place.folder / "sources") as runtime:
        report = await install_sources(runtime, [archive], limits=place.limits)
    assert len(report.written) == 1
    return report


@attrs.frozen
class _TwoMethods:
    """What any sandbox has."""

    runtime: Runtime

    async def write(self, target: str, data: bytes) -> None:
        await self.runtime.write(target, data)

    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        return await self.runtime.run(argv, env)


async def _by_command(place: _Place) -> Report:
    """Unpack by a command, which is a process of this machine."""
    async with open_local(place.folder / "commands") as runtime:
        packing = Packing(_TwoMethods(runtime))
        return await install(place.plan, packing, limits=place.limits)


KINDS: Mapping[str, Callable[[_Place], Awaitable[Report]]] = {
    kind.__name__.removeprefix("_").replace("_", " "): kind
    for kind in (
        *(_memory_packed, _memory_concurrent, _local_merged, _local_cached, _local_replaced),
        *(_local_concurrent, _local_verified, _local_unchanged, _failed, _retried, _refused),
        *(_cancelled_in_memory, _cancelled_locally, _sources, _by_command),
    )
}
"""What is mixed, in turn."""


def soak(
    folder: Path,
    installs: int,
    on_report: Callable[[Report], object] = lambda report: None,
    on_round: Callable[[Sample], object] = lambda sample: None,
) -> Soak:
    """Install so many times, several at a time, and look after each of `ROUNDS` rounds.

    `on_report` is called after each install: whoever wants to see a leak found makes one there.
    """
    began = time.monotonic()
    places = _places(folder)
    kinds = itertools.cycle(KINDS.items())
    ended: Counter[str] = Counter()
    samples: list[Sample] = []

    async def work(place: _Place, numbers: Iterator[int]) -> None:
        await trio.lowlevel.checkpoint()
        for _ in numbers:
            name, kind = next(kinds)
            on_report(await kind(place))
            ended[name] += 1

    async def run(rounds: Sequence[int]) -> None:
        await trio.lowlevel.checkpoint()
        for number in rounds:
            until = installs * (number + 1) // ROUNDS
            numbers = iter(range(ended.total(), until))
            async with trio.open_nursery() as nursery:
                for place in places:
                    nursery.start_soon(work, place, numbers)
            samples.append(_sample(folder, until))
            on_round(samples[-1])

    for first in range(0, ROUNDS, ROUNDS // RUNS):
        trio.run(run, range(first, first + ROUNDS // RUNS))
    return Soak(samples, ended, time.monotonic() - began)


def _places(folder: Path) -> list[_Place]:
    skills = [make_skill(folder / "skills" / name, 4, 2_000) for name in ("pdf", "xlsx")]
    (skills[0] / "d0" / "f0").chmod(0o755)
    plan = plan_skills(skills)
    held = in_memory(plan)
    limits = Limits(max_in_flight=16, max_bytes=2**20)
    archives = ArchiveCache(max_bytes=100_000)  # too few for all: some are let go of
    return [
        _Place(
            folder=folder / f"{number}",
            plan=plan,
            held=held,
            source=make_skill(folder / f"{number}" / "source", 8, 2_000),
            limits=limits,
            archives=archives,
        )
        for number in range(AT_ONCE)
    ]


def _sample(folder: Path, installs: int) -> Sample:
    gc.collect()
    return Sample(
        installs=installs,
        used=Used.now(),
        objects=len(gc.get_objects()),
        tasks=trio.lowlevel.current_statistics().tasks_living,
        # The notes of what source trees were made of stay: `.trio-skills.sources`.
        litter=sum(1 for _ in folder.rglob(".trio-skills-*")),
    )


def growth(soak: Soak) -> list[Figure]:
    """Return by how much everything grew, beside how much it may."""
    quarter = ROUNDS // 4
    second, last = soak.samples[quarter : 2 * quarter], soak.samples[-quarter:]
    warm = soak.samples[WARM_UP:]

    def grown(of: Callable[[Sample], float]) -> float:
        return statistics.median(map(of, last)) - statistics.median(map(of, second))

    def varied(of: Callable[[Sample], int]) -> int:
        return max(map(of, warm)) - min(map(of, warm))

    quarters = "the last quarter's median above the second's"
    same = "the same after each round"
    return [
        Figure("memory, MiB", grown(lambda s: s.used.memory / 2**20), GROWTH / 2**20, quarters),
        Figure("objects", grown(lambda s: s.objects), OBJECTS, quarters),
        Figure("descriptors", varied(lambda s: s.used.descriptors), 0, same),
        Figure("processes", varied(lambda s: s.used.processes), 0, same),
        Figure("tasks", varied(lambda s: s.tasks), 0, same),
        Figure(
            "threads", varied(lambda s: s.used.threads), MAX_THREADS, "idle ones end, by and by"
        ),
        Figure("litter", max(s.litter for s in soak.samples), 0, "none after any round"),
    ]


def main(
    *,
    installs: Annotated[int, Parameter(help="How many.", validator=Number(gte=ROUNDS))] = 20_000,
) -> None:
    """Install thousands of times, and see whether anything grows."""
    console = Console(width=120, highlight=False)
    with (
        tempfile.TemporaryDirectory(prefix="trio-skills-bench-", dir=fast_disk()) as folder,
        Progress(console=Console(stderr=True)) as progress,
    ):
        task = progress.add_task("installs", total=installs)
        done = soak(
            Path(folder),
            installs,
            on_round=lambda sample: progress.update(task, completed=sample.installs),
        )
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("installs", "MiB", "objects", "descriptors", "threads", "processes", "litter"):
        table.add_column(heading, justify="right")
    for sample in done.samples[WARM_UP - 1 :: WARM_UP]:
        used = sample.used
        counts = (sample.objects, used.descriptors, used.threads, used.processes, sample.litter)
        cells = (f"{count:,}" for count in counts)
        table.add_row(f"{sample.installs:,}", f"{used.memory / 2**20:.1f}", *cells)
    console.print(table)
    console.print(f"\n{done.seconds:,.0f} s; {_kinds(done)}\n")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("growth", "measured", "bound", "", "of"):
        table.add_column(heading, justify="right" if heading in ("measured", "bound") else "left")
    figures = growth(done)
    for figure in figures:
        table.add_row(*figure.row())
    console.print(table)
    if not all(figure.kept for figure in figures):
        raise SystemExit(1)


def fast_disk() -> str | None:
    """Return a folder that is in memory, where there is one; a disk would take most of the time."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _kinds(soak: Soak) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in soak.ended.items())
