"""Many files in one transfer, for a runtime that has only `write` and `run`."""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import final

import trio

from trio_skills import _far_side
from trio_skills._archive import Archive
from trio_skills._commands import ENVIRONMENT, as_argument
from trio_skills._far_side import Call, Parcel, Reply
from trio_skills._far_side_source import SourceParcel
from trio_skills._runtime import Existing, PackedResult, RunResult, Runtime, traits_of
from trio_skills._threads import in_thread
from trio_skills._upload import Upload
from trio_skills.runtimes._commanded import (
    Sent,
    extract_as_it_can,
    write_packed,
    write_parcels,
)

_PATIENCE = 5.0
"""Seconds that removing an archive may take, after a failure or a cancellation."""


@final
class Packing:
    """A runtime over another one: it writes one tar archive, and unpacks it with one command.

    The sandbox needs `sh`, `tar`, `mkdir`, `mv` and `rm`. An archive is held in memory. What the
    inner runtime calls written is not believed: the command looks for the archive's last member.
    """

    def __init__(self, runtime: Runtime) -> None:
        """Write by way of `runtime`."""
        self._runtime = runtime
        self.traits = traits_of(runtime)
        """The inner runtime's."""

    def __repr__(self) -> str:
        return f"Packing({self._runtime!r})"

    async def write(self, target: str, data: bytes) -> None:
        """Write a file as a packed one: so it is whole, or an error."""
        await write_packed(self, target, data)

    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        """Run a command; the inner runtime's."""
        return await self._runtime.run(argv, env)

    async def write_many(
        self, uploads: Sequence[Upload], *, folders: Sequence[str], existing: Existing
    ) -> PackedResult:
        """Write many files by one write and one command; see `WritesMany`."""
        return await write_parcels(uploads, folders, existing, self._send)

    async def _send(self, parcel: Parcel, existing: Existing) -> Sent:
        errors: dict[str, Exception] = {}

        def pack() -> bytes:
            with closing(parcel.archive(existing, errors)) as pieces:
                return b"".join(pieces)

        name = _archive_name()
        there = posixpath.join(parcel.folder, name)
        call = parcel.call("", existing, name)
        reply = await self._unpack(there, await in_thread(pack), call)
        return Sent(parcel.errors(reply, existing, errors), reply.in_place, round_trips=2)

    async def extract(self, archive: Archive, target: str) -> int:
        """Make a folder an archive's tree, by one write and one command; see `Extracts`."""
        return 2 * await extract_as_it_can(archive, target, self._send_source)

    async def _send_source(self, parcel: SourceParcel) -> None:
        name = _archive_name()
        there = posixpath.join(posixpath.dirname(parcel.target), name)
        call = parcel.call("", name)
        data = parcel.archive.data
        if parcel.is_plain:
            data = await in_thread(lambda: b"".join(parcel.plain(call)))
        parcel.check(await self._unpack(there, data, call))

    async def _unpack(self, there: str, archive: bytes, call: Call) -> Reply:
        """Write an archive, and run the call that unpacks it."""
        try:
            await self._runtime.write(there, archive)
            return _far_side.read_reply(call, await self._runtime.run(call.argv, ENVIRONMENT))
        except BaseException:
            with trio.move_on_after(_PATIENCE, shield=True):
                await self._remove(there)
            raise

    async def _remove(self, path: str) -> None:  # noqa: ASYNC910  # it has, or fails
        with suppress(Exception):  # the failure to report is the first one
            await self._runtime.run(["rm", "-f", "--", as_argument(path)], ENVIRONMENT)


def _archive_name() -> str:
    return f".trio-skills-{secrets.token_hex(8)}.tar"
