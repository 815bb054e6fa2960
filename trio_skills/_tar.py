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
    name: str,
    size: int,
    *,
    executable: bool = False,
    owner: Owner = NOBODY_IN_PARTICULAR,
    mtime: int | None = None,
) -> bytes:
    """Return what comes before a file's content; its time is now by default, in whole seconds."""
    return _member(name, tarfile.REGTYPE, size, 0o755 if executable else 0o644, owner, mtime)


def folder(name: str, owner: Owner = NOBODY_IN_PARTICULAR, mtime: int | None = None) -> bytes:
    """Return the member that is a folder: an empty one, or for who makes none for a file's name."""
    return _member(name + "/", tarfile.DIRTYPE, 0, 0o755, owner, mtime)


def link(
    name: str, to: str, owner: Owner = NOBODY_IN_PARTICULAR, mtime: int | None = None
) -> bytes:
    """Return the member that is a symbolic link."""
    return _member(name, tarfile.SYMTYPE, 0, 0o777, owner, mtime, to)


def _member(
    name: str, kind: bytes, size: int, mode: int, owner: Owner, mtime: int | None, to: str = ""
) -> bytes:
    raw, raw_to = _raw(name), _raw(to)
    if mtime is None:
        mtime = int(time.time())
    before = b""
    if len(raw_to) > tarfile.LENGTH_LINK:
        before += _long(raw_to, tarfile.GNUTYPE_LONGLINK)
    if len(raw) > tarfile.LENGTH_NAME:
        before += _long(raw, tarfile.GNUTYPE_LONGNAME)
    return before + _block(raw, kind, size, mode, owner, mtime, raw_to)


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _long(name: bytes, kind: bytes) -> bytes:
    """Return what comes before the header of a member whose name does not fit into it."""
    name += b"\0"
    block = _block(b"././@LongLink", kind, len(name), 0, NOBODY_IN_PARTICULAR, 0, b"")
    return block + name + padding(len(name))


def _block(
    name: bytes, kind: bytes, size: int, mode: int, owner: Owner, mtime: int, to: bytes
) -> bytes:
    # What `tarfile.TarInfo.tobuf` gives for GNU_FORMAT, in a quarter of its time; a property test
    # compares them. The eight spaces stand for the checksum while it is computed.
    begin = b"%b%07o\0%b%b%b%b" % (
        name[:100].ljust(100, b"\0"),
        mode,
        _number(owner[0], 8),
        _number(owner[1], 8),
        _number(size, 12),
        _number(mtime, 12),
    )
    end = b"%b%b%b" % (kind, to[:100].ljust(100, b"\0"), _REST)
    checksum = sum(begin) + sum(end) + sum(b"        ")
    return b"%b%06o\0 %b" % (begin, checksum, end)


_REST = b"ustar  \0".ljust(255, b"\0")
"""The magic number, and what is left empty: the names of owners, devices, the padding."""


def _number(number: int, width: int) -> bytes:
    if number < 8 ** (width - 1):
        return b"%0*o\0" % (width - 1, number)
    # GNU's way for a file of 8 GiB and more, which busybox and libarchive read, too.
    return b"\x80" + number.to_bytes(width - 1, "big")


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
            # In three, not one: a content that is held already must not be copied.
            yield before
            yield content
            yield padding(upload.size)
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
