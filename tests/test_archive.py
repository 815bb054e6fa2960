"""What goes into an archive, what is refused, and what becomes of one that cannot be finished."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from tests.trees import write_tree
from trio_skills import Archive, ArchiveError, SourceChangedError, write_archive
from trio_skills._archive import Recipe, build, build_in_memory, unpacked, write
from trio_skills._tar import END

Contents = dict[str, bytes]


def recipe(root: Path, **options: object) -> Recipe:
    arguments = {"members": None, "exclude": (), "compression": "none", "missing_ok": False}
    return Recipe.of(root, **(arguments | options)).resolved()  # type: ignore[arg-type]  # of many types


def made(root: Path, **options: object) -> Archive:
    return build_in_memory(recipe(root, **options), lambda: None)[1]


def names(archive: Archive) -> list[str]:
    return [member.name for member, _ in unpacked(archive)]


def contents(archive: Archive) -> Contents:
    return {m.name: b"".join(c) for m, c in unpacked(archive) if m.isreg()}


def kinds(error: pytest.ExceptionInfo[ArchiveError], root: Path) -> dict[str, str]:
    return {os.path.relpath(p.path, root): p.kind for p in error.value.problems}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    write_tree(root, {"a": b"1", "b/c": (b"2", True), "b/d/e": b"3", "f.log": b"4"})
    (root / "empty").mkdir()
    return root


class TestMembers:
    """What is asked for is in it, with the folders above, or it is said what is wrong."""

    def test_all_by_default_without_what_is_always_left_out(self, tree: Path) -> None:
        write_tree(tree, {".git/x": b"", "b/__pycache__/y.pyc": b"", ".DS_Store": b"", ".env": b""})
        expected = [".env", "a", "b", "b/c", "b/d", "b/d/e", "empty", "f.log"]
        assert names(made(tree)) == expected

    def test_patterns_leave_out_and_take_back_in(self, tree: Path) -> None:
        write_tree(tree, {".git/x": b""})
        assert names(made(tree, exclude=["*.log", "d/", "!.git"])) == [
            *(".git", ".git/x", "a", "b", "b/c", "empty")
        ]

    def test_chosen_ones_come_with_the_folders_above(self, tree: Path) -> None:
        assert names(made(tree, members=["b/d/e", "a"])) == ["a", "b", "b/d", "b/d/e"]

    @pytest.mark.parametrize("members", [["b", "b/d/e"], ["b/d", "./b/", "b//d/e"], (Path("b"),)])
    def test_one_within_another_comes_once(self, tree: Path, members: list[str]) -> None:
        assert names(made(tree, members=members)) == ["b", "b/c", "b/d", "b/d/e"]

    def test_their_order_is_no_difference(self, tree: Path) -> None:
        assert recipe(tree, members=["a", "b"]) == recipe(tree, members=("b", "a", "a"))

    def test_a_dot_is_the_whole_tree(self, tree: Path) -> None:
        assert made(tree, members=["."]).digest == made(tree).digest

    def test_a_missing_one_is_refused_or_left_out(self, tree: Path) -> None:
        with pytest.raises(ArchiveError, match="no such member") as caught:
            made(tree, members=["a", "nope", "b/nope"])
        assert kinds(caught, tree) == {"nope": "member-missing", "b/nope": "member-missing"}
        assert names(made(tree, members=["a", "nope"], missing_ok=True)) == ["a"]

    def test_all_that_is_wrong_is_said_at_once(self, tree: Path) -> None:
        write_tree(tree, {"x.pyc": b"", ".git/config": b""})
        (tree / "to-b").symlink_to("b")
        wrong = [
            "../x",
            "nope",
            "b/no",
            "x.pyc",
            ".git/config",
            "to-b/c",
            "a/b",
            "\0",
            "/etc/../..",
        ]
        with pytest.raises(ArchiveError) as caught:
            made(tree, members=["a", "b", *wrong])
        found = {os.path.relpath(p.path, tree): p.kind for p in caught.value.problems}
        assert len(caught.value.problems) == len(wrong)
        assert found["x.pyc"] == found[".git/config"] == "member-excluded"
        assert found["to-b/c"] == found["a/b"] == "member-unreadable"
        assert list(found.values()).count("member-invalid") == 3

    def test_an_absolute_one_counts_from_the_root(self, tree: Path) -> None:
        assert names(made(tree, members=["/a"])) == ["a"]

    @pytest.mark.parametrize("wrong", ["a", b"a", Path("a")])
    def test_one_path_is_no_list(self, tree: Path, wrong: object) -> None:
        with pytest.raises(TypeError, match="list of paths"):
            recipe(tree, members=wrong)
        with pytest.raises(TypeError, match="list of patterns"):
            recipe(tree, exclude="*.log")

    def test_arguments_that_make_no_sense_are_refused(self, tree: Path) -> None:
        for name, value in (("members", []), ("compression", "lzma")):
            with pytest.raises(ValueError, match=name):
                recipe(tree, **{name: value})
        with pytest.raises(ValueError, match="pattern"):
            made(tree, exclude=["!"])
        with pytest.raises(ValueError, match="empty"):
            Recipe.of("", None, (), "none", missing_ok=False)

    @pytest.mark.parametrize("root", ["nope", "tree/a", "nul\0"])
    def test_a_root_that_is_no_folder_is_refused(
        self, tmp_path: Path, tree: Path, root: str
    ) -> None:
        with pytest.raises(ArchiveError, match="root cannot be read"):
            made(tmp_path / root)

    def test_the_name_is_the_roots_wherever_a_link_to_it_is(
        self, tmp_path: Path, tree: Path
    ) -> None:
        (tmp_path / "link").symlink_to(tree)
        assert made(tmp_path / "link").name == "tree"
        assert made(tree / "b" / "..").name == "tree"


class TestLinks:
    """They are kept as they are, and none may lead out of the tree."""

    @pytest.mark.parametrize("to", ["a", "b", "b/c", "./b//c/", "missing", "missing/too"])
    def test_inside_is_kept(self, tree: Path, to: str) -> None:
        (tree / "link").symlink_to(to)
        (tree / "b" / "up").symlink_to("../a")
        links = {m.name: m.linkname for m, _ in unpacked(made(tree)) if m.issym()}
        assert links == {"link": os.path.normpath(to), "b/up": "../a"}

    @pytest.mark.parametrize("to", ["/etc/passwd", "..", "../tree/a", "b/../../x", "b/../a", "/"])
    def test_what_leads_out_or_might_is_refused(self, tree: Path, to: str) -> None:
        (tree / "link").symlink_to(to)
        with pytest.raises(ArchiveError) as caught:
            made(tree)
        assert kinds(caught, tree) == {"link": "link-leaves"}

    def test_what_is_left_out_may_lead_anywhere(self, tree: Path) -> None:
        (tree / "link").symlink_to("/etc")
        assert "link" not in names(made(tree, exclude=["link"]))

    def test_a_link_to_a_folder_is_not_walked(self, tree: Path) -> None:
        (tree / "again").symlink_to(".")
        assert [name for name in names(made(tree)) if name.startswith("again")] == ["again"]


class TestRefused:
    """What an archive cannot hold, with its path."""

    def test_what_is_no_file_is_not_opened(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        os.mkfifo(tree / "fifo")
        with socket.socket(socket.AF_UNIX) as sock:
            monkeypatch.chdir(tree)  # the path of a socket is short
            sock.bind("sock")
        with pytest.raises(ArchiveError) as caught:
            made(tree)
        assert kinds(caught, tree) == {"fifo": "not-a-file", "sock": "not-a-file"}

    def test_names_that_are_not_utf8(self, tree: Path) -> None:
        os.mkdir(os.fsencode(tree) + b"/bad\xff")
        os.symlink(b"to\xff", os.fsencode(tree) + b"/link")
        with pytest.raises(ArchiveError) as caught:
            made(tree)
        assert [p.kind for p in caught.value.problems] == ["name-not-utf8"] * 2
        str(caught.value).encode()  # it can be printed

    def test_all_that_is_wrong_is_said_at_once(self, tree: Path) -> None:
        os.mkfifo(tree / "b" / "fifo")
        (tree / "out").symlink_to("/etc")
        os.mkdir(os.fsencode(tree) + b"/bad\xff")
        with pytest.raises(ArchiveError) as caught:
            made(tree)
        found = {os.path.basename(p.path): p.kind for p in caught.value.problems}
        assert (found["fifo"], found["out"]) == ("not-a-file", "link-leaves")
        assert sorted(found.values()) == ["link-leaves", "name-not-utf8", "not-a-file"]

    def test_a_path_that_is_too_long(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tree)
        for _ in range(21):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
        with pytest.raises(ArchiveError) as caught:
            made(tree)
        assert [p.kind for p in caught.value.problems] == ["path-too-long"]


Change = Callable[[Path], object]


def rewritten(root: Path) -> None:
    (root / "f500").write_bytes(b"y" * 100)


def renamed_over(root: Path) -> None:
    (root / "new").write_bytes(b"y" * 100)
    os.replace(root / "new", root / "f500")


def link_turned(root: Path) -> None:
    (root / "link").unlink()
    (root / "link").symlink_to("f402")


def replaced_by_a_link(root: Path) -> None:
    (root / "f500").unlink()
    (root / "f500").symlink_to("/etc/passwd")


def set_back(root: Path) -> None:
    before = (root / "f500").stat()
    rewritten(root)
    os.utime(root / "f500", ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Change] = {
    "grown": lambda root: (root / "f500").write_bytes(b"x" * 101),
    "shrunk": lambda root: (root / "f500").write_bytes(b"x" * 99),
    "emptied": lambda root: (root / "f500").write_bytes(b""),
    "rewritten": rewritten,
    "rewritten-and-its-time-set-back": set_back,
    "renamed-over": renamed_over,
    "removed": lambda root: (root / "f500").unlink(),
    "added": lambda root: (root / "f5000").write_bytes(b""),
    "folder-added": lambda root: (root / "folder").mkdir(),
    "folder-removed": lambda root: (root / "below").rmdir(),
    "link-turned": link_turned,
    "a-link-in-its-place": replaced_by_a_link,
    "mode": lambda root: (root / "f500").chmod(0o755),
}


class TestChangedMeanwhile:
    """Never torn: the tree at one moment, or an error that names what changed."""

    @pytest.fixture
    def large(self, tmp_path: Path) -> Path:
        root = tmp_path / "large"
        write_tree(root, {f"f{number}": b"x" * 100 for number in range(400, 700)})
        (root / "below").mkdir()
        (root / "link").symlink_to("f401")
        return root

    @pytest.mark.parametrize("when", ["before-its-turn", "after-its-turn"])
    @pytest.mark.parametrize("change", CHANGES)
    def test_every_change_is_noticed(self, large: Path, change: str, when: str) -> None:
        """By whichever reading: of the file itself, or of the whole tree in the end."""
        pieces: list[bytes] = []

        def take(piece: bytes) -> None:
            pieces.append(piece)
            is_first = len(pieces) == 1
            is_past = any(b"f500\0" in p for p in pieces)
            if (is_first if when == "before-its-turn" else is_past) and not done:
                done.append(True)
                CHANGES[change](large)

        done: list[bool] = []
        with pytest.raises((SourceChangedError, ArchiveError)) as caught:
            build(recipe(large), take, lambda: None)
        assert done
        path = {
            "added": "f5000",
            "folder-added": "folder",
            "folder-removed": "below",
            "link-turned": "link",
        }.get(change, "f500")
        assert f"/{path}" in str(caught.value)
        assert not b"".join(pieces).endswith(END)
        assert b"y" * 100 not in b"".join(pieces)  # nothing of another file was handed on

    def test_a_file_that_has_just_been_written_is_not_trusted_before_its_clock_has_ticked(
        self, tmp_path: Path
    ) -> None:
        """Two writes within one tick of the kernel's clock leave the same times."""
        file = tmp_path / "tree" / "file"
        file.parent.mkdir()
        for attempt in range(20):
            file.write_bytes(b"a" * 10 + bytes([attempt]))
            built = [False]

            def take(_: bytes, file: Path = file, built: list[bool] = built) -> None:
                if not built[0]:
                    built[0] = True
                    # The longest tick. Kernels that tell shorter times do not need the wait.
                    assert time.time_ns() - file.stat().st_ctime_ns >= 10_000_000
                    file.write_bytes(b"b" * 11)

            with pytest.raises(SourceChangedError):
                build(recipe(tmp_path / "tree"), take, lambda: None)

    @pytest.mark.skipif(not Path("/proc/sys").exists(), reason="there is no /proc")
    def test_a_file_that_is_longer_than_it_says_is_no_empty_one(self) -> None:
        with pytest.raises(SourceChangedError, match="/proc/sys/kernel/ostype"):
            made(Path("/proc/sys/kernel"), members=["ostype"])


class TestSourceDateEpoch:
    """The time of every member, as reproducible-builds.org has it."""

    def mtimes(self, root: Path) -> set[float]:
        return {float(member.mtime) for member, _ in unpacked(made(root))}

    def test_it_is_taken_else_1980(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        assert self.mtimes(tree) == {1_700_000_000}
        for unset in ("", None):
            monkeypatch.delenv("SOURCE_DATE_EPOCH")
            if unset is not None:
                monkeypatch.setenv("SOURCE_DATE_EPOCH", unset)
            assert self.mtimes(tree) == {315_532_800}
            monkeypatch.setenv("SOURCE_DATE_EPOCH", "")

    @pytest.mark.parametrize("wrong", ["-1", "1.5", "now", "\u0661", str(8**11), " 1", "9" * 5000])
    def test_what_is_no_number_of_seconds_is_refused(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
    ) -> None:
        monkeypatch.setenv("SOURCE_DATE_EPOCH", wrong)
        with pytest.raises(ValueError, match="SOURCE_DATE_EPOCH"):
            made(tree)


class TestWriting:
    """To a path, which gets all of it or stays as it was, or to a stream."""

    async def test_a_path_and_a_stream_get_the_same(self, tree: Path, tmp_path: Path) -> None:
        info = await write_archive(tree, tmp_path / "x.tar.gz")
        stream = io.BytesIO()
        assert await write_archive(tree, stream) == info
        assert stream.getvalue() == (tmp_path / "x.tar.gz").read_bytes()
        with open(tmp_path / "raw", "wb", buffering=0) as raw:
            await write_archive(tree, raw)
        assert (tmp_path / "raw").read_bytes() == stream.getvalue()
        assert info.size == len(stream.getvalue())
        assert info.digest == made(tree).digest

    async def test_one_that_lies_in_its_tree_leaves_itself_out(self, tree: Path) -> None:
        first = await write_archive(tree, tree / "x.tar", compression="none")
        data = (tree / "x.tar").read_bytes()
        assert await write_archive(tree, tree / "b" / ".." / "x.tar", compression="none") == first
        assert (tree / "x.tar").read_bytes() == data
        with open(tree / "x.tar", "r+b") as file:
            assert await write_archive(tree, file, compression="none") == first

    async def test_a_failure_leaves_the_old_one(self, tree: Path, tmp_path: Path) -> None:
        (tmp_path / "x.tar").write_bytes(b"old")
        (tree / "link").symlink_to("/")
        with pytest.raises(ArchiveError):
            await write_archive(tree, tmp_path / "x.tar")
        assert (tmp_path / "x.tar").read_bytes() == b"old"
        assert sorted(os.listdir(tmp_path)) == ["tree", "x.tar"]

    async def test_a_cancellation_leaves_the_old_one(self, tmp_path: Path) -> None:
        root = tmp_path / "tree"
        root.mkdir()
        with open(root / "huge", "wb") as file:
            file.truncate(20 * 2**30)
        (tmp_path / "x.tar").write_bytes(b"old")
        with trio.move_on_after(0.2) as scope:
            await write_archive(root, tmp_path / "x.tar")
        assert scope.cancelled_caught
        assert (tmp_path / "x.tar").read_bytes() == b"old"
        assert sorted(os.listdir(tmp_path)) == ["tree", "x.tar"]

    def test_a_link_stays_and_so_does_the_mode(self, tree: Path, tmp_path: Path) -> None:
        (tmp_path / "real").write_bytes(b"old")
        (tmp_path / "real").chmod(0o640)
        (tmp_path / "link").symlink_to("real")
        write(recipe(tree), tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real").read_bytes() == made(tree).data
        assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o640

    def test_what_is_no_file_is_written_to_and_not_replaced(
        self, tree: Path, tmp_path: Path
    ) -> None:
        write(recipe(tree), "/dev/null")
        assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
        os.mkfifo(tmp_path / "fifo")
        with subprocess.Popen(["cat", tmp_path / "fifo"], stdout=subprocess.PIPE) as reader:
            info = write(recipe(tree), tmp_path / "fifo")
            read = reader.communicate()[0]
        assert hashlib.sha256(read).hexdigest() == info.digest

    @pytest.mark.parametrize("answer", [None, 0])
    def test_a_stream_that_takes_nothing_is_not_asked_for_ever(
        self, tree: Path, answer: int | None
    ) -> None:
        """As one that does not block, or a class that does not say how much it took."""
        calls = 0

        class Stream(io.RawIOBase):
            def write(self, data: object, /) -> int | None:
                nonlocal calls
                calls += 1
                assert calls < 1000
                return answer

        with pytest.raises((OSError, ValueError, TypeError)):
            write(recipe(tree), Stream())  # type: ignore[arg-type]  # raw, as an unbuffered file
