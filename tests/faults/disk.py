"""A small disk of its own for a sandbox, so that it can be full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

SIZE = "1m"
_ROOM = 40_000
"""Bytes that are left: for a workspace and small files, not for all that is sent."""


@attrs.frozen
class Disk:
    """A file system of `SIZE` on which a sandbox is."""

    folder: Path
    """Its root, as this machine sees it."""

    @contextmanager
    def nearly_full(self) -> Iterator[None]:
        """Leave too little room for an install."""
        found = os.statvfs(self.folder)
        ballast = self.folder / "ballast"
        try:
            ballast.write_bytes(b"\0" * (found.f_bavail * found.f_bsize - _ROOM))
            yield
        finally:
            ballast.unlink()


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk | None]:
    """Mount one; None where that is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        yield None
        return
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", folder], check=True)
