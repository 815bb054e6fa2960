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
import trio

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


@attrs.frozen
class Versions:
    """Two trees for one name, no file of which has the content of the other's."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, number: int = 20) -> Versions:
        for version in ("one", "two"):
            make_small(folder / version / "pkg", version, number)
        return cls(folder)

    def archive(self, version: str, compression: Compression = "gzip") -> Archive:
        return trio.run(archive_of, self.folder / version / "pkg", compression)

    def tree(self, version: str) -> Tree:
        return read_tree(self.folder / version / "pkg")

    def there(self, root: Path) -> str | None:
        """Return which version is in a folder, whole; None: there is none."""
        there = read_tree(root / "pkg")
        if there == {} and not os.path.lexists(root / "pkg"):
            return None
        [version] = [v for v in ("one", "two") if self.tree(v) == there]
        return version

    def check(self, root: Path, archives: Mapping[str, Archive]) -> str | None:
        """Return which version is there. It is whole, and what is noted of it is true."""
        version = self.there(root)
        noted = note_of(root, "pkg")
        assert noted is None or (version and noted == archives[version].digest)
        return version


HOSTILE_MEMBERS: Mapping[str, Sequence[tarfile.TarInfo]] = {
    "above": [member("../x")],
    "far above": [member("../../../outside/x")],
    "above in the middle": [member("a/../../../../outside/x")],
    "absolute": [member("{outside}/x")],
    "absolute link": [member("l", tarfile.SYMTYPE, "{outside}"), member("l/x")],
    "link out": [member("l", tarfile.SYMTYPE, "../../../outside"), member("l/x")],
    "link out alone": [member("l", tarfile.SYMTYPE, "../outside")],
    "link inside": [member("d", tarfile.DIRTYPE), member("l", tarfile.SYMTYPE, "d"), member("l/x")],
    "hard link": [member("l", tarfile.LNKTYPE, "{outside}/secret"), member("l")],
    "device": [member("l", tarfile.CHRTYPE)],
    "FIFO": [member("l", tarfile.FIFOTYPE)],
    "twice": [member("x"), member("x")],
}


# Installs by a runtime of the kind $1 into $2, in turns, the archives of all others.
CLIENT = """
import sys, trio
from pathlib import Path
from tests.sources import Sandbox, archive_of
async def main():
    archives = [await archive_of(Path(source, "pkg")) for source in sys.argv[3:]]
    sandbox = Sandbox(sys.argv[1], Path(sys.argv[2]))
    print("ready", flush=True)
    while True:
        for archive in archives:
            await sandbox.put([archive])
trio.run(main)
"""


# Before each change of a file system that an install makes it is killed once, and then another one
# is installed beside it. It forks, to lose no time with imports; Trio is in the children alone.
STEPS = """
import os, signal, sys, trio
from pathlib import Path
from tests.sources import Sandbox, Versions, archive_of, leftovers

folder = Path(sys.argv[1])
versions, sandbox = Versions(folder / "versions"), Sandbox("local", folder / "root")
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.utime", "open")

async def archive(version):
    return await archive_of(versions.folder / version / "pkg")

async def killed(wanted, at):
    sent = await archive(wanted)
    count = 0
    def hook(event, arguments):
        nonlocal count
        if event in CHANGES:
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    await sandbox.put([sent])

async def check(other):
    archives = {version: await archive(version) for version in ("one", "two")}
    versions.check(sandbox.root, archives)
    await sandbox.put({"other": archives[other]})  # another one each time, so that it is sent
    assert versions.check(sandbox.root, archives) is not None
    assert leftovers(sandbox.root) == [], leftovers(sandbox.root)

def forked(work, *arguments):
    pid = os.fork()
    if pid == 0:
        try:
            trio.run(work, *arguments)
        except BaseException as exc:
            print(arguments, repr(exc), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

code = -9
at = 0
while code == -9:
    at += 1
    old, new = ("one", "two") if at % 2 else ("two", "one")
    assert forked(killed, old, 0) == 0
    code = forked(killed, new, at)
    if forked(check, new):
        print("killed before change", at, flush=True)
assert code == 0, code
assert at > 20, at
"""
