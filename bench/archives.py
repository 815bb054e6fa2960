"""The group `archives`: building one, asking for one that is held, and looking for changes."""

from __future__ import annotations

import gzip
import io
import os
import statistics
import tarfile
import tempfile
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import trio

from bench.measure import Comparison
from bench.workloads import peak_of, timed
from trio_skills import Archive, ArchiveCache, Refresh
from trio_skills._compress import Compression, compressor

PACKAGES = (
    *("attr", "attrs", "h11", "httpcore2", "markdown_it", "mdurl", "outcome", "pathspec", "trio"),
)
"""Packages that are installed wherever this library is: about 330 files, 2.7 MB."""

CALLS = 5


@contextmanager
def comparisons(*, quick: bool) -> Iterator[list[Comparison]]:
    """Yield what is compared; the files for it are removed in the end."""
    with tempfile.TemporaryDirectory(prefix="trio-skills-bench-") as folder:
        yield [
            *_first_build(),
            *_held(),
            *_refresh(Path(folder), 300 if quick else 3_000),
            *_heartbeat(Path(folder), 5 if quick else 50),
            *_compressors(),
            _memory(Path(folder), 128 if quick else 1_024),
        ]


@cache
def _root() -> Path:
    spec = find_spec("trio")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent.parent


async def _ask(archives: ArchiveCache, **options: Compression | Refresh) -> Archive:
    return await archives.source_archive(_root(), PACKAGES, **options)  # type: ignore[arg-type]  # which option has which type


def _build(compression: Compression = "gzip") -> Archive:
    """Return a new archive, made as the first one of a process is."""
    return trio.run(partial(_ask, ArchiveCache(), compression=compression))


def _by_tarfile() -> bytes:
    def is_wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if "__pycache__" in member.name else member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for package in PACKAGES:
            tar.add(_root() / package, package, filter=is_wanted)
    return buffer.getvalue()


def _first_build() -> Iterator[Comparison]:
    against = "tarfile.open(mode='w:gz') with its defaults"
    yield Comparison(
        "first", lambda: timed(_build), lambda: timed(_by_tarfile), against, at_most=1 / 8
    )
    yield Comparison(
        "first/bytes",
        lambda: len(_build().data) / 2**10,
        lambda: len(_by_tarfile()) / 2**10,
        against,
        unit="KiB",
        at_most=1.25,
    )


def _held() -> Iterator[Comparison]:
    async def calls(archives: ArchiveCache, each: Callable[[], ArchiveCache]) -> float:
        await _ask(archives)
        start = time.perf_counter()
        for _ in range(CALLS - 1):
            await _ask(each())
        return (time.perf_counter() - start) / (CALLS - 1)

    def seconds(*, is_held: bool) -> float:
        archives = ArchiveCache()
        return trio.run(calls, archives, (lambda: archives) if is_held else ArchiveCache)

    def allocated(*, is_held: bool) -> float:
        async def main() -> float:
            archives = ArchiveCache()
            await _ask(archives)
            tracemalloc.start()
            for _ in range(CALLS - 1):
                await _ask(archives if is_held else ArchiveCache())
            return tracemalloc.get_traced_memory()[1] / 2**10

        try:
            return trio.run(main)
        finally:
            tracemalloc.stop()

    yield Comparison(
        "held/call",
        partial(seconds, is_held=True),
        lambda: 50e-6,
        "what was promised",
        unit="µs",
        at_most=1.0,
    )
    yield Comparison(
        "held/time",
        partial(seconds, is_held=True),
        partial(seconds, is_held=False),
        f"{CALLS} builds, each call after the first",
    )
    yield Comparison(
        "held/peak",
        partial(allocated, is_held=True),
        partial(allocated, is_held=False),
        f"{CALLS} builds, what the calls after the first allocate at most at once",
        unit="KiB",
    )


def _refresh(folder: Path, count: int) -> Iterator[Comparison]:
    @cache
    def tree() -> Path:
        root = folder / "unchanged"
        for number in range(count):
            path = root / f"d{number % 30}" / f"e{number % 7}" / f"f{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * 100)
        return root

    archives = ArchiveCache()

    def ask() -> float:
        async def main() -> float:
            await archives.source_archive(tree())
            start = time.perf_counter()
            await archives.source_archive(tree(), refresh="stat")
            return time.perf_counter() - start

        return trio.run(main)

    def walk() -> None:
        waiting = [str(tree())]
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)

    yield Comparison(
        f"stat/{count}", ask, lambda: timed(walk), "a walk with os.scandir and stat", at_most=1.5
    )


def _heartbeat(folder: Path, mebibytes: int) -> Iterator[Comparison]:
    @cache
    def tree() -> Path:
        root = folder / "large"
        root.mkdir()
        for number in range(mebibytes * 10):
            (root / f"f{number}").write_bytes(os.urandom(2**20 // 10))
        return root

    def lateness() -> float:
        late: list[float] = []

        async def beat() -> None:
            while True:
                start = time.perf_counter()
                await trio.sleep(0.001)
                late.append(time.perf_counter() - start - 0.001)

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(beat)
                await ArchiveCache().source_archive(tree())
                nursery.cancel_scope.cancel()

        trio.run(main)
        return statistics.quantiles(late, n=100)[-1]

    yield Comparison(
        f"heartbeat/{mebibytes}",
        lateness,
        lambda: 0.01,
        "what was promised: of a task that sleeps 1 ms, how late 99 of 100 are at most",
        at_most=1.0,
    )


def _compressors() -> Iterator[Comparison]:
    @cache
    def tar() -> bytes:
        return _build("none").data

    def compress(compression: Compression) -> bytes:
        chosen = compressor(compression)
        return chosen.compress(tar()) + chosen.flush()

    def by_zlib() -> bytes:
        return gzip.compress(tar(), 9)

    chosen: tuple[Compression, ...] = ("gzip", "zstd")
    for compression in chosen:
        work = partial(compress, compression)
        against = f"zlib {zlib.ZLIB_RUNTIME_VERSION} at level 9"
        yield Comparison(
            f"compress/{compression}", partial(timed, work), partial(timed, by_zlib), against
        )
        yield Comparison(
            f"compress/{compression}-bytes",
            lambda work=work: len(work()) / 2**10,  # type: ignore[misc]  # mypy cannot infer it
            lambda: len(by_zlib()) / 2**10,
            against,
            unit="KiB",
        )


def _memory(folder: Path, mebibytes: int) -> Comparison:
    def tree(name: str, size: int) -> Path:
        root = folder / name
        if not root.exists():
            root.mkdir()
            for number in range(4):
                with open(root / f"f{number}", "wb") as file:
                    file.truncate(size // 4)
        return root

    def peak(name: str, size: int) -> float:
        return peak_of(["archive", str(tree(name, size)), "-o", str(folder / "archive.tar")])

    return Comparison(
        f"memory/{mebibytes}",
        partial(peak, "huge", mebibytes * 2**20),
        partial(peak, "empty", 0),
        "an archive of four empty files",
        unit="MiB",
        at_most=64,
    )
