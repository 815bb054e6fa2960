"""Source archives into a folder of this machine, which is new: never through a link in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from trio_skills._archive import Archive, unpacked
from trio_skills._beneath import Cursor, components, open_folder, target_parts
from trio_skills._source_tree import wrong_link
from trio_skills.runtimes._staging import write_new


def unpack(archive: Archive, folder: int, name: str, check_cancelled: Callable[[], None]) -> None:
    """Make the folder `name` of the folder `folder`, and in it an archive's tree.

    Raises `OSError`, and `ValueError` for a member that this library puts into no archive.
    """
    os.mkdir(name, dir_fd=folder)
    root = open_folder(folder, [name])
    try:
        folders = []
        with Cursor(root, create=True) as cursor:
            for member, content in unpacked(archive):
                check_cancelled()
                path = "/".join(components(member.name))
                if member.name.startswith("/"):
                    raise ValueError(f"a member of the archive is absolute: {path!r}")
                below, entry = cursor.locate(target_parts(path))
                times = (member.mtime, member.mtime)
                if member.isreg():
                    is_executable = bool(member.mode & 0o100)
                    pieces = _checked(content, check_cancelled)
                    write_new(below, entry, pieces, executable=is_executable)
                elif member.isdir():
                    os.mkdir(entry, 0o755, dir_fd=below)
                    folders.append((path, times))
                elif member.issym() and not wrong_link(path, member.linkname):
                    to = os.fsdecode(member.linkname.encode())
                    os.symlink(to, entry, dir_fd=below)
                else:
                    raise ValueError(f"a member of the archive is not acceptable: {path!r}")
                os.utime(entry, times, dir_fd=below, follow_symlinks=False)
            for path, times in reversed(folders):  # whose times what is in them has changed
                below, entry = cursor.locate(target_parts(path))
                os.utime(entry, times, dir_fd=below, follow_symlinks=False)
    finally:
        os.close(root)


def _checked(content: Iterator[bytes], check_cancelled: Callable[[], None]) -> Iterator[bytes]:
    for piece in content:
        check_cancelled()
        yield piece
