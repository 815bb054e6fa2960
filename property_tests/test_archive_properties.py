"""The same tree is the same bytes, everywhere; and whoever unpacks them gets that tree."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from property_tests.source_trees import SourceTree, names, read_members, source_trees
from tests.conftest import unavailable
from trio_skills import Archive, Compression, _tar
from trio_skills._archive import EPOCH, Recipe, build_in_memory, unpacked
from trio_skills._archive import build as build_to
from trio_skills._compress import decompressed
from trio_skills._source_tree import wrong_link

COMPRESSIONS: tuple[Compression, ...] = ("gzip", "zstd", "none")


def build(root: str | Path, compression: Compression = "none") -> Archive:
    recipe = Recipe.of(root, None, (), compression, missing_ok=False).resolved()
    return build_in_memory(recipe, lambda: None)[1]


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@given(source_trees(), st.sampled_from([0o022, 0o077, 0o000]), st.sampled_from(COMPRESSIONS))
def test_the_same_tree_is_the_same_bytes(
    tree: SourceTree, umask: int, compression: Compression
) -> None:
    """Made in another order, at another time, under another umask; named from within."""
    with folder() as place:
        one = tree.write(place / "a" / "tree")
        before = os.umask(umask)
        try:
            other = tree.write(place / "b" / "tree", backwards=True, mtime=1e9)
        finally:
            os.umask(before)
        here = Path.cwd()
        os.chdir(other.parent)
        try:
            assert build("tree", compression) == build(one, compression)
        finally:
            os.chdir(here)


BUILD_ALL = """
import hashlib, sys, time
time.time = lambda: 4e9
from trio_skills._archive import Recipe, build_in_memory
for root in sys.stdin.buffer.read().decode("utf-8", "surrogateescape").split("\\0"):
    recipe = Recipe.of(root, None, (), "gzip", False).resolved()
    archive = build_in_memory(recipe, lambda: None)[1]
    print(archive.digest, hashlib.sha256(archive.data).hexdigest())
"""

ELSEWHERE: Sequence[dict[str, str]] = (
    {"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo"},
    {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
)


@settings(max_examples=5)
@given(st.lists(source_trees(), min_size=6, max_size=6))
def test_other_processes_make_the_same_bytes(trees: list[SourceTree]) -> None:
    """With another hash seed, time zone, locale, clock and working directory, for other owners."""
    with folder() as place:
        here = [tree.write(place / "here" / f"t{n}") for n, tree in enumerate(trees)]
        there = [
            tree.write(place / "there" / f"t{n}", backwards=True, mtime=2e9)
            for n, tree in enumerate(trees)
        ]
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", "-h", "12345:54321", str(place / "there")], check=True)
        archives = [build(root, "gzip") for root in here]
        expected = [[a.digest, hashlib.sha256(a.data).hexdigest()] for a in archives]
        for environment in ELSEWHERE:
            printed = subprocess.run(
                [sys.executable, "-c", BUILD_ALL],
                input="\0".join(map(str, there)).encode(),
                env={"PYTHONPATH": os.getcwd(), **environment},
                cwd=place,
                capture_output=True,
                check=True,
            ).stdout.decode()
            assert [line.split() for line in printed.splitlines()] == expected


@given(source_trees())
def test_the_digest_is_the_tars_however_it_is_compressed(tree: SourceTree) -> None:
    with folder() as place:
        root = tree.write(place / "tree")
        for compression in COMPRESSIONS:
            archive = build(root, compression)
            tar = b"".join(decompressed(archive.data, compression, 1000))
            assert archive.digest == hashlib.sha256(tar).hexdigest()
            assert (archive.tar_size, archive.size) == (len(tar), len(archive.data))
            assert archive.member_count == len(tree.members)


def test_members_are_sorted_by_their_bytes_and_belong_to_nobody() -> None:
    @given(source_trees())
    def check(tree: SourceTree) -> None:
        with folder() as place:
            members = [member for member, _ in unpacked(build(tree.write(place / "tree")))]
        paths = [member.name.removeprefix("./").encode() for member in members]
        assert paths == sorted(path.encode() for path in tree.members)
        for member in members:
            assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
            assert member.mtime == EPOCH
            assert member.mode in ((0o777,) if member.issym() else (0o644, 0o755))

    check()


def by_python(archive: Path, into: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")


@pytest.mark.parametrize("tool", ["tar", "busybox tar", "bsdtar", "python"])
@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("by_pipe", [False, True])
def test_every_tar_unpacks_the_same_tree(
    tool: str, compression: Compression, *, by_pipe: bool
) -> None:
    command = [*tool.split(), "-xz" if compression == "gzip" else "-x"]
    if tool != "python" and shutil.which(command[0]) is None:
        unavailable("tar-tools", f"{command[0]} is not installed")

    def extract(archive: Path, into: Path) -> None:
        if tool == "python":
            by_python(archive, into)
        else:
            source = "-" if by_pipe else str(archive)
            with open(archive, "rb") as file:
                full = [*command, "-f", source, "-C", str(into)]
                subprocess.run(full, stdin=file, check=True)

    @given(source_trees())
    def check(tree: SourceTree) -> None:
        with folder() as place:
            root = tree.write(place / "tree")
            archive = place / "archive"
            archive.write_bytes(build(root, compression).data)
            into = place / "into"
            into.mkdir()
            extract(archive, into)
            assert read_members(into) == tree.members
            for path in tree.files:
                assert (into / path).stat().st_mtime == EPOCH

    check()


numbers = st.one_of(st.integers(0, 8**12), st.sampled_from([8**7 - 1, 8**7, 8**11 - 1, 8**11]))
paths = st.lists(names(), min_size=1, max_size=5).map("/".join)


@given(paths, numbers, st.booleans(), st.tuples(numbers, numbers), st.integers(0, 8**11 - 1))
def test_headers_are_those_that_python_writes(
    path: str, size: int, executable: bool, owner: _tar.Owner, mtime: int
) -> None:
    owner = (owner[0] % 2**32, owner[1] % 2**32)

    def by_tarfile(kind: bytes, size: int, mode: int, to: str = "") -> bytes:
        member = tarfile.TarInfo(path)
        member.type, member.size, member.mode, member.linkname = kind, size, mode, to
        member.uid, member.gid = owner
        member.mtime = mtime
        return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")

    mode = 0o755 if executable else 0o644
    header = _tar.header(path, size, executable=executable, owner=owner, mtime=mtime)
    assert header == by_tarfile(tarfile.REGTYPE, size, mode)
    assert _tar.folder(path, owner, mtime) == by_tarfile(tarfile.DIRTYPE, 0, 0o755)
    assert _tar.link(path, path, owner, mtime) == by_tarfile(tarfile.SYMTYPE, 0, 0o777, path)


def test_a_file_over_8_gib_has_its_size_in_the_header(tmp_path: Path) -> None:
    """Of a sparse file, as far as the header: what is behind it is not read."""
    size = 9 * 2**30 + 5
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(size)
    begun = io.BytesIO()

    def write(piece: bytes) -> None:
        begun.write(piece)
        raise InterruptedError

    recipe = Recipe.of(tmp_path, None, (), "none", missing_ok=False).resolved()
    with pytest.raises(InterruptedError):
        build_to(recipe, write, lambda: None)
    header = begun.getvalue()[:512]
    assert tarfile.TarInfo.frombuf(header, "utf-8", "strict").size == size
    for command in (["tar", "-tvf", "-"], ["busybox", "tar", "-tvf", "-"], ["bsdtar", "-tvf", "-"]):
        if shutil.which(command[0]) is None:
            unavailable("tar-tools", f"{command[0]} is not installed")
        listed = subprocess.run(command, input=header, capture_output=True, check=False).stdout
        assert str(size).encode() in listed


@given(st.lists(st.sampled_from(["a", "b", "..", ".", ""]), min_size=1, max_size=6), st.data())
def test_a_link_that_is_accepted_stays_in_the_tree(parts: list[str], data: st.DataObject) -> None:
    """Wherever its parts lead: whichever of them are folders, links themselves, or missing."""
    path = data.draw(st.sampled_from(["l", "a/l", "a/b/l"]))
    to = "/".join(parts)
    if not to or wrong_link(path, to):
        return
    with folder() as place:
        root = place / "root"
        (root / "a" / "b").mkdir(parents=True)
        for name, goal in (("b", "a/b"), ("a/a", "b")):
            if data.draw(st.booleans()):
                (root / name).symlink_to(goal)
        (root / path).symlink_to(to)
        assert os.path.realpath(root / path).startswith(os.path.realpath(root))
