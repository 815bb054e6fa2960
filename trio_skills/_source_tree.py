"""What lies in a source tree: every member, with what tells whether it was changed since.

No file is read here. As in `_tree`, each folder is opened from its root without following links;
links are not followed but kept as they are, so nothing outside the root is ever looked at.
"""

from __future__ import annotations

import os
import posixpath
import stat
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Literal, NamedTuple, TypeAlias

import attrs

from trio_skills._beneath import (
    Cursor,
    components,
    folders_above,
    is_utf8,
    open_folder,
    target_parts,
)
from trio_skills._errors import ArchiveError, Problem, describe
from trio_skills._exclude import Exclusion
from trio_skills._printable import printable
from trio_skills._tree import MAX_ENTRIES, MAX_NAME, MAX_PATH

Kind: TypeAlias = Literal["file", "folder", "link"]

_TICK = 20_000_000
"""Nanoseconds within which two changes of a file may have the same time: Linux takes it from a
clock that ticks every 1 to 10 milliseconds."""


class Entry(NamedTuple):
    """A member of a source tree. Equal entries of a tree are the same, unchanged file."""

    path: str
    """Where it is in the tree: a relative POSIX path."""
    kind: Kind
    """What it is."""
    executable: bool = False
    """Of a file, whether its owner may execute it."""
    size: int = 0
    """Of a file, its bytes."""
    link: str = ""
    """What a link says."""
    inode: int = 0
    """Of a file, its number: another file in its place has another one."""
    modified: int = 0
    """Of a file, when its content was changed last, in nanoseconds."""
    changed: int = 0
    """The same, as the kernel tells it: nobody can set it back."""


def file_entry(path: str, status: os.stat_result) -> Entry:
    """Return the entry of a regular file."""
    # Not `Entry(…)`, which costs twice as much: there is one for each file of each reading.
    return tuple.__new__(
        Entry,
        (
            path,
            "file",
            bool(status.st_mode & stat.S_IXUSR),
            status.st_size,
            "",
            status.st_ino,
            status.st_mtime_ns,
            status.st_ctime_ns,
        ),
    )


@attrs.frozen
class Selection:
    """Which part of which tree."""

    root: str
    """The folder."""
    members: tuple[str, ...] | None = None
    """Relative paths beneath it; None: all."""
    exclude: tuple[str, ...] = ()
    """gitignore patterns of what is left out."""
    missing_ok: bool = False
    """Whether a member may be missing."""
    leave_out: frozenset[str | tuple[int, int]] = frozenset()
    """Files to pass over, by path or by device and inode: the archive itself, if it lies there."""

    def open_root(self) -> int:
        """Return a descriptor, which the caller closes, of the root. Raises `ArchiveError`."""
        try:
            return os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError) as exc:
            reason = f"the root cannot be read: {describe(exc)}"
            raise ArchiveError([Problem("root-unreadable", self.root, reason)]) from exc

    def read(self, check_cancelled: Callable[[], None]) -> list[Entry]:
        """Return what there is, sorted by path. Raises `ArchiveError` with all that is wrong."""
        return _Walk(self, Exclusion.of(self.exclude), check_cancelled).read()


def wait_for_the_clock(entries: Sequence[Entry]) -> None:
    """Wait until a change to any of these would show: a moment, where one has just been changed."""
    newest = max((entry.changed for entry in entries), default=0)
    wait = newest + _TICK - time.time_ns()
    if 0 < wait <= 2 * _TICK:
        time.sleep(wait / 1e9)


def difference(before: Sequence[Entry], after: Sequence[Entry]) -> str | None:
    """Return the first path at which two readings of a tree are not the same; None: they are."""
    if before == after:
        return None
    for ours, theirs in zip(before, after, strict=False):
        if ours != theirs:
            return min(ours.path, theirs.path)
    longer = max(before, after, key=len)
    return longer[min(len(before), len(after))].path


def wrong_link(path: str, to: str) -> str | None:
    """Return why a link may not be in an archive; None: it stays in the tree, wherever that is.

    The text alone decides: a link is no less safe where its target is missing, or a link itself.
    `..` stands at the front only, where it leaves real folders; after a name it might leave
    another place than it seems to.
    """
    if to.startswith("/"):
        return f"the link is absolute, and leads out of the tree: {printable(to)}"
    parts = [part for part in to.split("/") if part not in ("", ".")]
    ups = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    if ups > path.count("/"):
        return f"the link leads out of the tree: {printable(to)}"
    if ".." in parts[ups:]:
        return f"the link has '..' after a name; write it the plain way: {printable(to)}"
    return None


@attrs.define
class _Walk:
    selection: Selection
    exclude: Exclusion
    check_cancelled: Callable[[], None]
    entries: list[Entry] = attrs.Factory(list)
    problems: list[Problem] = attrs.Factory(list)
    root: int = -1

    def read(self) -> list[Entry]:
        self.root = self.selection.open_root()
        try:
            self._walk([""] if self.selection.members is None else self._find_members())
        finally:
            os.close(self.root)
        if self.problems:
            raise ArchiveError(sorted(self.problems, key=lambda problem: problem.path))
        self.entries.sort(key=itemgetter(0))  # code points and UTF-8 have the same order
        return self.entries

    def _find_members(self) -> list[str]:
        """Add the members, and the folders above them; return those that are to be read whole."""
        wanted = set()
        for member in self.selection.members or ():
            try:
                member.encode()
                wanted.add("/".join(components(member)))
            except ValueError:
                message = "a member is a UTF-8 path in the root, without '..' and NUL"
                self._refuse(member, "member-invalid", message)
        if "" in wanted:
            return [""]
        parents: set[str] = set()
        to_read: list[str] = []
        for path in sorted(wanted):
            is_within = not wanted.isdisjoint(folders_above(path))
            if self._find_member(path, to_read, is_within=is_within) and not is_within:
                parents.update(folders_above(path))
        self.entries += (Entry(parent, "folder") for parent in parents)
        return to_read

    def _find_member(self, path: str, to_read: list[str], *, is_within: bool) -> bool:
        """Add a member, unless it is within another one; return whether it is there."""
        *above, name = target_parts(path)
        try:
            folder = open_folder(self.root, above)
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if pattern := self._excluded_by(path, stat.S_ISDIR(status.st_mode)):
                    message = f"the pattern {printable(pattern)!r} leaves it out"
                    self._refuse(path, "member-excluded", message)
                elif self._is_left_out(path, status):
                    message = "it is what the archive is written to; write that elsewhere"
                    self._refuse(path, "member-is-output", message)
                elif not is_within and self._add(path, name, status, folder):
                    to_read.append(path)
                return True
            finally:
                os.close(folder)
        except FileNotFoundError:
            if not self.selection.missing_ok:
                message = "there is no such member; check the spelling, or allow it to be missing"
                self._refuse(path, "member-missing", message)
        except OSError as exc:
            self._refuse(path, "member-unreadable", f"cannot be read: {describe(exc)}")
        return False

    def _excluded_by(self, path: str, is_folder: bool) -> str | None:
        """Return the pattern that leaves out a member, or a folder that it is in."""
        for part, below in ((path, is_folder), *((above, True) for above in folders_above(path))):
            name = posixpath.basename(part)
            if pattern := self.exclude.leaves_out(part, name, below):
                return pattern
        return None

    def _walk(self, waiting: list[str]) -> None:
        with Cursor(self.root) as cursor:
            while waiting:
                self.check_cancelled()
                folder = waiting.pop()
                try:
                    above, name = cursor.locate(target_parts(folder) or ["."])
                    self._read_folder(open_folder(above, [name]), folder, waiting)
                except OSError as exc:
                    self._refuse(folder, "unreadable", f"cannot be read: {describe(exc)}")
                if len(self.entries) > MAX_ENTRIES:
                    message = f"more than {MAX_ENTRIES:,} files and folders"
                    self._refuse("", "too-many-files", message)
                    return

    def _read_folder(self, descriptor: int, folder: str, below: list[str]) -> None:
        """Add what is in a folder, and to `below` the folders in it, which are still to be read."""
        prefix = folder + "/" if folder else ""
        leaves_out, add, entries = self.exclude.leaves_out, self._add, self.entries
        # Nearly every member is a file whose name needs no further look.
        in_haste = (
            prefix.isascii() and len(prefix) + MAX_NAME <= MAX_PATH and not self.selection.leave_out
        )
        try:
            with os.scandir(descriptor) as found:
                for entry in found:
                    name = entry.name
                    is_plain = name.isascii()
                    if not is_plain:  # whatever this process's locale made of the bytes
                        name = os.fsencode(name).decode("utf-8", "surrogateescape")
                    path = prefix + name
                    try:
                        if leaves_out(path, name, entry.is_dir(follow_symlinks=False)):
                            continue
                        status = entry.stat(follow_symlinks=False)
                        if is_plain and in_haste and stat.S_ISREG(status.st_mode):
                            entries.append(file_entry(path, status))
                        elif add(path, entry.name, status, descriptor):
                            below.append(path)
                    except OSError as exc:
                        self._refuse(path, "unreadable", f"cannot be read: {describe(exc)}")
        finally:
            os.close(descriptor)

    def _add(self, path: str, name: str, status: os.stat_result, folder: int) -> bool:
        """Add what is at a path, called `name` in `folder`; return whether it is to be read."""
        if not path.isascii() and not is_utf8(path):
            self._refuse(path, "name-not-utf8", "the name is not UTF-8; rename it")
            return False
        if len(path.encode()) > MAX_PATH:
            self._refuse(path, "path-too-long", f"the path is over {MAX_PATH:,} bytes")
            return False
        match stat.S_IFMT(status.st_mode):
            case stat.S_IFREG:
                if not self._is_left_out(path, status):
                    self.entries.append(file_entry(path, status))
            case stat.S_IFDIR:
                self.entries.append(Entry(path, "folder"))
                return True
            case stat.S_IFLNK:
                self._read_link(path, name, folder)
            case _:
                message = "a FIFO, a socket or a device cannot be archived"
                self._refuse(path, "not-a-file", message)
        return False

    def _is_left_out(self, path: str, status: os.stat_result) -> bool:
        return not self.selection.leave_out.isdisjoint((path, (status.st_dev, status.st_ino)))

    def _read_link(self, path: str, name: str, folder: int) -> None:
        try:
            to = os.fsencode(os.readlink(name, dir_fd=folder)).decode("utf-8")
        except UnicodeDecodeError:
            self._refuse(path, "name-not-utf8", "what the link says is not UTF-8")
            return
        if wrong := wrong_link(path, to):
            self._refuse(path, "link-leaves", wrong)
        else:
            # The one way to write it: what unpacks the archive may write it so, too.
            self.entries.append(Entry(path, "link", link=posixpath.normpath(to)))

    def _refuse(self, path: str, kind: str, message: str) -> None:
        self.problems.append(Problem(kind, os.path.join(self.selection.root, path), message))
