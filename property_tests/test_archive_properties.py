"""The same tree is the same bytes, everywhere; and whoever unpacks them gets that tree."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from property_tests.source_trees import SourceTree, names, read_members, source_trees
from tests.conftest import unavailable
from tests.trees import write_tree
from trio_skills import Archive, ArchiveError, Compression, SourceChangedError, _tar
from trio_skills._archive import EPOCH, Recipe, build_in_memory, unpacked
from trio_skills._archive import build as build_to
from trio_skills._compress import decompressed
from trio_skills._source_tree import wrong_link

COMPRESSIONS: tuple[Compression, ...] = ("gzip", "zstd", "none")

SOME = settings(max_examples=max(5, settings().max_examples // 4))
"""Of what starts processes for each example."""


@pytest.fixture(autouse=True, scope="module")
def no_source_date_epoch() -> Iterator[None]:
    """Who builds a package may have set one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SOURCE_DATE_EPOCH", raising=False)
        yield


def build(
    root: str | Path, compression: Compression = "none", members: Sequence[str] | None = None
) -> Archive:
    recipe = Recipe.of(root, members, (), compression, missing_ok=False).resolved()
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


@given(source_trees().filter(lambda tree: tree.members))
def test_all_that_is_in_the_root_is_the_whole_tree(tree: SourceTree) -> None:
    with folder() as place:
        root = tree.write(place / "tree")
        assert build(root, members=os.listdir(root)) == build(root)


# The second line of each is of the tree's own members, under whatever names the locale shows them.
BUILD_ALL = """
import hashlib, os, sys, time
time.time = lambda: 4e9
from trio_skills._archive import Recipe, build_in_memory
for root in sys.stdin.buffer.read().decode().split("\\0"):
    listed = [os.fsencode(name).decode() for name in os.listdir(root)]
    for members in (None, listed or None):
        recipe = Recipe.of(root, members, (), "gzip", False).resolved()
        archive = build_in_memory(recipe, lambda: None)[1]
        print(archive.digest, hashlib.sha256(archive.data).hexdigest())
"""

ELSEWHERE: Sequence[dict[str, str]] = (
    {"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo"},
    {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
)


@settings(max_examples=3)
@given(st.lists(source_trees(), min_size=8, max_size=8))
def test_other_processes_make_the_same_bytes(trees: list[SourceTree]) -> None:
    """With another hash seed, locale, clock, umask and working directory, for other owners."""
    with folder() as place:
        here = [tree.write(place / "here" / f"t{n}") for n, tree in enumerate(trees)]
        there = [
            tree.write(place / "there" / f"t{n}", backwards=True, mtime=2e9)
            for n, tree in enumerate(trees)
        ]
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", "-h", "12345:54321", str(place / "there")], check=True)
        archives = [build(root, "gzip") for root in here]
        expected = [[a.digest, hashlib.sha256(a.data).hexdigest()] for a in archives for _ in "12"]
        for environment in ELSEWHERE:
            printed = subprocess.run(
                [sys.executable, "-c", BUILD_ALL],
                input="\0".join(os.path.relpath(root, place) for root in there).encode(),
                env={"PYTHONPATH": os.getcwd(), **environment},
                cwd=place,
                umask=0o077,
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


FLAGS: Mapping[Compression, Sequence[str]] = {"none": (), "gzip": ("-z",), "zstd": ("--zstd",)}


def required(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            unavailable("tar-tools", f"{program} is not installed")


@pytest.mark.tar_tools
@pytest.mark.parametrize(
    ("tool", "compression"),
    [
        *((tool, c) for tool in ("tar", "bsdtar") for c in COMPRESSIONS),
        *((tool, c) for tool in ("busybox tar", "python") for c in ("none", "gzip")),
    ],
)
def test_every_tar_unpacks_the_same_tree(tool: str, compression: Compression) -> None:
    command = [*tool.split(), "-x", *FLAGS[compression]]
    if tool != "python":
        required(command[0], *(["zstd"] if compression == "zstd" else []))

    def extract(archive: Path, into: Path, *, by_pipe: bool) -> None:
        if tool == "python":
            by_python(archive, into)
            return
        source = "-" if by_pipe else str(archive)
        with open(archive, "rb") as file:
            full = [*command, "-f", source, "-C", str(into)]
            subprocess.run(full, stdin=file, check=True)

    @SOME
    @given(source_trees(), st.booleans())
    def check(tree: SourceTree, by_pipe: bool) -> None:
        with folder() as place:
            root = tree.write(place / "tree")
            archive = place / "archive"
            archive.write_bytes(build(root, compression).data)
            into = place / "into"
            into.mkdir()
            extract(archive, into, by_pipe=by_pipe)
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


@pytest.mark.tar_tools
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
    for tool in ("tar", "busybox tar", "bsdtar"):
        command = [*tool.split(), "-tvf", "-"]
        required(command[0])
        listed = subprocess.run(command, input=header, capture_output=True, check=False).stdout
        assert str(size).encode() in listed.split()


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


BEFORE = {"a/x": b"1" * 99, "b/y": b"1" * 99, "c": b"1" * 99, "d/e/z": b"1"}


def pair_rewritten(root: Path) -> None:
    """Two files that belong together: an archive with one of them would be a mixture."""
    for path in ("a/x", "c"):
        (root / path).write_bytes(b"2" * 99)


def turned(root: Path) -> None:
    (root / "link").unlink()
    (root / "link").symlink_to("b")


def replaced_by_a_link(root: Path) -> None:
    os.rename(root / "d", root / "f")
    os.symlink("f", root / "d")


CHANGES: Mapping[str, Callable[[Path], object]] = {
    "pair-rewritten": pair_rewritten,
    "grown": lambda root: (root / "a" / "x").write_bytes(b"2" * 100),
    "shrunk": lambda root: (root / "a" / "x").write_bytes(b""),
    "renamed-over": lambda root: os.replace(root / "b" / "y", root / "a" / "x"),
    "folder-renamed": lambda root: os.rename(root / "d", root / "f"),
    "a-link-for-a-folder": replaced_by_a_link,
    "folder-removed": lambda root: shutil.rmtree(root / "a"),
    "added": lambda root: (root / "b" / "new").write_bytes(b"2"),
    "link-turned": turned,
    "made-executable": lambda root: (root / "c").chmod(0o755),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whenever_a_tree_changes_its_archive_is_of_before_or_of_after(
    tmp_path: Path, change: str
) -> None:
    """At every point at which a build can be cancelled, or hands on a piece."""

    def make(name: str) -> Path:
        root = tmp_path / name / "tree"
        write_tree(root, BEFORE)
        (root / "empty").mkdir()
        (root / "link").symlink_to("c")
        return root

    def outcome(root: Path, when: int) -> tuple[str, int]:
        """Return the digest, or what an error says, and how many points there were."""
        count = 0

        def step(_: bytes = b"") -> None:
            nonlocal count
            count += 1
            if count == when:
                CHANGES[change](root)

        recipe = Recipe.of(root, None, (), "none", missing_ok=False).resolved()
        try:
            return build_to(recipe, step, step).info.digest, count
        except (SourceChangedError, ArchiveError) as exc:
            return str(exc), count

    before, points = outcome(make("before"), 0)
    changed = make("after")
    CHANGES[change](changed)
    after = build(changed).digest
    # All are made first: only one that has just been written must be waited for.
    roots = {when: make(str(when)) for when in range(1, points + 1)}
    found = [outcome(root, when)[0] for when, root in roots.items()]
    assert before != after == found[0]
    errors = {root: said for root, said in zip(roots.values(), found, strict=True) if " " in said}
    assert errors
    assert all(f"{root}/" in said for root, said in errors.items())
    assert set(found) - set(errors.values()) <= {before, after}


def test_of_a_tree_that_is_always_rewritten_every_archived_file_is_whole(tmp_path: Path) -> None:
    versions = [b"1" * 50_000, b"2" * 50_000]
    write_tree(tmp_path, {f"f{number}": versions[0] for number in range(20)})
    stop = threading.Event()

    def rewrite() -> None:
        """Without a pause no archive could be finished; with it some are, and some not."""
        for turn in itertools.count(1):
            with open(tmp_path / f"f{turn % 20}", "r+b", buffering=0) as file:
                file.write(versions[turn % 2])
            if stop.wait(0.002 if turn % 30 else 0.1):
                return

    outcomes: Counter[str] = Counter()
    deadline = time.monotonic() + 20
    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        while min(outcomes["whole"], outcomes["changed"]) < 5:
            assert time.monotonic() < deadline, outcomes
            try:
                found = [b"".join(content) for _, content in unpacked(build(tmp_path))]
            except SourceChangedError:
                outcomes["changed"] += 1
            else:
                outcomes["whole"] += 1
                assert len(found) == 20
                assert all(content in versions for content in found)
    finally:
        stop.set()
        thread.join()
