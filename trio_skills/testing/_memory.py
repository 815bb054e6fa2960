"""A sandbox that is a dictionary, keeps a log of what it was asked, and fails on demand."""

from __future__ import annotations

import hashlib
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias

import attrs
import trio

from trio_skills import _commands
from trio_skills._archive import Archive, record, unpacked
from trio_skills._beneath import folders_above
from trio_skills._errors import TrioSkillsError
from trio_skills._runtime import Existing, PackedResult, RunResult, Traits
from trio_skills._threads import in_thread
from trio_skills._transfers import by_folder
from trio_skills._upload import Upload


@attrs.frozen
class MemoryFile:
    """A file of a `MemoryRuntime`."""

    data: bytes = attrs.field(repr=lambda data: f"<{len(data)} bytes>")
    """Its content."""
    executable: bool = False
    """Whether it may be executed."""


@attrs.define(eq=False)
class Call:
    """One call to a `MemoryRuntime`, in its log in the order of starting."""

    method: Literal["write", "write_many", "extract", "run"]
    """What was called."""
    targets: tuple[str, ...]
    """The files of a write."""
    size: int = 0
    """Bytes that the call holds."""
    argv: tuple[str, ...] = ()
    """The command of a `run`."""
    started: float = 0.0
    """When it started, on Trio's clock."""
    ended: float = math.inf
    """When it ended, in whatever way; infinite as long as it has not."""


@attrs.frozen
class Fault:
    """What goes wrong in one call."""

    error: Exception | None = None
    """Raised by the call."""
    after: bool = False
    """Whether the effect comes first, and the error after it: an answer that was lost."""
    stored: float = 1.0
    """Which part of a file's bytes is stored: under 1, a write that lies about its success."""
    errors: Mapping[str, Exception] = attrs.Factory(dict)
    """Of single files in a `write_many`, by their targets."""
    exit_code: int = 0
    """Of a command; one that is not 0 comes in place of its effect."""


Faults: TypeAlias = Callable[[Call], Fault | None]
"""Decides, when a call starts, what goes wrong in it."""


@attrs.define(eq=False)
class Latency:
    """How long calls take: a round trip, and a queue in front of a server that serves one a time.

    `n` writes at once then take `round_trip + n * service` seconds, which is how remote sandbox
    APIs were measured to behave.
    """

    round_trip: float = 0.0
    """Seconds that every write takes, whatever else is under way."""
    service: float = 0.0
    """Seconds for which a write keeps the others waiting."""
    command: float = 0.0
    """Seconds that a command takes."""
    _busy_until: float = attrs.field(default=-math.inf, init=False)

    @classmethod
    def remote(cls) -> Latency:
        """Return the model that was fitted to a public measurement of a remote sandbox API."""
        return cls(round_trip=0.166, service=0.0103, command=0.454)

    def __call__(self, call: Call) -> float:
        """Return how many seconds a call that starts now takes."""
        if call.method == "run":
            return self.command
        now = trio.current_time()
        self._busy_until = max(now, self._busy_until) + self.service
        return self._busy_until - now + self.round_trip


class MemoryRuntime:
    """A runtime with the two methods that every one has, over a dictionary.

    It understands the commands that this library runs. Time passes by Trio's clock, so that with a
    `trio.testing.MockClock` the slowest sandbox takes none.
    """

    def __init__(
        self,
        *,
        latency: Callable[[Call], float] | None = None,
        faults: Faults | None = None,
        traits: Traits | None = None,
    ) -> None:
        """Make an empty sandbox.

        Args:
            latency: How many seconds a call takes, asked when it starts: a `Latency`, or a
                function.
            faults: What goes wrong in a call, asked when it starts.
            traits: What the runtime says of itself.
        """
        self.traits = traits or Traits()
        self.files: dict[str, MemoryFile] = {}
        """What the sandbox holds."""
        self.links: dict[str, str] = {}
        """The links of source archives, and what they say."""
        self.log: list[Call] = []
        """Every call, in the order of starting."""
        self.in_flight = 0
        """Calls under way."""
        self.bytes_in_flight = 0
        """Bytes that they hold."""
        self.peak_in_flight = 0
        """The most calls that were under way at once."""
        self.peak_bytes = 0
        """The most bytes that they held at once."""
        # Every folder that there ever was: of all others it is known at once that they are none.
        self._folders: set[str] = set()
        self._latency = latency or (lambda call: 0.0)
        self._faults = faults or (lambda call: None)

    async def write(self, target: str, data: bytes) -> None:
        """Write a file."""
        async with self._call(Call("write", (target,), len(data))) as fault:
            self._store(target, data, fault, executable=False)

    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        """Run a command: `chmod`, or the one that inspects files."""
        async with self._call(Call("run", (), argv=tuple(argv))) as fault:
            if fault.exit_code != 0:
                return RunResult(fault.exit_code, stderr=b"a fault that was asked for")
            match list(argv):
                case ["chmod", "+x", "--", *targets]:
                    return self._chmod(targets)
                case ["sh", "-c", _commands.INSPECT, "sh", *targets]:
                    return self._inspect(targets)
                case _:
                    return RunResult(127, stderr=b"no such command in a MemoryRuntime")

    @asynccontextmanager
    async def _call(self, call: Call) -> AsyncIterator[Fault]:
        """Account for a call, let its time pass, then do what is in the block, or fail."""
        call.started = trio.current_time()
        self.log.append(call)
        self.in_flight += 1
        self.bytes_in_flight += call.size
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        self.peak_bytes = max(self.peak_bytes, self.bytes_in_flight)
        try:
            fault = self._faults(call) or Fault()
            await trio.sleep(self._latency(call))
            if fault.error is not None and not fault.after:
                raise fault.error
            yield fault
            if fault.error is not None:
                raise fault.error
        finally:
            call.ended = trio.current_time()
            self.in_flight -= 1
            self.bytes_in_flight -= call.size

    def _store(self, target: str, data: bytes, fault: Fault, *, executable: bool) -> None:
        above = next((f for f in folders_above(target) if f in self.files), None)
        if above is not None:
            raise NotADirectoryError(f"{above} is a file")
        if target in self._folders and any(_is_in(target, path) for path in self.files):
            raise IsADirectoryError(f"{target} is a folder")
        self._folders.update(folders_above(target))
        length = int(len(data) * fault.stored)
        self.files[target] = MemoryFile(data[:length], executable)

    def _chmod(self, targets: Sequence[str]) -> RunResult:
        paths = [target.removeprefix("./") for target in targets]
        missing = [path for path in paths if path not in self.files]
        for path in paths:
            if path in self.files:
                self.files[path] = attrs.evolve(self.files[path], executable=True)
        return RunResult(1 if missing else 0, stderr=" ".join(missing).encode())

    def _inspect(self, targets: Sequence[str]) -> RunResult:
        there = (*self.files, *self.links)
        folders = {folder for path in there for folder in folders_above(path)}
        letters = sums = b""
        for target in targets:
            path = target.removeprefix("./")
            file = self.files.get(path)
            if file is not None:
                letters += b"x" if file.executable else b"f"
                sums += f"{hashlib.sha256(file.data).hexdigest()}  {target}\n".encode()
            elif path in self.links:
                letters += b"o"
            else:
                letters += b"d" if path in folders else b"m"
        return RunResult(0, letters + b"\n" + sums)


class PackingMemoryRuntime(MemoryRuntime):
    """A `MemoryRuntime` that can also carry many files in one call."""

    async def write_many(
        self, uploads: Sequence[Upload], *, folders: Sequence[str], existing: Existing
    ) -> PackedResult:
        """Write many files, with their execute bits; see `WritesMany`."""
        targets = tuple(upload.target for upload in uploads)
        async with self._call(Call("write_many", targets, sum(u.size for u in uploads))) as fault:
            contents = {upload.target: await _read(upload, fault) for upload in uploads}
            # From here on there is no checkpoint: all of it is done, or nothing.
            errors: list[Exception | None] = []
            for folder, members in by_folder(uploads, frozenset(folders)):
                refused = self._refuse(folder, members, contents, existing)
                for upload in members:
                    content = contents[upload.target]
                    if isinstance(content, Exception):
                        errors.append(content)
                        continue
                    errors.append(refused)
                    if refused is None:
                        self._store(upload.target, content, fault, executable=upload.executable)
            return PackedResult(errors)

    async def extract(self, archive: Archive, target: str) -> int:
        """Make the folder `target` an archive's tree. Empty folders are not remembered."""
        async with self._call(Call("extract", (target,), archive.size)) as fault:
            members = [(member, b"".join(content)) for member, content in unpacked(archive)]
            unwanted = [path for path in (*self.files, *self.links) if _is_in(target, path)]
            for path in unwanted:
                self.files.pop(path, None)
                self.links.pop(path, None)
            for member, content in members:
                path = f"{target}/{member.name.removeprefix('./')}"
                if member.issym():
                    self.links[path] = member.linkname
                elif member.isreg():
                    is_executable = bool(member.mode & 0o100)
                    self._store(path, content, fault, executable=is_executable)
            path, digest = record(target, archive.digest)
            self._store(path, digest, fault, executable=False)
            return 1

    def _refuse(
        self,
        folder: str | None,
        members: Sequence[Upload],
        contents: Mapping[str, bytes | Exception],
        existing: Existing,
    ) -> Exception | None:
        """Make room for a skill folder, or return why it stays as it was."""
        if folder is None or existing == "merge":
            return None
        if any(isinstance(contents[upload.target], Exception) for upload in members):
            return TrioSkillsError("not put there, because other files of its skill failed")
        there = [path for path in self.files if _is_in(folder, path)]
        if there and existing == "error":
            return FileExistsError(f"{folder} is there already")
        for path in there:
            del self.files[path]
        return None


def _is_in(folder: str, path: str) -> bool:
    return path.startswith(folder + "/")


async def _read(upload: Upload, fault: Fault) -> bytes | Exception:
    await trio.lowlevel.checkpoint()
    if upload.target in fault.errors:
        return fault.errors[upload.target]
    if isinstance(upload.source, bytes):
        return upload.source  # without a thread, which a mock clock does not wait for
    try:
        return await in_thread(upload.read)
    except Exception as exc:  # noqa: BLE001  # any failure is an outcome
        return exc
