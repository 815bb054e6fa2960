"""Tar archives, piece by piece: the one place that builds their members.

Names that need it are written GNU tar's way: busybox passes over the PAX records that would hold
them. Nothing is compressed: Docker's archive interface has run the image's own decompressor on the
host (CVE-2026-41567), and inside a sandbox there may be none.
"""

from __future__ import annotations

import tarfile
import time
from collections.abc import Generator, Iterable
from contextlib import closing
from typing import TypeAlias

from trio_skills._beneath import CHUNK
from trio_skills._upload import Upload

END = bytes(2 * tarfile.BLOCKSIZE)
"""What ends an archive."""


Owner: TypeAlias = tuple[int, int]
"""A user's and a group's number. Who unpacks an archive as an ordinary user makes them his own."""

NOBODY_IN_PARTICULAR: Owner = (0, 0)


def header(
    name: str, size: int, *, executable: bool = False, owner: Owner = NOBODY_IN_PARTICULAR
) -> bytes:
    """Return what comes before a file's content."""
    return _member(name, tarfile.REGTYPE, size, 0o755 if executable else 0o644, owner)


def folder(name: str, owner: Owner) -> bytes:
    """Return the member that is a folder: for who does not make those that a file's name needs."""
    return _member(name, tarfile.DIRTYPE, 0, 0o755, owner)


def _member(name: str, kind: bytes, size: int, mode: int, owner: Owner) -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.size, member.mode = kind, size, mode
    member.uid, member.gid = owner
    member.mtime = int(time.time())
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def padding(size: int) -> bytes:
    """Return what comes after a file's content."""
    return bytes(-size % tarfile.BLOCKSIZE)


def members(
    uploads: Iterable[tuple[str, Upload]],
    errors: dict[str, Exception],
    owner: Owner = NOBODY_IN_PARTICULAR,
) -> Generator[bytes, None, None]:
    """Yield the members of uploads, each under the name that comes with it.

    An upload that cannot be read, or is not what was planned, is left out, and `errors` has its
    target. Only a large one is found out when it is on its way; then that error is raised.
    Blocks: use it in a worker thread, and close it.
    """
    for name, upload in uploads:
        before = header(name, upload.size, executable=upload.executable, owner=owner)
        if upload.size <= CHUNK:
            try:
                content = upload.read()
            except Exception as exc:  # noqa: BLE001  # any failure is an outcome
                errors[upload.target] = exc
                continue
            yield before + content + padding(upload.size)
        else:
            yield before
            with closing(upload.chunks()) as chunks:
                yield from chunks
            yield padding(upload.size)


def joined(pieces: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    """Yield the same bytes in pieces of about a megabyte: each costs a thread and a system call.

    The first ones are smaller, so that who unpacks them need not wait for a whole one.
    """
    waiting: list[bytes] = []
    size = 0
    enough = CHUNK // 16
    with closing(pieces):
        for piece in pieces:
            waiting.append(piece)
            size += len(piece)
            if size >= enough:
                yield b"".join(waiting)
                waiting.clear()
                size = 0
                enough = min(2 * enough, CHUNK)
        yield b"".join(waiting)
