"""The blocking half of `LocalRuntime`: files beneath one root, and never what a link points to."""

from __future__ import annotations

import errno
import itertools
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from typing import final

import trio

from trio_skills._archive import Archive, record
from trio_skills._beneath import (
    Cursor,
    components,
    exists,
    measure,
    open_file,
    open_folder,
    target_parts,
)
from trio_skills._errors import describe
from trio_skills._runtime import Existing, FileState, PackedResult
from trio_skills._transfers import by_folder
from trio_skills._upload import Upload
from trio_skills.runtimes._mounts import holds_mount
from trio_skills.runtimes._staging import (
    StagedFolder,
    alone,
    replace,
    swap,
    sweep,
    sweep_files,
    workspace,
    write_new,
)
from trio_skills.runtimes._unpacking import unpack


@final
class Files:
    """Writes and inspects files beneath a root. Targets are POSIX paths, as in a `Plan`.

    Every method may be called in any thread, and several at once.
    """

    def __init__(self, root: int) -> None:
        """Work beneath the folder whose descriptor is `root`, until `close` closes it."""
        self._descriptor: int | None = root
        self._swept: set[tuple[int, int]] = set()

    @property
    def _root(self) -> int:
        if self._descriptor is None:
            # The number may belong to another directory by now.
            raise trio.ClosedResourceError("the directory was closed")
        return self._descriptor

    def close(self) -> None:
        """Close the root."""
        root, self._descriptor = self._root, None
        os.close(root)

    def write(self, target: str, chunks: Iterable[bytes], *, executable: bool = False) -> None:
        """Write a file and the folders above it, or raise and leave what was there.

        A process that is killed meanwhile can leave a temporary file beside it: whoever writes into
        that folder next removes it.
        """
        with Cursor(self._root, create=True) as cursor:
            folder, name = cursor.locate(target_parts(target))
            status = os.fstat(folder)
            if (known := (status.st_dev, status.st_ino)) not in self._swept:
                self._swept.add(known)  # once: to look at a folder for each of its files takes long
                sweep_files(folder)
            replace(folder, name, chunks, executable=executable)

    def write_many(
        self,
        uploads: Sequence[Upload],
        folders: Sequence[str],
        existing: Existing,
        check_cancelled: Callable[[], None],
    ) -> PackedResult:
        """Do what `WritesMany.write_many` says, for uploads in the order of their targets.

        `check_cancelled` is called before each file, until the first is in its place: from then on
        what is there must be reported.
        """
        errors: list[Exception | None] = []
        in_place: list[str] = []
        by_parent = itertools.groupby(
            by_folder(uploads, frozenset(folders)),
            lambda found: None if found[0] is None else posixpath.dirname(found[0]),
        )
        for parent, group in by_parent:
            if parent is None:
                check_cancelled()
                errors += [self._write_upload(upload) for _, (upload,) in group]
            else:
                batch = {target_parts(folder or "")[-1]: members for folder, members in group}
                staged = self._write_folders(target_parts(parent), batch, existing, check_cancelled)
                errors += [error for folder in staged for error in folder.errors]
                in_place += [posixpath.join(parent, f.name) for f in staged if f.in_place]
            check_cancelled = _too_late
        return PackedResult(errors, in_place)

    def _write_upload(self, upload: Upload) -> Exception | None:
        try:
            with closing(upload.chunks()) as chunks:
                self.write(upload.target, chunks, executable=upload.executable)
        except Exception as exc:  # noqa: BLE001  # any failure is an outcome
            return exc
        return None

    def _write_folders(
        self,
        above: list[str],
        batch: dict[str, list[Upload]],
        existing: Existing,
        check_cancelled: Callable[[], None],
    ) -> list[StagedFolder]:
        """Write skill folders, by their names, into the folder `above`."""
        parent = open_folder(self._root, above, create=True)
        try:
            sweep(parent)
            with workspace(parent) as place:
                staged = [
                    StagedFolder(place, name, len(above), uploads)
                    for name, uploads in batch.items()
                ]
                for folder in staged:
                    folder.stage(check_cancelled)
                # Merging is a rename of each file; a swap is two, and another's may come between.
                with nullcontext() if existing == "merge" else alone(parent):
                    for folder in staged:
                        folder.publish(existing)
        finally:
            os.close(parent)
        return staged

    def extract(self, archive: Archive, target: str, check_cancelled: Callable[[], None]) -> None:
        """Make the folder `target` an archive's tree, and note its digest; see `Extracts`.

        `check_cancelled` is called before each member, until all of them are there.
        """
        *above, name = target_parts(target)
        note, digest = record(components(target)[-1], archive.digest)
        parent = open_folder(self._root, above, create=True)
        try:
            sweep(parent)
            with workspace(parent) as place:
                unpack(archive, place.new, name, check_cancelled)
                with alone(parent), Cursor(parent, create=True) as records:
                    if exists(parent, name) and holds_mount(parent, name):
                        reason = "a file system is mounted there, so it cannot be replaced"
                        raise OSError(errno.EBUSY, reason, target)
                    folder, entry = records.locate(target_parts(note))
                    # It takes the old note away; what is noted is there.
                    swap(place, name, "replace")
                    # Made where the next one cleans up, should this process be killed.
                    write_new(place.new, "digest", [digest], executable=False)
                    os.rename("digest", entry, src_dir_fd=place.new, dst_dir_fd=folder)
        finally:
            os.close(parent)

    def inspect(
        self, targets: Sequence[str], check_cancelled: Callable[[], None]
    ) -> dict[str, FileState]:
        """Return what is at each target; `check_cancelled` is called before each."""
        states = {}
        with Cursor(self._root) as cursor:
            for target in targets:
                check_cancelled()
                states[target] = self._state(cursor, target_parts(target))
        return states

    def _state(self, cursor: Cursor, parts: list[str]) -> FileState:
        try:
            # The root itself is an entry of itself.
            folder, name = cursor.locate(parts or ["."])
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return FileState("missing", writable=self._is_writable_above(parts))
        except OSError:  # a file or a link is in the way, or a folder that may not be entered
            return FileState("other")
        if stat.S_ISDIR(status.st_mode):
            return FileState("folder", writable=_is_writable(folder, name))
        if not stat.S_ISREG(status.st_mode):
            return FileState("other")
        executable = bool(status.st_mode & stat.S_IXUSR)
        try:
            return FileState("file", _digest(folder, name), executable=executable)
        except OSError as exc:  # a file that cannot be read is there all the same
            return FileState("file", executable=executable, complaint=describe(exc))

    def _is_writable_above(self, parts: list[str]) -> bool:
        for length in range(len(parts) - 1, -1, -1):
            try:
                folder = open_folder(self._root, parts[:length])
            except FileNotFoundError:
                continue
            except OSError:
                return False
            try:
                return _is_writable(folder, ".")
            finally:
                os.close(folder)
        return False

    def set_executable(self, targets: Sequence[str]) -> None:
        """Make files executable for whoever may read them. Raises what failed first, in the end."""
        errors: list[OSError] = []
        with Cursor(self._root) as cursor:
            for target in targets:
                try:
                    _set_executable(*cursor.locate(target_parts(target)))
                except OSError as exc:
                    errors.append(exc)
        if errors:
            raise errors[0]


def _too_late() -> None:
    """Stand in for `check_cancelled` where a cancellation comes too late."""


def _set_executable(folder: int, name: str) -> None:
    file = open_file(name, folder)
    try:
        status = os.fstat(file)
        if status.st_nlink > 1:  # the other name may be outside
            reason = "the file has other names (hard links), whose mode would change too"
            raise OSError(errno.EMLINK, reason, name)
        mode = stat.S_IMODE(status.st_mode)
        os.fchmod(file, mode | (mode & 0o444) >> 2)
    finally:
        os.close(file)


def _is_writable(folder: int, name: str) -> bool:
    return os.access(name, os.W_OK | os.X_OK, dir_fd=folder)


def _digest(folder: int, name: str) -> str:
    file = open_file(name, folder)
    try:
        return measure(file)[1]
    finally:
        os.close(file)
