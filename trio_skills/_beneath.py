"""Open what lies beneath a folder, and never what a link points to.

Paths are walked one component at a time from an open descriptor with `O_NOFOLLOW`. A check of the
path first and an open afterwards would leave a gap in which a component can be swapped for a link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress

CHUNK = 2**20
"""How many bytes of one file are held at most where it is read piece by piece."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: should a FIFO be there after all, its open must not wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def components(path: str) -> list[str]:
    """Return the parts of a POSIX path beneath a root: a leading `/` means the root itself.

    Raises `ValueError` where a part could lead elsewhere.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in path:
        raise ValueError(f"a path beneath a root has no '..' and no NUL: {path!r}")
    return parts


def open_folder(root: int, parts: list[str], *, create: bool = False) -> int:
    """Return a descriptor, which the caller closes, of the folder `parts` beneath `root`.

    `create` makes the folders that are missing. Raises `OSError`; `NotADirectoryError` where a link
    or a file stands in the way.
    """
    folder = os.open(".", _FOLDER, dir_fd=root)
    for part in parts:
        try:
            below = _open_part(folder, part, create=create)
        finally:
            os.close(folder)
        folder = below
    return folder


def _open_part(folder: int, part: str, *, create: bool) -> int:
    try:
        return os.open(part, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
    except NotADirectoryError as exc:
        if is_link(folder, part):
            reason = "a link is in the way, and links are not followed"
            raise NotADirectoryError(exc.errno, reason, part) from exc
        raise
    # Another writer may be first; a link that was put there meanwhile is refused below.
    with suppress(FileExistsError):
        os.mkdir(part, dir_fd=folder)
    return os.open(part, _FOLDER, dir_fd=folder)


def open_file(path: str | os.PathLike[str], folder: int | None = None) -> int:
    """Return a descriptor, which the caller closes, to read a regular file, from `folder` if given.

    Raises `OSError` for a link, a FIFO, a socket, a device or a folder: none is opened for reading.
    """
    file = os.open(path, _FILE, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return file


def read_chunks(file: int) -> Iterator[bytes]:
    """Yield what can be read from a descriptor, piece by piece."""
    while chunk := os.read(file, CHUNK):
        yield chunk


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
    """Remove the entry `name` of the folder `root` with all that is below it. Raises `OSError`.

    `shutil.rmtree` recurses before Python 3.13, and hostile trees are deep.
    """
    waiting = [[name]]
    while waiting:
        parts = waiting[-1]
        above = open_folder(root, parts[:-1])
        try:
            folders = _empty(above, parts[-1])
            if not folders:
                waiting.pop()
                _remove(above, parts[-1])
        finally:
            os.close(above)
        waiting += [[*parts, folder] for folder in folders]


def _empty(above: int, name: str) -> list[str]:
    """Remove the files of a folder, and return the folders that are in it."""
    try:
        folder = open_folder(above, [name])
    except (FileNotFoundError, NotADirectoryError):
        return []
    try:
        with os.scandir(folder) as found:
            entries = list(found)
        below = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=folder)
    finally:
        os.close(folder)
    return below


def _remove(above: int, name: str) -> None:
    try:
        os.rmdir(name, dir_fd=above)
    except NotADirectoryError:
        os.unlink(name, dir_fd=above)
    except FileNotFoundError:
        pass
