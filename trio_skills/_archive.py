"""Source archives: the same tree is the same bytes, on every machine.

A member is a function of its path, its content and its execute bit alone. Nothing of where, when
and by whom the tree was made is in an archive.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import posixpath
import re
import secrets
import select
import stat
import tarfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import BinaryIO, get_args

import attrs
import trio

from trio_skills import _tar
from trio_skills._beneath import CHUNK, Cursor, open_file, read_chunks, real_path, target_parts
from trio_skills._compress import Compression, compressor, decompressed
from trio_skills._errors import ArchiveError, Problem, SourceChangedError, describe
from trio_skills._printable import printable
from trio_skills._source_tree import (
    Entry,
    Selection,
    difference,
    file_entry,
    wait_for_the_clock,
)
from trio_skills._threads import in_thread

EPOCH = 315_532_800
"""1980-01-01, in seconds: the first time that a zip file, and so a wheel, can hold."""


@attrs.frozen
class ArchiveInfo:
    """What an archive is."""

    name: str
    """The name of its root: what it is called where it is unpacked, unless told otherwise."""
    digest: str
    """SHA-256 of the uncompressed tar, in hexadecimal: the same on every machine, whatever
    compressed it."""
    member_count: int
    """Files, folders and links."""
    compression: Compression
    """How it is compressed. The compressed bytes depend on the library that was at hand."""
    size: int
    """Bytes, compressed."""
    tar_size: int
    """Bytes of the uncompressed tar."""


@attrs.frozen
class Archive(ArchiveInfo):
    """A source archive in memory."""

    data: bytes = attrs.field(repr=lambda data: f"<{len(data)} bytes>")
    """The archive."""


@attrs.frozen
class Recipe:
    """All that an archive depends on, besides the tree."""

    selection: Selection
    """Which part of which tree."""
    compression: Compression
    """How it is compressed."""
    mtime: int
    """The time of every member, in seconds since 1970."""

    @classmethod
    def of(
        cls,
        root: str | os.PathLike[str],
        members: Iterable[str | os.PathLike[str]] | None,
        exclude: Iterable[str],
        compression: Compression,
        missing_ok: bool,
    ) -> Recipe:
        """Raises `TypeError`, `ValueError` or `ArchiveError` for arguments that make no sense."""
        if isinstance(members, str | bytes | os.PathLike):
            raise TypeError("members is a list of paths, not one path")
        if isinstance(exclude, str | bytes):
            raise TypeError("exclude is a list of patterns, not one pattern")
        if compression not in get_args(Compression):
            known = ", ".join(get_args(Compression))
            raise ValueError(f"compression is one of {known}; not {compression!r}")
        paths = None if members is None else tuple(sorted({os.fsdecode(m) for m in members}))
        if paths == ():
            raise ValueError("members is empty; leave it out for the whole tree")
        folder = os.fsdecode(root)
        if not folder:  # which would be the working directory
            raise ValueError("the root is empty; name a folder")
        if not os.path.isabs(folder):
            try:
                folder = os.path.join(os.getcwd(), folder)
            except OSError as exc:
                reason = f"the working directory cannot be found: {describe(exc)}"
                raise ArchiveError([Problem("root-unreadable", folder, reason)]) from exc
        selection = Selection(folder, paths, tuple(exclude), missing_ok)
        return cls(selection, compression, _mtime(os.environ))

    def resolved(self) -> Recipe:
        """Return the same with links in the root resolved. Raises `ArchiveError`, and blocks."""
        root = self.selection.root
        try:
            resolved = real_path(root, strict=True)
        except (OSError, ValueError) as exc:
            reason = f"the root cannot be read: {describe(exc)}"
            raise ArchiveError([Problem("root-unreadable", root, reason)]) from exc
        return attrs.evolve(self, selection=attrs.evolve(self.selection, root=resolved))


def _mtime(environment: Mapping[str, str]) -> int:
    """Return the time of all members; see reproducible-builds.org/specs/source-date-epoch."""
    text = environment.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return EPOCH
    if not re.fullmatch("[0-9]{1,10}", text) or int(text) >= 8**11:
        shown = printable(text[:20])
        raise ValueError(f"SOURCE_DATE_EPOCH is a number of seconds; not {shown!r}")
    return int(text)


@attrs.frozen
class Built:
    """What was made of a tree, besides the bytes that were handed on."""

    entries: list[Entry]
    """What was in the tree."""
    info: ArchiveInfo
    """What the archive is."""
    as_of: float
    """When the tree was looked at for the last time, by `time.monotonic`; it was still so."""


def build(
    recipe: Recipe, write: Callable[[bytes], object], check_cancelled: Callable[[], None]
) -> Built:
    """Make an archive, and hand it on piece by piece to `write`. Blocks.

    Holds no more than a few megabytes. Raises `ArchiveError`, `SourceChangedError`, and what
    `write` raises; then what was written is no whole archive.
    """
    entries = recipe.selection.read(check_cancelled)
    compress = compressor(recipe.compression)
    sha256 = hashlib.sha256()
    tar_size = size = 0

    def take(piece: bytes) -> None:
        nonlocal tar_size, size
        sha256.update(piece)
        tar_size += len(piece)
        packed = compress.compress(piece)
        size += len(packed)
        write(packed)

    with closing(_tar.joined(_members(recipe, entries))) as pieces:
        for piece in pieces:
            take(piece)
            check_cancelled()
    # Each file was what it had been when it was listed. Was the whole tree, all the time?
    as_of = time.monotonic()
    changed = difference(entries, recipe.selection.read(check_cancelled))
    if changed is not None:
        raise _changed(recipe, changed)
    take(_tar.END)
    packed = compress.flush()
    write(packed)
    info = ArchiveInfo(
        name=os.fsencode(os.path.basename(recipe.selection.root)).decode("utf-8", "replace"),
        digest=sha256.hexdigest(),
        member_count=len(entries),
        compression=recipe.compression,
        size=size + len(packed),
        tar_size=tar_size,
    )
    return Built(entries, info, as_of)


def build_in_memory(recipe: Recipe, check_cancelled: Callable[[], None]) -> tuple[Built, Archive]:
    """Return an archive that is held in memory. Blocks; raises as `build` does."""
    pieces: list[bytes] = []
    built = build(recipe, pieces.append, check_cancelled)
    fields = attrs.asdict(built.info, recurse=False)
    return built, Archive(**fields, data=b"".join(pieces))


def digest(recipe: Recipe, check_cancelled: Callable[[], None]) -> str:
    """Return what the digest of an archive would be. Blocks; raises as `build` does."""
    plain = attrs.evolve(recipe, compression="none")
    return build(plain, lambda piece: None, check_cancelled).info.digest


def _members(recipe: Recipe, entries: list[Entry]) -> Generator[bytes, None, None]:
    wait_for_the_clock(entries)
    root = recipe.selection.open_root()
    try:
        with Cursor(root) as cursor:
            for entry in entries:
                name = _member_name(entry.path)
                match entry.kind:
                    case "file":
                        yield _tar.header(
                            name, entry.size, executable=entry.executable, mtime=recipe.mtime
                        )
                        yield from _content(recipe, entry, cursor)
                        yield _tar.padding(entry.size)
                    case "folder":
                        yield _tar.folder(name, mtime=recipe.mtime)
                    case "link":
                        yield _tar.link(name, entry.link, mtime=recipe.mtime)
    finally:
        os.close(root)


# By its first two letters busybox would take an archive, and Docker's engine with a third one, for
# one that bzip2 made. bsdtar would take a drive, or what is a separator on Windows, off a name.
_MISREAD = re.compile(r"BZ|[A-Za-z]:|\\")


def _member_name(path: str) -> str:
    return f"./{path}" if _MISREAD.match(path) else path


def _content(recipe: Recipe, entry: Entry, cursor: Cursor) -> Iterator[bytes]:
    """Yield a file's content, as many bytes as it had when it was listed."""
    try:
        folder, name = cursor.locate(target_parts(entry.path))
        file = open_file(name, folder)
    except FileNotFoundError as exc:
        raise _changed(recipe, entry.path) from exc
    except OSError as exc:
        raise _unreadable(recipe, entry.path, exc) from exc
    try:
        if file_entry(entry.path, os.fstat(file)) != entry:
            raise _changed(recipe, entry.path)
        size = 0
        # No error of whoever takes the pieces comes here: a generator is closed then.
        try:
            for chunk in read_chunks(file):
                size += len(chunk)
                if size > entry.size:
                    break
                yield chunk
        except OSError as exc:
            raise _unreadable(recipe, entry.path, exc) from exc
        if size != entry.size:
            raise _changed(recipe, entry.path)
    finally:
        os.close(file)


def _unreadable(recipe: Recipe, path: str, error: OSError) -> ArchiveError:
    shown = os.path.join(recipe.selection.root, path)
    return ArchiveError([Problem("unreadable", shown, f"cannot be read: {describe(error)}")])


def _changed(recipe: Recipe, path: str) -> SourceChangedError:
    shown = printable(os.path.join(recipe.selection.root, path))
    return SourceChangedError(f"{shown} changed while its archive was made; do it again")


async def write_archive(
    root: str | os.PathLike[str],
    file: str | os.PathLike[str] | BinaryIO,
    *,
    members: Iterable[str | os.PathLike[str]] | None = None,
    exclude: Iterable[str] = (),
    compression: Compression = "gzip",
    missing_ok: bool = False,
) -> ArchiveInfo:
    """Write the archive of a source tree, of whatever size, to a file; see `ArchiveCache`.

    Args:
        root: The folder whose tree it is.
        file: A path, which gets the whole archive or stays as it was, or a binary file to write to.
        members: As for `ArchiveCache.source_archive`, like the rest.
        exclude: The same.
        compression: The same.
        missing_ok: The same.

    Holds a few megabytes. An archive that lies in its own tree leaves itself out. Raises as
    `ArchiveCache.source_archive` does, and `OSError` where the file cannot be written.

    **Cancellation:** a path stays as it was; to a binary file a part was written.
    """
    recipe = Recipe.of(root, members, exclude, compression, missing_ok)
    return await in_thread(write, recipe, file, trio.from_thread.check_cancelled)


def write(
    recipe: Recipe,
    file: str | os.PathLike[str] | BinaryIO,
    check_cancelled: Callable[[], None] = lambda: None,
) -> ArchiveInfo:
    """Do what `write_archive` does. Blocks."""
    recipe = recipe.resolved()
    if isinstance(file, str | os.PathLike):
        with _replacing(os.fspath(file), check_cancelled) as (write_output, paths):
            root = recipe.selection.root
            beneath = (os.fsencode(os.path.relpath(path, root)) for path in paths)
            recipe = _without(recipe, (path.decode("utf-8", "replace") for path in beneath))
            return build(recipe, write_output, check_cancelled).info
    with suppress(OSError, ValueError, AttributeError, io.UnsupportedOperation):
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode):
            recipe = _without(recipe, [(status.st_dev, status.st_ino)])

    def write_all(data: bytes) -> None:
        view = memoryview(data)
        while view:  # an unbuffered file takes what it likes
            taken = file.write(view)
            if not taken:
                raise BlockingIOError(errno.EAGAIN, "what is written to takes nothing more")
            view = view[taken:]

    return build(recipe, write_all, check_cancelled).info


def _without(recipe: Recipe, files: Iterable[str | tuple[int, int]]) -> Recipe:
    selection = attrs.evolve(recipe.selection, leave_out=frozenset(files))
    return attrs.evolve(recipe, selection=selection)


@contextmanager
def _replacing(
    path: str, check_cancelled: Callable[[], None]
) -> Iterator[tuple[Callable[[bytes], object], list[str]]]:
    """Return what writes a file that takes the place of what is at `path`, if all ends well.

    What is no regular file, as a FIFO or `/dev/null`, is written to itself. Also returns where the
    old and the new file are.
    """
    mode = None
    with suppress(FileNotFoundError):
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            pipe = _open_pipe(path, check_cancelled)
            try:
                yield partial(_write_patiently, pipe, check_cancelled), []
            finally:
                os.close(pipe)
            return
        mode = stat.S_IMODE(status.st_mode)
    if path.endswith("/"):
        raise IsADirectoryError(errno.EISDIR, "a name with / at its end is a folder's", path)
    real = os.path.realpath(path)  # a link stays, and what it points to is replaced
    temporary = os.path.join(os.path.dirname(real), f".trio-skills-{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as output:
            if mode is not None:
                os.fchmod(output.fileno(), mode)
            yield output.write, [real, temporary]
        os.rename(temporary, real)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _open_pipe(path: str, check_cancelled: Callable[[], None]) -> int:
    """Open what is no regular file; a FIFO, when somebody reads from it."""
    while True:
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as exc:
            if exc.errno != errno.ENXIO:
                raise
        check_cancelled()
        time.sleep(_PATIENCE)


def _write_patiently(pipe: int, check_cancelled: Callable[[], None], data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(pipe, view) :]
        except BlockingIOError:
            check_cancelled()
            select.select([], [pipe], [], _PATIENCE)


_PATIENCE = 0.05
"""Seconds after which it is looked whether somebody still waits, while a reader does not read."""

_BUFFER = 2**16
"""Bytes of a tar that are read at once: for each header `tarfile` copies what it has of them."""


def unpacked(archive: Archive) -> Iterator[tuple[tarfile.TarInfo, Iterator[bytes]]]:
    """Yield every member, and its content, which must be read before the next. Blocks.

    Raises `ValueError` or `tarfile.TarError` for what is no archive.
    """
    pieces = decompressed(archive.data, archive.compression, _BUFFER)
    with tarfile.open(fileobj=_Pieces(pieces), mode="r|", bufsize=_BUFFER, encoding="utf-8") as tar:
        for member in tar:
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep every one
            file = tar.extractfile(member) if member.isreg() else None
            yield member, iter(()) if file is None else iter(partial(file.read, CHUNK), b"")


def record(target: str, digest: str) -> tuple[str, bytes]:
    """Return where in a sandbox it is noted what the folder `target` was made of, and the note."""
    folder, name = posixpath.split(target)
    return posixpath.join(folder, ".trio-skills.sources", name), f"{digest}\n".encode()


class _Pieces(io.RawIOBase):
    """A file to read from, made of pieces."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        while len(self._rest) < size and (piece := next(self._pieces, None)) is not None:
            self._rest += piece
        data, self._rest = self._rest[:size], self._rest[size:]
        return data
