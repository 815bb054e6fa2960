"""What lies in a skill folder: every file, once, with the digest of its content.

The folder may be hostile, and may change while it is read. Nothing outside it is opened: each
folder is opened from its root without following links (`_beneath`), and a link is resolved, checked
to stay inside, and then opened the same way at the place that it points to.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import attrs

from trio_skills._beneath import (
    can_be_passed,
    components,
    measure,
    open_file,
    open_folder,
    real_path,
)
from trio_skills._errors import Problem, describe
from trio_skills._exclude import Exclusion
from trio_skills._printable import printable
from trio_skills._skill import MAX_CHECKED

MAX_NAME = 255
"""Bytes of one name: what file systems hold."""
MAX_PATH = 4096
"""Bytes of a whole target: Linux's `PATH_MAX`."""
MAX_ENTRIES = 1_000_000
"""Files and folders of one tree."""
MAX_LINKED = 20_000
"""Those of them that links to folders led to: such links can multiply a small tree without end."""


@attrs.frozen
class TreeFile:
    """A regular file of a tree, or a link in it to one."""

    path: str
    """Where it is in the tree: a relative POSIX path."""
    source: Path
    """The regular file, links resolved."""
    size: int
    """Bytes."""
    digest: str
    """SHA-256 of its content, in hexadecimal."""
    executable: bool
    """Whether its owner may execute it."""
    shebang: bool
    """Whether it begins with `#!`."""


@attrs.frozen
class Excluded:
    """A file or folder that was left out, and why."""

    path: str
    """A path on this machine; a folder ends with `/` and stands for all that is in it."""
    reason: str
    """The pattern, or the upload that took its place."""


@attrs.define
class Tree:
    """What `read_tree` found."""

    root: Path
    """The folder, links resolved."""
    files: list[TreeFile] = attrs.Factory(list)
    """Sorted by path."""
    excluded: list[Excluded] = attrs.Factory(list)
    """Sorted by path."""
    problems: list[Problem] = attrs.Factory(list)
    """What was refused, sorted by path."""
    skill_md: bytes | None = attrs.field(default=None, repr=False)  # a repr may be logged
    """The beginning of the `SKILL.md`, as much as is checked; None where there is none."""


def read_tree(folder: Path, exclude: Exclusion) -> Tree:
    """Read every file of `folder` once. Raises `OSError` where the folder itself cannot be read."""
    tree = Tree(Path(real_path(folder, strict=True)))
    root = os.open(tree.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _Reader(folder, tree, root, exclude).read()
    finally:
        os.close(root)
    tree.files.sort(key=lambda file: file.path)
    tree.excluded.sort(key=lambda excluded: excluded.path)
    tree.problems.sort(key=lambda problem: problem.path)
    return tree


def wrong_source(source: str | os.PathLike[str]) -> Problem | None:
    """Return what is wrong with a path before anything is looked at."""
    path = os.fspath(source)
    if not path:  # which `Path` would make the working directory
        return Problem("source-unreadable", "''", "a source is empty; name a folder")
    if "\0" in path or not can_be_passed(path):
        return Problem("source-unreadable", path, "a path has no NUL and no half characters")
    return None


def why_no_folder(error: Exception) -> str:
    """Return what is wrong with a source that cannot be read as a folder."""
    match error:
        case FileNotFoundError():
            return "there is no such folder; check the spelling"
        case NotADirectoryError():
            return "it is not a folder; a source is the folder that holds SKILL.md"
        case _:
            return f"it cannot be read: {describe(error)}"


@attrs.frozen
class _Folder:
    """A folder that is still to be read."""

    path: str
    """Its place in the tree, with a final `/`; the root's is empty."""
    real: str
    """Where it really is, beneath the root: another place where a link led to it."""
    above: tuple[str, ...]
    """The real places of the folders that led to it, so that a loop is noticed."""


@attrs.define
class _Reader:
    folder: Path
    tree: Tree
    root: int
    exclude: Exclusion
    entries: int = 0
    linked: int = 0
    measured: dict[tuple[int, int, int], _Measure] = attrs.Factory(dict)
    """What was read already, by device, inode and how much of its beginning was kept."""

    def read(self) -> None:
        waiting = [_Folder("", "", ())]
        while waiting:
            waiting.extend(self._read_folder(waiting.pop()))
            if self.entries > MAX_ENTRIES or self.linked > MAX_LINKED:
                message = (
                    f"more than {MAX_ENTRIES:,} files and folders, or {MAX_LINKED:,} by way of "
                    "links to folders"
                )
                self._refuse("", "too-many-files", message)
                return

    def _refuse(self, path: str, kind: str, message: str) -> None:
        self.tree.problems.append(Problem(kind, os.path.join(self.folder, path), message))

    def _read_folder(self, folder: _Folder) -> Iterator[_Folder]:
        try:
            descriptor = open_folder(self.root, components(folder.real))
        except OSError as exc:
            self._refuse(folder.path, "unreadable", f"cannot be read: {describe(exc)}")
            return
        try:
            # Sorted, so that the outcome depends on no file system's order.
            with os.scandir(descriptor) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
            for entry in found:
                yield from self._read_entry(folder, descriptor, entry)
        except OSError as exc:
            self._refuse(folder.path, "unreadable", f"cannot be read: {describe(exc)}")
        finally:
            os.close(descriptor)

    def _read_entry(
        self, folder: _Folder, descriptor: int, entry: os.DirEntry[str]
    ) -> Iterator[_Folder]:
        path = folder.path + entry.name
        self.entries += 1
        self.linked += folder.path != folder.real
        name = os.fsencode(entry.name)  # whatever this process's locale made of the bytes
        try:
            path = folder.path + name.decode("utf-8")
        except UnicodeDecodeError:
            self._refuse(path, "name-not-utf8", "the name is not UTF-8; rename it")
            return
        if len(path.encode()) > MAX_PATH:
            self._refuse(path, "path-too-long", f"the path is over {MAX_PATH:,} bytes")
            return
        real = folder.real + entry.name
        if len(os.fsencode(self.tree.root / real)) >= MAX_PATH:  # which nobody can open by its path
            self._refuse(path, "path-too-long", f"the path here is over {MAX_PATH:,} bytes")
            return
        is_folder = entry.is_dir(follow_symlinks=False)
        if pattern := self.exclude.leaves_out(path, entry.name, is_folder):
            shown = os.path.join(self.folder, path + "/" * is_folder)
            self.tree.excluded.append(Excluded(shown, pattern))
            return
        if entry.is_symlink():
            yield from self._read_link(folder, path, real)
        elif is_folder:
            yield _Folder(path + "/", real + "/", (*folder.above, folder.real))
        elif entry.is_file(follow_symlinks=False):
            self._read_file(path, real, entry.name, descriptor)
        else:
            self._refuse(path, "not-a-file", "a FIFO, a socket or a device cannot be installed")

    def _read_link(self, folder: _Folder, path: str, real: str) -> Iterator[_Folder]:
        try:
            resolved = real_path(os.path.join(self.tree.root, real), strict=True)
            mode = os.stat(resolved, follow_symlinks=False).st_mode
        except OSError as exc:
            if exc.errno == errno.ELOOP:
                self._refuse(
                    path, "link-loop", "the link leads back to itself, or by way of over 40 others"
                )
            else:
                self._refuse(path, "link-dangling", f"the link leads nowhere: {describe(exc)}")
            return
        inside = os.path.relpath(resolved, self.tree.root)
        if inside == ".." or inside.startswith("../"):
            message = f"the link leaves the skill: {printable(resolved)}; copy the file instead"
            self._refuse(path, "link-leaves", message)
        elif stat.S_ISREG(mode):
            self._read_linked_file(path, inside)
        elif not stat.S_ISDIR(mode):
            self._refuse(path, "not-a-file", "the link leads to what is no file and no folder")
        elif (target := "" if inside == "." else inside + "/") in (*folder.above, folder.real):
            self._refuse(path, "link-loop", "the link leads to a folder that it is in")
        else:
            yield _Folder(path + "/", target, (*folder.above, folder.real))

    def _read_linked_file(self, path: str, real: str) -> None:
        *parts, name = components(real)
        try:
            descriptor = open_folder(self.root, parts)
        except OSError as exc:
            self._refuse(path, "unreadable", f"cannot be read: {describe(exc)}")
            return
        try:
            self._read_file(path, real, name, descriptor)
        finally:
            os.close(descriptor)

    def _read_file(self, path: str, real: str, name: str, descriptor: int) -> None:
        try:
            file = open_file(name, descriptor)
            try:
                status = os.fstat(file)
                measure = self._measure(file, status, MAX_CHECKED if path == "SKILL.md" else 2)
            finally:
                os.close(file)
        except OSError as exc:
            self._refuse(path, "unreadable", f"cannot be read: {describe(exc)}")
            return
        if path == "SKILL.md":
            self.tree.skill_md = measure.head
        self.tree.files.append(
            TreeFile(
                path=path,
                source=self.tree.root / real,
                size=measure.size,
                digest=measure.digest,
                executable=bool(status.st_mode & stat.S_IXUSR),
                shebang=measure.head.startswith(b"#!"),
            )
        )

    def _measure(self, file: int, status: os.stat_result, keep: int) -> _Measure:
        key = (status.st_dev, status.st_ino, keep)
        if key not in self.measured:
            self.measured[key] = _measure(file, keep)
        return self.measured[key]


@attrs.frozen
class _Measure:
    size: int
    digest: str
    head: bytes


def _measure(file: int, keep: int) -> _Measure:
    """Return a file's size, its digest, and its first `keep` bytes."""
    head = os.pread(file, keep, 0)
    return _Measure(*measure(file), head)
