"""`python -m bench load`: many installs at once, and what they take beside its bound.

Reads `/proc`, so it needs Linux.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Self

import attrs
import trio
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from trio.testing import MockClock

from bench.workloads import make_skill
from tests.services import Engine, Unavailable, docker_engine
from trio_skills import (
    ArchiveCache,
    Event,
    Limits,
    Plan,
    Report,
    Runtime,
    Strategy,
    TransferEnded,
    TransferStarted,
    Upload,
    install,
    open_local,
    plan_skills,
)
from trio_skills._threads import MAX_THREADS
from trio_skills.runtimes.docker import open_docker
from trio_skills.testing import Latency, MemoryRuntime, PackingMemoryRuntime

MAX_BYTES = 4 * 2**20
"""Of the limits that are shared: so few that packed transfers reach it, and memory shows it."""

SLOWEST = 3.0
"""How many times the median the slowest install may take, under equal load."""

PER_DIRECTORY = 2
"""Descriptors of a directory that is open: its own, and as it was made, that of the one above."""

PER_THREAD = 8
"""Descriptors of a worker thread that writes skill folders: the folder that they are in, the
workspace with the two folders in it, one that is being made and the one above it, the source."""

PER_CONTAINER = 2
"""Connections of a packed install: one for questions, one that a command took over. A worker thread
has the source open."""

PER_FILE = 1_000
"""Bytes that an install keeps of each planned file: its outcome, the numbers in it, what the memory
runtime notes of the call."""

UNRELATED = 8 * 2**20
"""Bytes that Python and malloc may take whatever is installed: the threads' arenas, above all."""


@attrs.frozen
class Used:
    """What this process has."""

    descriptors: int
    """Open ones."""
    threads: int
    """Of the operating system."""
    processes: int
    """Children that live, or that nobody has waited for."""
    memory: int
    """Bytes that are resident."""

    @classmethod
    def now(cls) -> Self:
        """Return what it has at this moment."""
        with open("/proc/self/statm") as statm:
            resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return cls(
            descriptors=len(os.listdir("/proc/self/fd")) - 1,  # one is the listing's own
            threads=len(os.listdir("/proc/self/task")),
            processes=len(_children()),
            memory=resident,
        )

    def with_most(self, other: Used) -> Used:
        """Return the greater one of each figure."""
        pairs = zip(attrs.astuple(self), attrs.astuple(other), strict=True)
        return Used(*(max(pair) for pair in pairs))

    def above(self, other: Used) -> Used:
        """Return how much more each figure is."""
        pairs = zip(attrs.astuple(self), attrs.astuple(other), strict=True)
        return Used(*(mine - others for mine, others in pairs))


_strangers: set[str] = set()
"""Processes that are no children of this one: to read of each only once who its parent is."""


def _children() -> list[str]:
    found = []
    for pid in {name for name in os.listdir("/proc") if name.isdigit()} - _strangers:
        with suppress(OSError), open(f"/proc/{pid}/stat") as stat:
            parent = int(stat.read().rpartition(")")[2].split()[1])
            if parent == os.getpid():
                found.append(pid)
            else:
                _strangers.add(pid)
    return found


class Watch:
    """Looks, from a thread of its own, at what this process has; `peak` is above the beginning."""

    def __init__(self, every: float = 0.005) -> None:
        """Look again after `every` seconds."""
        self._every = every
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        gc.collect()
        # Trio's idle threads will be used again: then they count.
        idle = sum(thread.name.startswith("Trio thread") for thread in threading.enumerate())
        now = Used.now()
        self._first = attrs.evolve(now, threads=now.threads + 1 - idle)  # and the one that looks
        self._most = self._first
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def peak(self) -> Used:
        """The most until now, above what there was in the beginning."""
        return self._most.above(self._first)

    def _look(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ended.wait(self._every)
            self._most = self._most.with_most(Used.now())


class _Tasks(trio.abc.Instrument):
    """Counts Trio's tasks: exactly, unlike what is looked at now and then."""

    now = 0
    peak = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.now += 1
        self.peak = max(self.peak, self.now)

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        self.now -= 1


@attrs.define
class _InFlight:
    """Counts transfers and their bytes, by their events."""

    now: int = 0
    peak: int = 0
    bytes_now: int = 0
    peak_bytes: int = 0

    def of_install(self) -> Callable[[Event], None]:
        """Return what is to be called with the events of one install."""
        sizes: dict[int, int] = {}

        def on_event(event: Event) -> None:
            if isinstance(event, TransferStarted):
                sizes[event.transfer] = event.size
                self.now += 1
                self.bytes_now += event.size
            elif isinstance(event, TransferEnded):
                self.now -= 1
                self.bytes_now -= sizes.pop(event.transfer)
            self.peak = max(self.peak, self.now)
            self.peak_bytes = max(self.peak_bytes, self.bytes_now)

        return on_event


@attrs.frozen
class Installed:
    """One of the installs."""

    report: Report
    """What it returned."""
    took: float
    """Seconds until it returned: what its caller waits."""

    @property
    def wait(self) -> float:
        """Seconds until the limits had let its last transfer through."""
        return max(outcome.started or 0.0 for outcome in self.report.outcomes)


@attrs.frozen
class Load:
    """What many installs at once took."""

    name: str
    """What was installed into, and how."""
    limits: Limits
    """What they shared."""
    files: int
    """Of the plan that each installed."""
    installed: Sequence[Installed]
    """Each of them."""
    used: Used
    """The most of everything, above what there was before the first sandbox was opened."""
    tasks: int
    """The most tasks that Trio had at once."""
    in_flight: int
    """The most transfers that were under way at once, as their events tell."""
    bytes_in_flight: int
    """The most bytes that those held."""
    descriptors_allowed: int
    """What the sandboxes and the worker threads may hold."""

    @property
    def took(self) -> float:
        """How many times the median the slowest install took: who starves has a large one.

        From the call of `install` until it returns, which is what its caller waits: in the queue of
        the limits, for a worker thread, and in that of the sandbox. The queue of the limits alone
        tells less: where half of the installs are let through at once, the median of that is 0.
        """
        return _slowest([one.took for one in self.installed])

    @property
    def wait(self) -> float:
        """The same of the time until the last transfer was let through, where all have to wait."""
        return _slowest([one.wait for one in self.installed])


def _slowest(seconds: Sequence[float]) -> float:
    median = statistics.median(seconds)
    return max(seconds) / median if median else 1.0 if max(seconds) == 0 else float("inf")


@attrs.frozen
class Figure:
    """Something measured beside its bound."""

    name: str
    """What it is."""
    measured: float
    """How much it was."""
    at_most: float
    """Its bound."""
    because: str
    """Where the bound comes from."""

    @property
    def kept(self) -> bool:
        """Whether the bound is kept."""
        return self.measured <= self.at_most

    def row(self) -> tuple[str, str, str, str, str]:
        """Return it as cells of a table."""
        measured, bound = (
            f"{n:,.4g}" if n < 1e4 else f"{n:,.0f}" for n in (self.measured, self.at_most)
        )
        return self.name, measured, bound, "ok" if self.kept else "MISSED", self.because


def figures(load: Load) -> list[Figure]:
    """Return what was measured, each beside its bound."""
    bounds = load.limits.statistics()
    installs = len(load.installed)
    memory = bounds.max_bytes + installs * load.files * PER_FILE + UNRELATED
    return [
        Figure("transfers in flight", load.in_flight, bounds.max_in_flight, "Limits.max_in_flight"),
        Figure("bytes in flight", load.bytes_in_flight, bounds.max_bytes, "Limits.max_bytes"),
        Figure(
            "tasks",
            load.tasks,
            installs + 2 * bounds.max_in_flight + 8,
            "one per install, two per transfer in flight, Trio's own",
        ),
        Figure("threads", load.used.threads, MAX_THREADS, "MAX_THREADS of worker threads"),
        Figure("processes", load.used.processes, 0, "no command is a process of this machine"),
        Figure(
            "descriptors",
            load.used.descriptors,
            load.descriptors_allowed,
            "what a sandbox holds open, and what a worker thread does",
        ),
        Figure(
            "memory, MiB",
            load.used.memory / 2**20,
            memory / 2**20,
            f"Limits.max_bytes, {PER_FILE:,} bytes per planned file, {UNRELATED >> 20} MiB",
        ),
        Figure("slowest / median", load.took, SLOWEST, "from the call until it returns"),
    ]


def limits() -> Limits:
    """Return what the installs of a load share."""
    return Limits(max_bytes=MAX_BYTES)


def make_plan(folder: Path, size: int = 4_096) -> Plan:
    """Plan three skills of 37 files, three of them executable, beneath `folder`."""
    skills = [
        make_skill(folder / f"skill-{n}", count, size) for n, count in enumerate((12, 12, 10))
    ]
    for skill in skills:
        (skill / "d0" / "f0").chmod(0o755)
    plan = plan_skills(skills)
    assert (len(plan.uploads), len(plan.executables)) == (37, 3)
    return plan


def in_memory(plan: Plan) -> Plan:
    """Return the same plan, with contents in place of files: a mock clock sees no threads."""

    def held(upload: Upload) -> Upload:
        return attrs.evolve(upload, source=upload.read())

    return attrs.evolve(plan, uploads=tuple(map(held, plan.uploads)))


def memory_load(
    plan: Plan, installs: int, strategy: Strategy, limits: Limits, every: float = 0.0
) -> Load:
    """Install into as many sandboxes in memory, each as slow as a remote one, by a mock clock.

    Each install begins `every` seconds after the last one.
    """
    kind = PackingMemoryRuntime if strategy == "packed" else MemoryRuntime
    sandboxes = [kind(latency=Latency.remote()) for _ in range(installs)]

    async def opened(_: AsyncExitStack) -> list[MemoryRuntime]:
        await trio.lowlevel.checkpoint()
        return sandboxes

    clock = MockClock(autojump_threshold=0)
    return _run(f"memory, {strategy}", opened, plan, strategy, limits, every=every, clock=clock)


def local_load(
    plan: Plan,
    installs: int,
    strategy: Strategy,
    limits: Limits,
    folder: Path,
    archives: ArchiveCache | None = None,
) -> Load:
    """Install into as many directories, which are made in `folder`."""

    async def opened(stack: AsyncExitStack) -> list[Runtime]:
        await trio.lowlevel.checkpoint()
        return [
            await stack.enter_async_context(open_local(folder / f"{number}"))
            for number in range(installs)
        ]

    name = f"local, {strategy}{', one ArchiveCache' if archives else ''}"
    load = _run(name, opened, plan, strategy, limits, archives)
    return attrs.evolve(
        load, descriptors_allowed=PER_DIRECTORY * installs + MAX_THREADS * PER_THREAD
    )


def docker_load(plan: Plan, engine: Engine, names: Sequence[str], limits: Limits) -> Load:
    """Install into running containers."""

    async def opened(stack: AsyncExitStack) -> list[Runtime]:
        await trio.lowlevel.checkpoint()
        return [
            await stack.enter_async_context(open_docker(name, "/skills", host=engine.host))
            for name in names
        ]

    load = _run("docker, packed", opened, plan, "packed", limits)
    return attrs.evolve(load, descriptors_allowed=PER_CONTAINER * len(names) + MAX_THREADS)


def _run(
    name: str,
    opened: Callable[[AsyncExitStack], Awaitable[Sequence[Runtime]]],
    plan: Plan,
    strategy: Strategy,
    limits: Limits,
    archives: ArchiveCache | None = None,
    *,
    every: float = 0.0,
    clock: trio.abc.Clock | None = None,
) -> Load:
    """Install a plan into all that is opened, at once."""
    tasks = _Tasks()
    in_flight = _InFlight()
    installed: list[Installed] = []

    async def one(runtime: Runtime, after: float) -> None:
        await trio.sleep(after)
        began = trio.current_time()
        report = await install(
            plan,
            runtime,
            strategy=strategy,
            limits=limits,
            archives=archives,
            on_event=in_flight.of_install(),
        )
        assert report.ok
        installed.append(Installed(report, trio.current_time() - began))

    async def main() -> Used:
        with Watch() as watch:
            async with AsyncExitStack() as stack:
                sandboxes = await opened(stack)
                async with trio.open_nursery() as nursery:
                    for number, runtime in enumerate(sandboxes):
                        nursery.start_soon(one, runtime, number * every)
        return watch.peak

    used = trio.run(main, clock=clock, instruments=[tasks])
    return Load(
        name=name,
        limits=limits,
        files=len(plan.uploads),
        installed=installed,
        used=used,
        tasks=tasks.peak,
        in_flight=in_flight.peak,
        bytes_in_flight=in_flight.peak_bytes,
        descriptors_allowed=0,
    )


@contextmanager
def containers(engine: Engine, count: int) -> Iterator[list[str]]:
    """Start containers, and remove them in the end. Yields their names."""
    engine.image("busybox")  # before several ask for it
    with ExitStack() as stack:
        with ThreadPoolExecutor(4) as pool:
            started = pool.map(lambda _: stack.enter_context(engine.container()), range(count))
            names = list(started)
        yield names


@contextmanager
def loads(*, quick: bool) -> Iterator[list[Callable[[], Load]]]:
    """Yield what runs each load. Where there is no Docker, that is printed instead."""
    many, some, few = (100, 20, 2) if quick else (1_000, 200, 20)
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="trio-skills-bench-")
        folder = Path(stack.enter_context(made))
        plan = make_plan(folder / "skills")
        held = in_memory(plan)

        def local(strategy: Strategy, to: str, archives: ArchiveCache | None = None) -> Load:
            return local_load(plan, some, strategy, limits(), folder / to, archives)

        found = [
            lambda: memory_load(held, many, "packed", limits()),
            lambda: memory_load(held, many, "concurrent", limits()),
            lambda: local("packed", "packed"),
            lambda: local("concurrent", "concurrent"),
            lambda: local("packed", "cache", ArchiveCache()),
        ]
        try:
            engine = stack.enter_context(docker_engine())
        except Unavailable as exc:
            print(f"without Docker: {exc}", file=sys.stderr)
        else:
            names = stack.enter_context(containers(engine, few))
            found.append(lambda: docker_load(plan, engine, names, limits()))
        yield found


def main(
    *,
    quick: Annotated[bool, Parameter(help="A tenth of the installs.", negative=())] = False,
) -> None:
    """Run many installs at once, and see whether what they take keeps its bounds."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("installs", "figure", "measured", "bound", "", "the bound is"):
        table.add_column(heading, justify="right" if heading in ("measured", "bound") else "left")
    kept = True
    with Console(stderr=True).status("many installs at once"), loads(quick=quick) as runs:
        for run in runs:
            load = run()
            name = f"{len(load.installed):,} {load.name}"
            for figure in figures(load):
                table.add_row(name, *figure.row())
                kept &= figure.kept
                name = ""
    Console(width=140, highlight=False).print(table)
    if not kept:
        raise SystemExit(1)
