"""One file to put into a sandbox, and how its bytes are read when its turn comes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Hashable, Iterable
from pathlib import Path
from typing import Any

import attrs

from trio_skills._beneath import CHUNK, measure, open_file, open_resolved, read_chunks
from trio_skills._errors import SourceChangedError
from trio_skills._printable import printable

# glibc keeps freed buffers for each thread, by and by of up to 32 MiB: 1 GiB of 9 MiB files added
# 140 MiB to a process under 64 MiB in flight. One larger than that is always mapped, and unmapped
# when it is freed; what the file does not fill of it is never resident.
_MAPPED = 33 * 2**20


def _show_source(source: Path | bytes) -> str:
    # Contents never reach a log, and a repr is what ends up there.
    return repr(source) if isinstance(source, Path) else f"<{len(source)} bytes>"


@attrs.frozen
class Upload:
    """One planned file: where it goes, where it comes from, what it must be when it is there."""

    target: str
    """The POSIX path in the sandbox. A relative one is taken from the runtime's own folder."""
    source: Path | bytes = attrs.field(repr=_show_source)
    """A regular file of this machine, or the content itself."""
    size: int
    """Bytes."""
    executable: bool = False
    """Whether it may be executed in the sandbox."""
    digest: str | None = None
    """SHA-256 of the content, in hexadecimal; planning fills it in."""
    is_resolved: bool = attrs.field(default=False, eq=False, repr=False, kw_only=True)
    """Whether the source is an absolute path whose links were resolved, as in a plan of skills: a
    link that is on the way to it now was put there since, and is not followed."""

    @classmethod
    def of(cls, target: str, source: Path | bytes, *, executable: bool = False) -> Upload:
        """Return the upload of `source` as it is now: its size and digest are taken here.

        Reads a file once. Raises `OSError`.
        """
        if isinstance(source, bytes):
            return cls(target, source, len(source), executable, hashlib.sha256(source).hexdigest())
        file = open_file(source)
        try:
            size, digest = measure(file)
        finally:
            os.close(file)
        return cls(target, source, size, executable, digest)

    def chunks(self) -> Generator[bytes, None, None]:
        """Yield the content piece by piece. Blocks: use it in a worker thread, and close it.

        Raises `SourceChangedError`, after the last piece at the latest, where the content is not
        what was planned; `OSError` where it cannot be read. Only when the iteration has ended was
        the content whole.
        """
        if isinstance(self.source, bytes):
            yield self.source
            return
        sha256 = hashlib.sha256()
        size = 0
        file = self._open(self.source)
        try:
            for chunk in read_chunks(file):
                size += len(chunk)
                if size > self.size:
                    break
                sha256.update(chunk)
                yield chunk
        finally:
            os.close(file)
        self._check(size, sha256.hexdigest())

    def read(self) -> bytes:
        """Return the content, held once. Blocks, and raises, as `chunks` does."""
        if isinstance(self.source, bytes):
            return self.source
        with os.fdopen(self._open(self.source), "rb") as file:
            # One byte more, to see that it has grown.
            data = file.read(max(self.size + 1, _MAPPED if self.size > CHUNK else 0))
        self._check(len(data), hashlib.sha256(data).hexdigest())
        return data

    def _open(self, source: Path) -> int:
        return open_resolved(source) if self.is_resolved else open_file(source)

    def _check(self, size: int, digest: str) -> None:
        # Size and times can be forged or too coarse; the content is what was promised.
        if size != self.size or self.digest not in (None, digest):
            path = printable(str(self.source))
            raise SourceChangedError(f"{path} changed after it was planned; plan again")


class Packed(tuple[Upload, ...]):  # noqa: SLOT001  # a tuple with `__slots__` has no attributes
    """Uploads whose contents are held in memory, to be sent more than once."""

    def __init__(self, uploads: Iterable[Upload] = ()) -> None:
        self.made: dict[Hashable, Any] = {}  # Any: whoever sends them knows what it is
        """What was made of them to send them, so that it is made once."""


def digest_of(uploads: Iterable[Upload]) -> str:
    """Return the SHA-256, in hexadecimal, over every target, execute bit and content."""
    sha256 = hashlib.sha256()
    for upload in uploads:
        mode = "x" if upload.executable else "-"
        sha256.update(f"{upload.target}\0{mode}\0{upload.digest}\0".encode())
    return sha256.hexdigest()
