"""The group `core`: the engine, a local directory, memory and planning."""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import trio

from bench.measure import Comparison
from bench.workloads import make_skill, peak_of, timed
from trio_skills import (
    Event,
    Limits,
    Plan,
    RunResult,
    Upload,
    install,
    open_local,
    plan_skills,
    plan_uploads,
)

_Work = Callable[[Plan, Path], object]


@contextmanager
def comparisons(*, quick: bool) -> Iterator[list[Comparison]]:
    """Yield what is compared; the files for it are removed in the end.

    What a comparison needs is made when it first runs, which is its warm-up.
    """
    small, large = (1_000, 3_000) if quick else (1_000, 100_000)
    with tempfile.TemporaryDirectory(prefix="trio-skills-bench-") as folder:
        yield [
            *_engine(small, large),
            *_local(Path(folder), 200 if quick else 1_000),
            _plan(Path(folder), 300 if quick else 3_000),
            # 9 MiB: what malloc keeps for each thread depends on the size; there it was the most.
            *_memory(Path(folder), *((128, (32,)) if quick else (1_024, (4, 9, 32)))),
        ]


class _DoesNothing:
    """A runtime whose calls cost a checkpoint, so that the rest is the engine's."""

    async def write(self, target: str, data: bytes) -> None:
        await trio.lowlevel.checkpoint()

    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        await trio.lowlevel.checkpoint()
        return RunResult(0)


def _install(plan: Plan) -> float:
    events: list[Event] = []

    async def main() -> None:
        await install(
            plan,
            _DoesNothing(),
            limits=Limits(),
            strategy="concurrent",
            on_event=events.append,
        )

    seconds = timed(lambda: trio.run(main))
    assert len(events) == 2 * len(plan.uploads) + 1
    return seconds


def _bare_nursery(plan: Plan) -> float:
    runtime = _DoesNothing()
    outcomes: dict[str, Exception | None] = {}

    async def write(upload: Upload) -> None:  # noqa: ASYNC910  # the write has one
        assert isinstance(upload.source, bytes)
        try:
            await runtime.write(upload.target, upload.source)
        except Exception as exc:  # noqa: BLE001  # as the engine does
            outcomes[upload.target] = exc
        else:
            outcomes[upload.target] = None

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for upload in plan.uploads:
                nursery.start_soon(write, upload)

    seconds = timed(lambda: trio.run(main))
    assert len(outcomes) == len(plan.uploads)
    return seconds


def _engine(small: int, large: int) -> Iterator[Comparison]:
    @cache
    def plan(count: int) -> Plan:
        return plan_uploads(Upload.of(f"s/f{number:06}", b"x") for number in range(count))

    def per_file(once: Callable[[Plan], float], count: int) -> float:
        # A thousand files take so little that another process could spoil a single run.
        runs = range(max(1, 10_000 // count))
        return statistics.median(once(plan(count)) for _ in runs) / count

    for count in (small, large):
        yield Comparison(
            f"engine/{count}",
            partial(per_file, _install, count),
            partial(per_file, _bare_nursery, count),
            "a bare nursery, a task for each file, per file",
            unit="µs",
            at_most=3.0,
        )
    yield Comparison(
        "engine/growth",
        partial(per_file, _install, large),
        partial(per_file, _install, small),
        f"{small:,} files; this is {large:,}, per file",
        unit="µs",
        at_most=1.5,
    )
    yield Comparison(
        "engine/growth-of-the-bare-nursery",
        partial(per_file, _bare_nursery, large),
        partial(per_file, _bare_nursery, small),
        f"{small:,} files; this is {large:,}, per file",
        unit="µs",
    )


def _local(folder: Path, count: int) -> Iterator[Comparison]:
    @cache
    def from_files() -> Plan:
        return plan_skills([make_skill(folder / "source" / "skill", count, 4_096)])

    @cache
    def from_memory() -> Plan:
        uploads = tuple(Upload.of(u.target, _content(u)) for u in from_files().uploads)
        return Plan(uploads, folders=from_files().folders)

    async def ours(plan: Plan, root: Path) -> None:
        async with open_local(root) as runtime:
            await install(plan, runtime)

    def loop(plan: Plan, root: Path) -> None:
        made = set()
        for upload in plan.uploads:
            target = os.path.join(root, upload.target)
            if (parent := os.path.dirname(target)) not in made:
                os.makedirs(parent)
                made.add(parent)
            with open(target + ".tmp", "wb") as file:
                file.write(_content(upload))
            os.rename(target + ".tmp", target)

    def into_a_fresh_folder(make_plan: Callable[[], Plan], work: _Work) -> float:
        plan = make_plan()
        root = Path(tempfile.mkdtemp(dir=folder))
        try:
            seconds = timed(lambda: work(plan, root))
            there = sum(path.is_file() for path in root.rglob("*"))
            assert there == len(plan.uploads), f"{there} files, and no temporary one"
        finally:
            shutil.rmtree(root)
        return seconds

    for name, make_plan in (("memory", from_memory), ("files", from_files)):
        yield Comparison(
            f"local/from-{name}",
            partial(into_a_fresh_folder, make_plan, lambda plan, root: trio.run(ours, plan, root)),
            partial(into_a_fresh_folder, make_plan, loop),
            f"a loop: folder, temporary file, rename; {count:,} files of 4 KiB",
            at_most=1.4,
        )


def _content(upload: Upload) -> bytes:
    source = upload.source
    return source if isinstance(source, bytes) else source.read_bytes()


def _plan(folder: Path, count: int) -> Comparison:
    @cache
    def skills() -> list[Path]:
        return [make_skill(folder / "plan" / f"skill-{n}", count // 10, 4_096) for n in range(10)]

    def walk(skills: list[Path]) -> None:
        for skill in skills:
            for directory, _, names in os.walk(skill):
                for name in names:
                    path = os.path.join(directory, name)
                    os.stat(path)
                    with open(path, "rb") as file:
                        file.read()

    def with_skills(work: Callable[[list[Path]], object]) -> float:
        made = skills()
        return timed(lambda: work(made))

    return Comparison(
        "plan",
        partial(with_skills, plan_skills),
        partial(with_skills, walk),
        f"os.walk with a stat and a read; {count:,} files",
        at_most=3.0,
    )


def _memory(folder: Path, mebibytes: int, sizes: Sequence[int]) -> Iterator[Comparison]:
    """Compare the peak of a process that installs with that of one that has nothing to install."""
    nothing = make_skill(folder / "nothing" / "nothing", 0, 0)

    @cache
    def skill(size: int) -> Path:
        skill = make_skill(folder / "memory" / f"files-of-{size}", 0, 0)
        for number in range(mebibytes // size):
            with open(skill / f"{number}", "wb") as file:
                file.truncate(size * 2**20)
        return skill

    def peak(source: Path, strategy: str) -> float:
        root = Path(tempfile.mkdtemp(dir=folder))
        arguments = ["install", str(source), "--to", str(root), "--strategy", strategy]
        try:
            return peak_of([*arguments, "--max-bytes", "64MiB"])
        finally:
            shutil.rmtree(root)

    def peak_of_files(size: int, strategy: str) -> float:
        return peak(skill(size), strategy)

    for strategy, size in itertools.product(("packed", "concurrent"), sizes):
        yield Comparison(
            f"memory/{strategy}/{size}MiB",
            partial(peak_of_files, size, strategy),
            partial(peak, nothing, strategy),
            f"an empty skill; {mebibytes:,} MiB in files of {size} MiB, --max-bytes 64MiB",
            unit="MiB",
            at_most=128.0,
        )
