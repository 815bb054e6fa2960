"""Open what lies beneath a folder, and never what a link points to.

Paths are walked one component at a time from an open descriptor with `O_NOFOLLOW`. A check of the
path first and an open afterwards would leave a gap in which a component can be swapped for a link.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import posixpath
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

import attrs

CHUNK = 2**20
"""How many bytes of one file are held at most where it is read piece by piece."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A folder that is only passed through need not be readable.
_PASSED = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: should a FIFO be there after all, its open must not wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def real_path(path: str | os.PathLike[str], *, strict: bool = False) -> str:
    """Return a path with its links resolved; as it is, and absolute, where it leads nowhere.

    Raises `OSError` there if `strict`.
    """
    # The kernel follows 40 links. `realpath` follows any number, older ones by recursion.
    try:
        os.stat(path)
    except OSError:
        if strict:
            raise
        return os.path.abspath(path)
    return os.path.realpath(path, strict=strict)


def components(path: str) -> list[str]:
    """Return the parts of a POSIX path beneath a root: a leading `/` means the root itself.

    Raises `ValueError` where a part could lead elsewhere.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in path:
        raise ValueError(f"a path beneath a root has no '..' and no NUL: {path!r}")
    return parts


def folders_above(path: str) -> Iterator[str]:
    """Yield the folders above a POSIX path, the nearest first, `/` last if it is absolute."""
    while path := posixpath.dirname(path):
        yield path
        if path == "/":
            return


def is_utf8(path: str) -> bool:
    """Whether a path can be written in UTF-8, and Python did not stand in for other bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def can_be_passed(text: str) -> bool:
    """Whether a program can get a text; the error that says so otherwise would hold all of it."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def target_parts(target: str) -> list[str]:
    """Return the parts of a target, which is UTF-8 whatever this process's locale is."""
    parts = components(target)
    return parts if target.isascii() else [os.fsdecode(part.encode()) for part in parts]


def open_folder(root: int, parts: list[str], *, create: bool = False) -> int:
    """Return a descriptor, which the caller closes, of the folder `parts` beneath `root`.

    `create` makes the folders that are missing. Raises `OSError`; `NotADirectoryError` where a link
    or a file stands in the way.
    """
    if not parts:
        return os.open(".", _FOLDER, dir_fd=root)
    folder = root
    for part in parts:
        try:
            below = _open_part(folder, part, _FOLDER, create=create)
        finally:
            if folder != root:
                os.close(folder)
        folder = below
    return folder


def _open_part(folder: int, part: str, flags: int, *, create: bool) -> int:
    try:
        return os.open(part, flags, dir_fd=folder)
    except OSError as exc:
        # Linux says ENOTDIR of a link, other systems ELOOP.
        if exc.errno in (errno.ENOTDIR, errno.ELOOP) and is_link(folder, part):
            reason = "a link is in the way, and links are not followed"
            raise NotADirectoryError(errno.ENOTDIR, reason, part) from exc
        if not (create and exc.errno == errno.ENOENT):
            raise
    # Another writer may be first; a link that was put there meanwhile is refused below.
    with suppress(FileExistsError):
        os.mkdir(part, dir_fd=folder)
    return os.open(part, flags, dir_fd=folder)


@attrs.define
class Cursor:
    """The folder that was opened last beneath a root: neighbours in a sorted list share it."""

    root: int
    create: bool = False
    parts: list[str] | None = None
    folder: int = -1

    def locate(self, parts: list[str]) -> tuple[int, str]:
        """Return the folder, a descriptor that stays the cursor's, and the name of an entry."""
        if not parts:
            raise IsADirectoryError(errno.EISDIR, "the root itself is no file")
        *above, name = parts
        if above != self.parts:
            self.close()
            self.folder = open_folder(self.root, above, create=self.create)
            self.parts = above
        return self.folder, name

    def close(self) -> None:
        if self.parts is not None:
            os.close(self.folder)
            self.parts = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def open_file(path: str | os.PathLike[str], folder: int | None = None) -> int:
    """Return a descriptor, which the caller closes, to read a regular file, from `folder` if given.

    Raises `OSError` for a link, a FIFO, a socket, a device or a folder: none is opened for reading.
    """
    file = os.open(path, _FILE, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return file


def open_resolved(path: str | os.PathLike[str]) -> int:
    """Do what `open_file` does, for an absolute path in which links were resolved before.

    Raises `NotADirectoryError` where a link has been put on the way to the file since.
    """
    *above, name = components(os.fspath(path))
    folder = os.open("/", _PASSED)
    try:
        for part in above:
            below = _open_part(folder, part, _PASSED, create=False)
            os.close(folder)
            folder = below
        return open_file(name, folder)
    finally:
        os.close(folder)


def read_chunks(file: int) -> Iterator[bytes]:
    """Yield what can be read from a descriptor, piece by piece."""
    while chunk := os.read(file, CHUNK):
        yield chunk


def measure(file: int) -> tuple[int, str]:
    """Return how many bytes can be read from a descriptor, and their SHA-256 in hexadecimal."""
    sha256 = hashlib.sha256()
    size = 0
    for chunk in read_chunks(file):
        sha256.update(chunk)
        size += len(chunk)
    return size, sha256.hexdigest()


def is_link(folder: int, name: str) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def exists(folder: int, name: str) -> bool:
    """Whether there is an entry of that name: a link counts, wherever it leads."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def write_all(file: int, data: bytes) -> None:
    """Write every byte: one `os.write` may take fewer, and never more than 2 GiB."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def remove_tree(root: int, name: str) -> None:
    """Remove the folder `name` of the folder `root` with all that is in it. Raises `OSError`.

    Hostile trees are deep, so this neither recurses, as `shutil.rmtree` does before Python 3.13,
    nor walks down again for each folder: what is in a folder below is moved up, and found next.
    """
    top = open_folder(root, [name])
    try:
        numbers = itertools.count()
        while folders := _remove_files(top):
            for folder in folders:
                below = open_folder(top, [folder])
                try:
                    os.fchmod(below, 0o700)  # its owner may have forbidden to remove what is in it
                    for deeper in _remove_files(below):
                        _move_up(deeper, below, top, numbers)
                finally:
                    os.close(below)
                os.rmdir(folder, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=root)


def _move_up(name: str, folder: int, top: int, numbers: Iterator[int]) -> None:
    try:
        os.rename(name, _unused(top, numbers), src_dir_fd=folder, dst_dir_fd=top)
    except OSError:
        try:
            shutil.rmtree(name, dir_fd=folder)  # a disk that is full has no room for another name
        except RecursionError as exc:
            raise OSError(errno.ENAMETOOLONG, "the folders are too deep", name) from exc


def _remove_files(folder: int) -> list[str]:
    """Remove what is no folder, and return the names of the folders."""
    with os.scandir(folder) as found:
        entries = list(found)
    folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.name, dir_fd=folder)
    return folders


def _unused(folder: int, numbers: Iterator[int]) -> str:
    return next(name for name in map(str, numbers) if not exists(folder, name))
