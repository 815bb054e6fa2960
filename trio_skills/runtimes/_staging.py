"""Skill folders that are made whole beside their place, and then renamed to it.

The workspace is a hidden folder in the folder that holds the skills, so that a rename is all it
takes. It is locked while it is in use. Who makes the next one there first puts back what a killed
process had moved aside, and removes what it left.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress

import attrs

from trio_skills._archive import record
from trio_skills._beneath import (
    Cursor,
    exists,
    open_file,
    open_folder,
    read_chunks,
    remove_tree,
    target_parts,
    write_all,
)
from trio_skills._errors import TrioSkillsError
from trio_skills._runtime import Existing
from trio_skills._upload import Upload
from trio_skills.runtimes._mounts import holds_mount

TEMPORARY = ".trio-skills-"
"""How the names of workspaces and of temporary files begin."""

_WORKSPACE = re.compile(re.escape(TEMPORARY) + "[0-9a-f]{16}")

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# A folder cannot be renamed to where one is, or where a file system is mounted. Then its files are
# moved one by one, and each tells what else may be wrong.
_IN_THE_WAY = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EBUSY, errno.EXDEV}


def write_new(folder: int, name: str, chunks: Iterable[bytes], *, executable: bool) -> None:
    """Write a file that was not there, or raise and leave none. The umask applies."""
    file = _create(folder, name, executable=executable)
    try:
        try:
            _fill(file, chunks, executable=executable)
        finally:
            os.close(file)
    except BaseException:
        os.unlink(name, dir_fd=folder)
        raise


def _create(folder: int, name: str, *, executable: bool) -> int:
    return os.open(name, _NEW_FILE, 0o755 if executable else 0o644, dir_fd=folder)


def _fill(file: int, chunks: Iterable[bytes], *, executable: bool) -> None:
    for chunk in chunks:
        write_all(file, chunk)
    if executable and not (mode := os.fstat(file).st_mode) & 0o100:
        os.fchmod(file, mode | 0o100)  # the umask took even the owner's bit


def replace(folder: int, name: str, chunks: Iterable[bytes], *, executable: bool) -> None:
    """Write a file in place of what was there, or raise and leave that."""
    temporary, file = _locked_file(folder, executable=executable)
    try:
        _fill(file, chunks, executable=executable)
        # Some file systems tell only when a descriptor is closed what they could not store. The
        # lock stays until the other one is closed.
        os.close(os.dup(file))
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise
    finally:
        os.close(file)


def _locked_file(folder: int, *, executable: bool) -> tuple[str, int]:
    """Return the name of a new file, and its descriptor; its lock says that it is in use."""
    while True:
        # Not derived from the file's name, which may be as long as names can be.
        name = TEMPORARY + secrets.token_hex(8)
        file = _create(folder, name, executable=executable)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # `sweep_files` has it, and is about to remove it
        except OSError:
            return name, file  # a file system without locks: nobody sweeps there
        else:
            if os.fstat(file).st_nlink:
                return name, file
        os.close(file)


def sweep_files(folder: int) -> None:
    """Remove the files that writes into this folder left whose process was killed."""
    with os.scandir(folder) as found:
        names = [entry.name for entry in found if _WORKSPACE.fullmatch(entry.name)]
    for name in names:
        with suppress(OSError):  # in use, a workspace, or not ours to remove
            file = open_file(name, folder)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name, dir_fd=folder)
            finally:
                os.close(file)


def _move(source: int, source_name: str, folder: int, name: str) -> None:
    """Move a staged file to its place, also onto another file system that is mounted there."""
    try:
        os.rename(source_name, name, src_dir_fd=source, dst_dir_fd=folder)
    except OSError as exc:
        if exc.errno != errno.EXDEV:
            raise
        file = open_file(source_name, source)
        try:
            executable = bool(os.fstat(file).st_mode & 0o100)
            replace(folder, name, read_chunks(file), executable=executable)
        finally:
            os.close(file)


@attrs.frozen
class Workspace:
    """A hidden folder beside skill folders, for one packed write."""

    parent: int
    """The descriptor of the folder that it is in."""
    new: int
    """The descriptor of the folder in it where skill folders are made."""
    aside: int
    """The descriptor of the folder in it where those that they replace wait to be removed."""


@contextmanager
def workspace(parent: int) -> Iterator[Workspace]:
    """Make a workspace in the folder `parent`; in the end, remove it."""
    name, folder = _locked_folder(parent)
    opened = [folder]
    try:
        new = open_folder(folder, ["new"], create=True)
        opened.append(new)
        aside = open_folder(folder, ["aside"], create=True)
        opened.append(aside)
        yield Workspace(parent, new, aside)
    finally:
        # Where it cannot be removed it is litter, for the next one to remove; not a failure.
        with suppress(OSError):
            remove_tree(parent, name)
        for descriptor in opened:
            os.close(descriptor)


def _locked_folder(parent: int) -> tuple[str, int]:
    while True:
        name = TEMPORARY + secrets.token_hex(8)
        try:
            folder = open_folder(parent, [name], create=True)
        except FileNotFoundError:
            if os.fstat(parent).st_nlink == 0:
                raise  # the folder itself was removed
            continue  # `sweep` was faster
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # `sweep` has it, and is about to remove it
        except OSError:
            return name, folder  # a file system without locks: nobody sweeps there
        else:
            if exists(parent, name):
                return name, folder
        os.close(folder)


@contextmanager
def alone(parent: int) -> Iterator[None]:
    """Wait until no other install, of any process, swaps skill folders in the folder `parent`."""
    with suppress(OSError):  # a file system without locks
        fcntl.flock(parent, fcntl.LOCK_EX)
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(parent, fcntl.LOCK_UN)


def sweep(parent: int) -> None:
    """Clean up after processes that were killed: put back what was moved aside, remove the rest."""
    with os.scandir(parent) as found:
        names = [entry.name for entry in found if _WORKSPACE.fullmatch(entry.name)]
    for name in names:
        with suppress(OSError):  # in use, or not ours to remove
            folder = open_folder(parent, [name])
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # `remove_tree`, when it was killed, left numbers.
                if not all(n in ("new", "aside") or n.isdigit() for n in os.listdir(folder)):
                    continue  # somebody's skill, with a strange name
                aside = open_folder(folder, ["aside"], create=True)
                try:
                    put_back(aside, parent)
                finally:
                    os.close(aside)
                remove_tree(parent, name)
            finally:
                os.close(folder)


def put_back(aside: int, parent: int) -> None:
    """Rename to their places the skill folders in `aside` of which no new one is there."""
    with os.scandir(aside) as found:
        names = [entry.name for entry in found]
    for name in names:
        if not exists(parent, name):
            os.rename(name, name, src_dir_fd=aside, dst_dir_fd=parent)


def swap(place: Workspace, name: str, existing: Existing) -> None:
    """Rename the folder that was made in a workspace to its place, or raise and leave the old."""
    parent, new, aside = place.parent, place.new, place.aside
    if existing == "replace":
        _forget_source(parent, name)
    if existing != "merge" and exists(parent, name):
        if existing == "error":
            raise FileExistsError(errno.EEXIST, "the skill folder is there already", name)
        os.rename(name, name, src_dir_fd=parent, dst_dir_fd=aside)
    try:
        os.rename(name, name, src_dir_fd=new, dst_dir_fd=parent)
    except OSError:
        put_back(aside, parent)
        raise


def _forget_source(parent: int, name: str) -> None:
    """Remove the note of what a folder was made of: it is not true of the next one."""
    note, _ = record(name, "")
    with suppress(FileNotFoundError), Cursor(parent) as cursor:
        folder, entry = cursor.locate(note.split("/"))
        os.unlink(entry, dir_fd=folder)


@attrs.define
class StagedFolder:
    """One skill folder on its way: first into the workspace, then to its place."""

    workspace: Workspace
    """Where it is made."""
    name: str
    """What it is called."""
    depth: int
    """How many parts of each target are above it."""
    uploads: Sequence[Upload]
    """What it holds, in the order of their targets."""
    errors: list[Exception | None] = attrs.Factory(list)
    """For each upload, None or what went wrong."""
    in_place: bool = False
    """Whether its files were put there one by one because a file system is mounted there."""

    def stage(self, check_cancelled: Callable[[], None]) -> None:
        """Write every upload into the workspace."""
        with Cursor(self.workspace.new, create=True) as new:
            for upload in self.uploads:
                check_cancelled()
                try:
                    folder, name = new.locate(self._parts(upload))
                    with closing(upload.chunks()) as chunks:
                        write_new(folder, name, chunks, executable=upload.executable)
                except Exception as exc:  # noqa: BLE001  # any failure is an outcome
                    self.errors.append(exc)
                else:
                    self.errors.append(None)

    def publish(self, existing: Existing) -> None:
        """Put what could be staged into its place; all or nothing, unless it may be merged."""
        if existing != "merge" and any(self.errors):
            reason = "not put there, because other files of its skill failed"
            self.errors = [error or TrioSkillsError(reason) for error in self.errors]
        elif None in self.errors:
            parent = self.workspace.parent
            try:
                if existing != "error" and exists(parent, self.name):
                    self.in_place = holds_mount(parent, self.name)
                if self.in_place:
                    self._merge()
                else:
                    swap(self.workspace, self.name, existing)
            except OSError as exc:
                if existing == "merge" and exc.errno in _IN_THE_WAY:
                    self._merge()
                else:
                    self.errors = [exc] * len(self.uploads)

    def _parts(self, upload: Upload) -> list[str]:
        return target_parts(upload.target)[self.depth :]

    def _merge(self) -> None:
        with (
            Cursor(self.workspace.new) as new,
            Cursor(self.workspace.parent, create=True) as there,
        ):
            swept: set[tuple[str, ...]] = set()
            for index, upload in enumerate(self.uploads):
                if self.errors[index] is None:
                    try:
                        parts = self._parts(upload)
                        folder, name = there.locate(parts)
                        if (above := tuple(parts[:-1])) not in swept:
                            swept.add(above)
                            sweep_files(folder)
                        _move(*new.locate(parts), folder, name)
                    except Exception as exc:  # noqa: BLE001  # any failure is an outcome
                        self.errors[index] = exc
