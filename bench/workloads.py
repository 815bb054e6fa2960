"""What is installed: a skill of so many files, and the same as a ready tar."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

SKILL_MD = b"---\nname: %s\ndescription: For measuring.\n---\n"


def make_skill(folder: Path, count: int, size: int) -> Path:
    """Make a skill: `SKILL.md`, and `count` files of `size` bytes in ten folders."""
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_bytes(SKILL_MD % folder.name.encode())
    for number in range(count):
        path = folder / f"d{number % 10}" / f"f{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(size))
    return folder


def make_tar(folder: Path, into: str) -> bytes:
    """Return the files of a folder as a tar, in which they lie below `into`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.add(path, f"{into}/{path.relative_to(folder)}")
    return buffer.getvalue()


def write_each(write: Callable[[Path, str], Awaitable[None]], files: dict[Path, str]) -> float:
    """Return how many seconds it takes to `write` every file, by its target, all at once."""

    async def main() -> float:
        start = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for path, target in files.items():
                nursery.start_soon(write, path, target)
        return time.perf_counter() - start

    return trio.run(main)


def targets(skill: Path, folder: str) -> dict[Path, str]:
    """Return the files of a skill, and where in `folder` each goes."""
    paths = [path for path in skill.rglob("*") if path.is_file()]
    return {path: f"{folder}/{path.relative_to(skill)}" for path in paths}


def peak_of(arguments: list[str]) -> float:
    """Return the most MiB that the command line held with these arguments."""
    command = [sys.executable, "-m", "bench.peak", *arguments]
    return float(subprocess.check_output(command, text=True)) / 1024


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds `work` took."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
