"""What travels together, and what waits for what: decided here, carried out by `_install`."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import attrs

from trio_skills._upload import Upload

Strategy: TypeAlias = Literal["auto", "sequential", "batched", "concurrent", "packed"]
"""How files travel: one after another, in batches that wait for each other, a task for each, or
many in one transfer. `auto` packs where the runtime can, else it is `concurrent`."""


@attrs.frozen
class Transfer:
    """What is sent by one call to the runtime, and counted once by the limits."""

    number: int
    """From 0, in the order of starting."""
    uploads: tuple[Upload, ...]
    """What it carries."""
    folders: tuple[str, ...] = ()
    """The skill folders that it carries whole."""

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(upload.size for upload in self.uploads)


def in_waves(uploads: Sequence[Upload], size: int) -> Iterator[Iterator[Transfer]]:
    """Yield waves of `size` transfers of a file each."""
    for start in range(0, len(uploads), max(1, size)):
        wave = uploads[start : start + size]
        yield (Transfer(number, (upload,)) for number, upload in enumerate(wave, start))


def pack(
    uploads: Sequence[Upload], folders: Sequence[str], max_bytes: int, max_files: int | None
) -> Iterator[Transfer]:
    """Yield transfers of many files each, cut between skill folders.

    A folder that is larger than `max_bytes` or `max_files` is a transfer of its own: it would not
    appear whole otherwise.
    """
    batch: list[Upload] = []
    whole: list[str] = []
    size = 0
    numbers = itertools.count()
    for folder, members in by_folder(uploads, frozenset(folders)):
        more = sum(upload.size for upload in members)
        too_many = max_files is not None and len(batch) + len(members) > max_files
        if batch and (size + more > max_bytes or too_many):
            yield Transfer(next(numbers), tuple(batch), tuple(whole))
            batch, whole, size = [], [], 0
        batch += members
        whole += [] if folder is None else [folder]
        size += more
    if batch:
        yield Transfer(next(numbers), tuple(batch), tuple(whole))


def by_folder(
    uploads: Sequence[Upload], folders: frozenset[str]
) -> Iterator[tuple[str | None, list[Upload]]]:
    """Yield each skill folder with its uploads, and an upload that is in none by itself."""

    def folder_of(upload: Upload) -> str:
        folder = upload.target
        while folder not in folders and folder not in ("", "/"):
            folder = posixpath.dirname(folder)
        return folder if folder in folders else upload.target

    for folder, members in itertools.groupby(uploads, folder_of):
        yield folder if folder in folders else None, list(members)
