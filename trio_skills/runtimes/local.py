"""A directory of this machine as a sandbox."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import final

import attrs
import trio

from trio_skills._archive import Archive
from trio_skills._beneath import can_be_passed, open_folder
from trio_skills._errors import RuntimeOpenError, describe
from trio_skills._runtime import Existing, FileState, PackedResult, RunResult, Traits
from trio_skills._threads import in_thread
from trio_skills._upload import Upload
from trio_skills.runtimes._files import Files


@final
class LocalRuntime:
    """A directory of this machine, which every target lies beneath: also an absolute one.

    Made by `open_local`. Writes never leave the directory: a link in it is refused, not followed.
    Commands are not held back by anything: they run as you, in that directory.
    """

    # One worker thread writes a batch: enough batches for a progress bar and for several threads.
    traits = Traits(max_batch_files=256, looks_first=True, folds_case=sys.platform == "darwin")

    def __init__(self, path: Path, files: Files) -> None:
        """Not public: `open_local` opens the directory, and closes it."""
        self._path = path
        self._files = files

    def __repr__(self) -> str:
        return f"<LocalRuntime {str(self._path)!r}>"

    async def write(self, target: str, data: bytes) -> None:
        """Write a whole file, making the folders above it, or raise."""
        chunks = [data]
        try:
            await in_thread(self._files.write, target, chunks)
        finally:
            chunks.clear()  # which the traceback of a failure would keep, by way of Trio's closures

    async def write_many(
        self, uploads: Sequence[Upload], *, folders: Sequence[str], existing: Existing
    ) -> PackedResult:
        """Write many files in one worker thread; see `WritesMany`."""
        check = trio.from_thread.check_cancelled
        return await in_thread(self._files.write_many, uploads, folders, existing, check)

    async def extract(self, archive: Archive, target: str) -> int:
        """Make a folder an archive's tree, in one worker thread; see `Extracts`."""
        check = trio.from_thread.check_cancelled
        await in_thread(self._files.extract, archive, target, check)
        return 1

    async def inspect(self, targets: Sequence[str]) -> Mapping[str, FileState]:
        """Return the state of every target."""
        check = trio.from_thread.check_cancelled
        return await in_thread(self._files.inspect, targets, check)

    async def set_executable(self, targets: Sequence[str]) -> None:
        """Make files executable."""
        await in_thread(self._files.set_executable, targets)

    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        """Run a command in the directory, with `env` over this process's environment.

        Exit codes are a shell's: 127 where there is no such command, 126 where it may not be
        executed, 128 and the signal's number where one ended it.

        **Cancellation:** kills the command and what it started, unless that left its session.
        """
        await trio.lowlevel.checkpoint()
        for name, value in env.items():
            if not can_be_passed(value):
                raise ValueError(f"the value of {name!r} holds what is no character")
        try:
            ended = await trio.run_process(
                list(argv),
                cwd=self._path,
                env={**os.environ, **env},
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                start_new_session=True,
                deliver_cancel=_kill_session,
            )
        except FileNotFoundError as exc:
            return RunResult(127, stderr=str(exc).encode())
        except PermissionError as exc:
            return RunResult(126, stderr=str(exc).encode())
        code = ended.returncode
        return RunResult(code if code >= 0 else 128 - code, ended.stdout, ended.stderr)


async def _kill_session(process: trio.Process) -> None:
    # Nothing that it may do before it ends is wanted; Trio's default waits five seconds for it.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await trio.lowlevel.checkpoint()


@asynccontextmanager
async def open_local(path: str | os.PathLike[str]) -> AsyncIterator[LocalRuntime]:
    """Open a directory, which is made where it is missing, as a sandbox.

    One that was made, and is empty in the end, is removed. `path` itself may be a link.

    Raises:
        RuntimeOpenError: It is no directory, or cannot be made or entered.
    """
    try:
        # One step: a cancellation comes before it, or when what it made is known.
        directory, root, made = await in_thread(_make_and_open, path)
    except FileExistsError as exc:
        raise RuntimeOpenError(str(path), "it is a file, not a directory") from exc
    except (OSError, ValueError) as exc:
        raise RuntimeOpenError(str(path), describe(exc)) from exc
    files = Files(root)
    try:
        yield LocalRuntime(directory, files)
    finally:
        files.close()
        if made is not None:
            made.remove_empty()


@attrs.frozen
class _Made:
    """Folders that were made, one in the other."""

    above: int
    """The descriptor of the folder that they are in: by a path, links could lead elsewhere."""
    names: list[str]

    def remove_empty(self) -> None:
        for length in range(len(self.names), 0, -1):
            with suppress(OSError):  # not empty: that is what it was made for
                folder = open_folder(self.above, self.names[: length - 1])
                try:
                    os.rmdir(self.names[length - 1], dir_fd=folder)
                finally:
                    os.close(folder)
        os.close(self.above)


def _make_and_open(path: str | os.PathLike[str]) -> tuple[Path, int, _Made | None]:
    """Return a directory, its descriptor, and what had to be made, if any."""
    directory = Path(os.path.abspath(path))
    there = next(folder for folder in (directory, *directory.parents) if folder.exists())
    if there == directory and not there.is_dir():
        raise FileExistsError
    above = os.open(there, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if there == directory:
        return directory, above, None
    made = _Made(above, list(directory.relative_to(there).parts))
    try:
        return directory, open_folder(above, made.names, create=True), made
    except OSError:
        made.remove_empty()
        raise
