"""Source trees for tests, their archives, and sandboxes of this machine to unpack them in."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import get_args

import attrs
import pytest

from tests.far_sides import LITTER, litter
from tests.test_packing import Folder
from tests.trees import Content, Tree, read_tree, write_tree
from trio_skills import (
    Archive,
    ArchiveCache,
    Compression,
    ExecRuntime,
    Limits,
    Report,
    Runtime,
    install_sources,
    open_local,
)

NOTES = f"{LITTER}.sources"
"""The folder, beside the trees, in which it is noted what they were made of."""

COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
every_compression = pytest.mark.parametrize("compression", COMPRESSIONS)

KINDS = ("local", "exec", "two methods")
every_kind = pytest.mark.parametrize("kind", KINDS)

HOSTILE = (
    "a b",
    "$(x)",
    "'",
    '"',
    "new\nline",
    "-rf",
    "\\",
    "*",
    "é",
    "e\u0301",
    "日本",
    "\x1b[31m",
)

FILES: Mapping[str, Content] = {
    "pyproject.toml": b"[project]\n",
    "src/pkg/__init__.py": b"",
    "src/pkg/data.bin": bytes(range(256)) * 1_200,
    "bin/go": (b"#!/bin/sh\necho gone\n", True),
    ".hidden/.file": b"hidden",
    "n" * 255: b"a long name",
    f"{'deep/' * 40}file": (b"a long path", True),
    **{f"odd/{name}/{name}": name.encode() for name in HOSTILE},
}

LINKS: Mapping[str, str] = {
    "link": "src/pkg/data.bin",
    "bin/up": "../src/pkg",
    "dangling": "no/such/thing",
    "long link": "l" * 150,
    "odd/-é": "é/é",
}


def make_source(folder: Path, files: Mapping[str, Content] = FILES) -> Path:
    """Make a source tree of everything that one can hold."""
    write_tree(folder, files)
    for path, to in LINKS.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).symlink_to(to)
    (folder / "empty" / "deep").mkdir(parents=True)
    (folder / "empty" / "wide").mkdir()
    return folder


def make_small(folder: Path, version: str, number: int = 20) -> Path:
    """Make a source tree whose every file is of this version alone."""
    files = {f"{version}/{n:02}": noise(f"{version} {n}", 20_000) for n in range(number)}
    write_tree(folder, {**files, "same": version.encode(), "bin/go": (version.encode(), True)})
    return folder


def noise(seed: str, size: int) -> bytes:
    """Return bytes that no compression makes fewer."""
    return hashlib.shake_256(seed.encode()).digest(size)


async def archive_of(folder: Path, compression: Compression = "gzip") -> Archive:
    return await ArchiveCache().source_archive(folder, compression=compression)


def hand_made(name: str, members: Sequence[tarfile.TarInfo], content: bytes = b"evil") -> Archive:
    """Return an archive that this library would not make."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for member in members:
            member.mode = 0o755
            member.size = len(content) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(content) if member.isreg() else None)
        tar.addfile(tarfile.TarInfo("last"))
    # As this library does it: without the zeros by which others fill the last record.
    data = file.getvalue()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        last = tar.getmembers()[-1]
    data = data[: last.offset_data + 1024]
    return Archive(
        name=name,
        digest=hashlib.sha256(data).hexdigest(),
        member_count=len(members) + 1,
        compression="none",
        size=len(data),
        tar_size=len(data),
        data=data,
    )


def member(name: str, kind: bytes = tarfile.REGTYPE, to: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = to
    return info


def in_folder(name: str, tree: Tree) -> Tree:
    return {f"{name}/{path}": entry for path, entry in tree.items()}


def note_of(folder: Path, name: str) -> str | None:
    """Return the digest that is noted for a folder; None: there is no note."""
    path = folder / NOTES / name
    return path.read_text().removesuffix("\n") if path.is_file() else None


def leftovers(folder: Path) -> list[Path]:
    """Return what installs made for themselves below a folder, and should have removed."""
    return [path for path in litter(folder) if path.name != NOTES]


def trees_in(folder: Path) -> Tree:
    """Return what is in a folder, without the notes."""
    tree = read_tree(folder)
    return {path: entry for path, entry in tree.items() if NOTES not in path.split("/")}


# Names the action of every command of an `ExecRuntime`, a line each, and then runs it.
_COUNTED = 'log=$1; shift; echo "$6" >>"$log"; exec "$@"'


@attrs.frozen
class Sandbox:
    """A folder of this machine, which a runtime of some kind writes into."""

    kind: str
    root: Path
    """The runtime's own folder."""
    _calls: list[str] = attrs.Factory(list)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Runtime]:
        if self.kind == "local":
            async with open_local(self.root) as local:
                yield local
        elif self.kind == "exec":
            self.log.parent.mkdir(parents=True, exist_ok=True)
            yield ExecRuntime(("sh", "-c", _COUNTED, "sh", str(self.log)), str(self.root))
        else:
            self.root.mkdir(parents=True, exist_ok=True)
            yield Folder(self.root, self._calls)

    @property
    def log(self) -> Path:
        return self.root.parent / f"{self.root.name}.log"

    @property
    def calls(self) -> int | None:
        """How many calls were made until now; None: it cannot be seen."""
        if self.kind == "local":
            return None
        if self.kind == "exec":
            return len(self.log.read_text().splitlines()) if self.log.exists() else 0
        return len(self._calls)

    async def put(
        self,
        archives: Sequence[Archive] | Mapping[str, Archive],
        dest: str = ".",
        *,
        limits: Limits | None = None,
    ) -> Report:
        """Install, and see that the report of a single archive tells how many calls that took."""
        before = self.calls
        async with self.open() as runtime:
            report = await install_sources(runtime, archives, dest, limits=limits)
        if before is not None and self.calls is not None and len(archives) == 1:
            assert report.round_trips == self.calls - before
        return report


def inode(path: Path) -> int:
    return os.lstat(path).st_ino
