from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.corpus import collections


def unavailable(what: str, reason: str) -> None:
    """Skip, or fail where CI says that it must be there (`TRIO_SKILLS_REQUIRE`)."""
    if what in os.environ.get("TRIO_SKILLS_REQUIRE", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def corpus() -> dict[str, Path]:
    """The published skill collections."""
    try:
        return collections()
    except FileNotFoundError as exc:
        unavailable("corpus", str(exc))
        raise


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own, of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        unavailable("mounts", f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
