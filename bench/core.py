"""The group `core`: the engine, a local directory, memory and planning."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import trio

from bench.measure import Comparison, Measure
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

SKILL_MD = b"---\nname: %s\ndescription: For measuring.\n---\n"


@contextmanager
def comparisons(*, quick: bool) -> Iterator[list[Comparison]]:
    """Yield what is compared; the files for it are removed in the end."""
    small, large = (1_000, 10_000) if quick else (1_000, 100_000)
    with tempfile.TemporaryDirectory(prefix="trio-skills-bench-") as folder:
        yield [
            *_engine(small, large),
            *_local(Path(folder), 200 if quick else 1_000),
            _plan(Path(folder), 300 if quick else 3_000),
            *_memory(Path(folder), 128 if quick else 1_024),
        ]


class _DoesNothing:
    """A runtime whose calls cost a checkpoint, so that the rest is the engine's."""

    async def write(self, target: str, data: bytes) -> None:
        await trio.lowlevel.checkpoint()

    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        await trio.lowlevel.checkpoint()
        return RunResult(0)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _engine(small: int, large: int) -> Iterator[Comparison]:
    plans = {
        count: plan_uploads(Upload.of(f"s/f{number:06}", b"x") for number in range(count))
        for count in (small, large)
    }

    def ours(count: int) -> float:
        events: list[Event] = []

        async def main() -> None:
            limits = Limits()
            await install(plans[count], _DoesNothing(), limits=limits, on_event=events.append)

        return _timed(lambda: trio.run(main)) / count

    def bare(count: int) -> float:
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
                for upload in plans[count].uploads:
                    nursery.start_soon(write, upload)

        return _timed(lambda: trio.run(main)) / count

    for count in (small, large):
        yield Comparison(
            f"engine/{count}",
            partial(ours, count),
            partial(bare, count),
            "a bare nursery, a task for each file, per file",
            unit="µs",
            at_most=3.0,
        )
    yield Comparison(
        "engine/growth",
        partial(ours, large),
        partial(ours, small),
        f"{small:,} files; this is {large:,}, per file",
        unit="µs",
        at_most=1.5,
    )
    yield Comparison(
        "engine/growth-of-the-bare-nursery",
        partial(bare, large),
        partial(bare, small),
        f"{small:,} files; this is {large:,}, per file",
        unit="µs",
    )


def _local(folder: Path, count: int) -> Iterator[Comparison]:
    source = _make_skill(folder / "source" / "skill", count, 4_096)
    from_files = plan_skills([source])
    from_memory = Plan(
        uploads=tuple(
            Upload.of(upload.target, upload.source.read_bytes())
            for upload in from_files.uploads
            if isinstance(upload.source, Path)
        ),
        folders=from_files.folders,
    )

    def ours(plan: Plan) -> Measure:
        async def main(root: Path) -> None:
            async with open_local(root) as runtime:
                await install(plan, runtime)

        return lambda: _into_a_fresh_folder(folder, lambda root: trio.run(main, root))

    def loop(plan: Plan) -> Measure:
        def write(root: Path) -> None:
            for upload in plan.uploads:
                target = os.path.join(root, upload.target)
                source = upload.source
                os.makedirs(os.path.dirname(target), exist_ok=True)
                data = source if isinstance(source, bytes) else source.read_bytes()
                with open(target + ".tmp", "wb") as file:
                    file.write(data)
                os.rename(target + ".tmp", target)

        return lambda: _into_a_fresh_folder(folder, write)

    against = f"a loop: makedirs, temporary file, rename; {count:,} files of 4 KiB"
    for name, plan in (("memory", from_memory), ("files", from_files)):
        yield Comparison(f"local/from-{name}", ours(plan), loop(plan), against, at_most=1.4)


def _into_a_fresh_folder(folder: Path, work: Callable[[Path], object]) -> float:
    root = Path(tempfile.mkdtemp(dir=folder))
    try:
        return _timed(lambda: work(root))
    finally:
        shutil.rmtree(root)


def _plan(folder: Path, count: int) -> Comparison:
    skills = [_make_skill(folder / "plan" / f"skill-{n}", count // 10, 4_096) for n in range(10)]

    def walk() -> None:
        for skill in skills:
            for directory, _, names in os.walk(skill):
                for name in names:
                    path = os.path.join(directory, name)
                    os.stat(path)
                    with open(path, "rb") as file:
                        file.read()

    return Comparison(
        "plan",
        lambda: _timed(lambda: plan_skills(skills)),
        lambda: _timed(walk),
        f"os.walk with a stat and a read; {count:,} files",
        at_most=3.0,
    )


def _memory(folder: Path, mebibytes: int) -> Iterator[Comparison]:
    """Compare the peak of a process that installs with that of one that has nothing to install."""
    large = folder / "memory" / "large"
    large.mkdir(parents=True)
    (large / "SKILL.md").write_bytes(SKILL_MD % b"large")
    for number in range(mebibytes // 4):
        with open(large / f"{number}", "wb") as file:
            file.truncate(4 * 2**20)
    nothing = _make_skill(folder / "nothing" / "nothing", 0, 0)

    def peak(source: Path, strategy: str) -> float:
        root = Path(tempfile.mkdtemp(dir=folder))
        command = [sys.executable, "-m", "bench.peak", str(source), str(root), strategy]
        try:
            return float(subprocess.check_output(command, text=True)) / 1024
        finally:
            shutil.rmtree(root)

    for strategy in ("packed", "concurrent"):
        yield Comparison(
            f"memory/{strategy}",
            partial(peak, large, strategy),
            partial(peak, nothing, strategy),
            f"an empty skill; {mebibytes:,} MiB in files of 4 MiB under 64 MiB in flight",
            unit="MiB",
            at_most=128.0,
        )


def _make_skill(folder: Path, count: int, size: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_bytes(SKILL_MD % folder.name.encode())
    for number in range(count):
        path = folder / f"d{number % 10}" / f"f{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(size))
    return folder
