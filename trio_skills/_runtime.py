"""What a sandbox must be able to do, and what it may do better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import attrs

from trio_skills._upload import Upload

Existing: TypeAlias = Literal["merge", "replace", "error"]
"""What becomes of a skill folder that is there already."""


@attrs.frozen
class RunResult:
    """How a command in a sandbox ended."""

    exit_code: int
    """0 is success; a command that a signal ended has a number that is not 0."""
    stdout: bytes = b""
    """Its standard output."""
    stderr: bytes = b""
    """Its standard error."""


class Runtime(Protocol):
    """A sandbox. Whoever has these two methods can be installed into.

    A runtime may also have an attribute `traits`, a `Traits`, and the methods of `WritesMany`,
    `Inspects` and `SetsExecutable`; `install` uses what is there.
    """

    async def write(self, target: str, data: bytes) -> None:
        """Write a whole file, making the folders above it, or raise.

        It is a new file: not executable, also where an executable one was there.

        **Cancellation:** the file is whole, or as it was before.
        """
        ...

    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        """Run a command in the runtime's own folder and return how it ended.

        **Cancellation:** the command is ended, and gone when this returns.
        """
        ...


@attrs.frozen
class PackedResult:
    """What became of a packed write."""

    errors: Sequence[Exception | None]
    """For each upload, in their order, None or its error."""
    in_place: Sequence[str] = ()
    """Skill folders that could not be renamed, because a file system is mounted there or beneath:
    their files were put there one by one, and what else was there stays, also with `"replace"`."""
    round_trips: int = 1
    """How many calls it took."""


@runtime_checkable
class WritesMany(Protocol):
    """A runtime that carries many files, with their execute bits, in one transfer."""

    async def write_many(
        self, uploads: Sequence[Upload], *, folders: Sequence[str], existing: Existing
    ) -> PackedResult:
        """Write the files of whole skill folders, and return what became of each.

        A folder of `folders` that is not there yet appears whole, or without what failed. With
        `"merge"`, one that is there keeps its other files; with `"replace"` it is swapped for the
        new one; with `"error"` its uploads fail. With the latter two a folder of which any upload
        failed stays as it was, which may be: not there.
        Sources are read as they are sent, so that memory follows one file, not the sum. Raises what
        fails for all of them.

        **Cancellation:** each folder is as it was before, or as planned.
        """
        ...


@attrs.frozen
class FileState:
    """What is at a path in a sandbox."""

    kind: Literal["file", "folder", "missing", "other"]
    """`other`: a link, a device, or a path that leads through something that is no folder."""
    digest: str | None = None
    """A file's SHA-256 in hexadecimal."""
    executable: bool = False
    """Whether a file may be executed."""
    writable: bool = True
    """Whether a folder may be written to, as far as the runtime can tell."""
    complaint: str | None = attrs.field(default=None, eq=False)
    """Why a file has no digest here, where that is known."""

    def is_as_planned(self, upload: Upload) -> bool:
        """Whether this is the file that `upload` puts there: its bytes and its execute bit."""
        return (
            self.kind == "file"
            and self.digest == upload.digest
            and self.executable == upload.executable
        )


@runtime_checkable
class Inspects(Protocol):
    """A runtime that needs no command to tell what is there."""

    async def inspect(self, targets: Sequence[str]) -> Mapping[str, FileState]:
        """Return the state of every target."""
        ...


@runtime_checkable
class SetsExecutable(Protocol):
    """A runtime that needs no command to set execute bits."""

    async def set_executable(self, targets: Sequence[str]) -> None:
        """Make files executable. Raises where it could not, for any of them."""
        ...


@attrs.frozen
class Traits:
    """What a runtime can bear, and how it differs from others."""

    max_in_flight: int | None = None
    """How many transfers and commands it can bear at once; None: as many as `Limits` allow. Each
    install respects it; a runtime that several install into at once must count them itself."""
    max_batch_files: int | None = None
    """Where a packed transfer is cut, between skill folders; None: by bytes alone."""
    looks_first: bool = False
    """Whether `inspect` costs so little that `install` looks at the destination beforehand."""
    folds_case: bool = False
    """Whether names that differ only in case, or in Unicode normal form, are one name there."""


def traits_of(runtime: Runtime) -> Traits:
    traits = getattr(runtime, "traits", None)
    return traits if isinstance(traits, Traits) else Traits()
