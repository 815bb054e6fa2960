"""A sandbox in which a command can be run: all else is the program that runs there."""

from __future__ import annotations

import posixpath
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial

import attrs
import trio

from trio_skills import _far_side
from trio_skills._archive import Archive
from trio_skills._beneath import components
from trio_skills._errors import DestinationError
from trio_skills._far_side import Call, MissingProgramError, Parcel
from trio_skills._far_side_source import SourceParcel
from trio_skills._runtime import (
    Existing,
    FileState,
    PackedResult,
    RunResult,
    Traits,
    WritesMany,
)
from trio_skills._threads import in_thread
from trio_skills._upload import Upload

Pieces = Generator[bytes, None, None]

Payload = bytes | Callable[[], Pieces] | AsyncGenerator[bytes, None] | None
"""What a command's standard input is: all of it, or what yields it, in worker threads or not, and
then its end. None: it stays open, and empty, as long as the command runs."""


@attrs.frozen
class Sent:
    """What became of a parcel."""

    failed: Mapping[str, Exception]
    """By target, what failed."""
    in_place: tuple[str, ...] = ()
    """Skill folders, by their names, that were merged where a file system is mounted."""
    round_trips: int = 1
    """What it took."""


async def write_parcels(
    uploads: Sequence[Upload],
    folders: Sequence[str],
    existing: Existing,
    send: Callable[[Parcel, Existing], Awaitable[Sent]],
) -> PackedResult:
    """Send uploads parcel by parcel, and return what became of each, as `WritesMany` has to."""
    await trio.lowlevel.checkpoint()
    failed: dict[str, Exception] = {}
    in_place: list[str] = []
    round_trips = 0
    for parcel in _far_side.parcels(uploads, folders):
        try:
            sent = await send(parcel, existing)
        except DestinationError as exc:
            sent = Sent({upload.target: exc for _, upload in parcel.uploads})
        except Exception as exc:
            if existing == "merge":
                raise  # for `install` to settle file by file
            sent = Sent({upload.target: exc for _, upload in parcel.uploads})
        failed |= sent.failed
        in_place += [posixpath.join(parcel.folder, name) for name in sent.in_place]
        round_trips += sent.round_trips
    errors = tuple(failed.get(upload.target) for upload in uploads)
    return PackedResult(errors, tuple(in_place), round_trips)


async def write_packed(runtime: WritesMany, target: str, data: bytes) -> None:
    """Write a single file as a packed one: for who has no other way to write, or to be sure."""
    upload = await in_thread(Upload.of, target, data)
    result = await runtime.write_many([upload], folders=(), existing="merge")
    for error in result.errors:
        if error is not None:
            raise error


async def extract_as_it_can(
    archive: Archive, target: str, send: Callable[[SourceParcel], Awaitable[None]]
) -> int:
    """Send an archive as it is, or uncompressed, where the sandbox cannot unpack that.

    Returns how often it was sent.
    """
    await trio.lowlevel.checkpoint()
    if archive.compression == "gzip":  # which is nearly everywhere, as others are not
        try:
            await send(SourceParcel(archive, target, is_plain=False))
        except MissingProgramError as exc:
            if exc.program != "gzip":
                raise
        else:
            return 1
    await send(SourceParcel(archive, target, is_plain=True))
    return 1 + (archive.compression == "gzip")


class CommandedRuntime(ABC):
    """What every runtime shares that can run a command and give it an input.

    Relative targets are taken from `path`, which may begin with `~`. Cancelled, it closes the
    command's input, which ends what runs in the sandbox, and waits a moment for it.
    """

    def __init__(self, path: str, max_in_flight: int) -> None:
        self._path = path
        self._limiter = trio.CapacityLimiter(max_in_flight)
        self.traits = Traits(max_in_flight=max_in_flight)
        """What it can bear, over all installs."""

    @abstractmethod
    async def _execute(self, call: Call, payload: Payload) -> RunResult:
        """Run a command in the sandbox. When its answer is whole, nothing more needs to be sent."""

    async def write(self, target: str, data: bytes) -> None:
        """Write a whole file, making the folders above it, or raise."""
        *above, name = components(target) or [""]
        if not name:
            raise IsADirectoryError("a folder is no file")
        folder = "/" * target.startswith("/") + "/".join(above)
        base, rel = _far_side.locate(self._path, folder)
        call = _far_side.call("write", base, rel, name, str(len(data)))
        await self._ask(call, data)

    async def write_many(
        self, uploads: Sequence[Upload], *, folders: Sequence[str], existing: Existing
    ) -> PackedResult:
        """Write many files by one command for each folder that holds skills; see `WritesMany`."""
        return await write_parcels(uploads, folders, existing, self._send)

    async def _send(self, parcel: Parcel, existing: Existing) -> Sent:
        errors: dict[str, Exception] = {}
        call = parcel.call(self._path, existing)
        reply = await self._ask(call, lambda: parcel.archive(existing, errors))
        return Sent(parcel.errors(reply, existing, errors), reply.in_place)

    async def extract(self, archive: Archive, target: str) -> int:
        """Make the folder `target` an archive's tree, by one command; see `Extracts`."""
        return await extract_as_it_can(archive, target, self._send_source)

    async def _send_source(self, parcel: SourceParcel) -> None:
        call = parcel.call(self._path)
        payload = partial(parcel.plain, call) if parcel.is_plain else parcel.archive.data
        parcel.check(await self._ask(call, payload))

    async def inspect(self, targets: Sequence[str]) -> Mapping[str, FileState]:
        """Return the state of every target, by one command."""
        call = _far_side.call("inspect", _far_side.as_base(self._path), "")
        result = await self._limited(call, _far_side.listed(targets))
        return _far_side.read_states(targets, call, result)

    async def set_executable(self, targets: Sequence[str]) -> None:
        """Make files executable, by one command."""
        call = _far_side.call("make_executable", _far_side.as_base(self._path), "")
        await self._ask(call, _far_side.listed(targets))

    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        """Run a command in the sandbox's folder, with `env` over its environment.

        Exit codes are a shell's: 127 where there is no such command, 126 where it may not be
        executed, 128 and the signal's number where one ended it. Who may list this machine's
        processes, or the sandbox's, can see `argv` and `env`.

        **Cancellation:** kills the command and what it started, unless that left its session.
        """
        call = _far_side.run(_far_side.as_base(self._path), argv, env)
        return call.ended(await self._limited(call, None))

    async def _ask(self, call: Call, payload: Payload) -> _far_side.Reply:
        return _far_side.read_reply(call, await self._limited(call, payload))

    async def _limited(self, call: Call, payload: Payload) -> RunResult:
        async with self._limiter:
            return await self._execute(call, payload)
