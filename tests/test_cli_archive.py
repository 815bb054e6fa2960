"""`trio-skills archive`, as a user runs it."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import FrameType

import pytest

from tests.programs import MINDS_PERMISSIONS, PROGRAM, WITHOUT_POWERS, run
from tests.trees import write_tree
from trio_skills import _archive


@pytest.fixture(autouse=True)
def no_source_date_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who builds a package may have set one."""
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    write_tree(root, {"a": b"1", "b/c": (b"2", True), "-rf": b"3", "x.log": b"4"})
    return root


def names(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getnames()


def test_it_writes_the_archive_and_prints_its_digest(tree: Path, tmp_path: Path) -> None:
    ended = run("archive", tree, "-o", "x.tar", cwd=tmp_path)
    data = (tmp_path / "x.tar").read_bytes()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"{hashlib.sha256(data).hexdigest()}  x.tar\n"
    assert names(data) == ["-rf", "a", "b", "b/c", "x.log"]


def test_the_same_command_twice_writes_the_same_bytes(tree: Path) -> None:
    """Also into the tree itself."""
    command = ("archive", ".", "-o", "x.tar.gz")
    first = run(*command, cwd=tree)
    data = (tree / "x.tar.gz").read_bytes()
    os.utime(tree / "a", (5, 5))
    assert run(*command, cwd=tree).stdout == first.stdout
    assert (tree / "x.tar.gz").read_bytes() == data


def test_another_name_of_the_old_file_is_a_member_like_any(tree: Path) -> None:
    """A hard link: what takes the old one's place is no longer that file."""
    os.link(tree / "a", tree / "x.tar")
    assert run("archive", ".", "-o", "x.tar", cwd=tree).returncode == 0
    assert "a" in names((tree / "x.tar").read_bytes())


def test_a_dash_is_standard_output_and_the_digest_goes_to_the_other_one(tree: Path) -> None:
    command = [*PROGRAM, "archive", str(tree), "a", "-o", "-", "--compression", "none"]
    ended = subprocess.run(command, capture_output=True, check=True)
    assert names(ended.stdout) == ["a"]
    assert ended.stderr.decode() == f"{hashlib.sha256(ended.stdout).hexdigest()}  -\n"
    ended = subprocess.run([*command, "--json"], capture_output=True, check=True)
    assert json.loads(ended.stderr)["digest"] == hashlib.sha256(ended.stdout).hexdigest()
    assert subprocess.run([*command, "--quiet"], capture_output=True, check=True).stderr == b""


@pytest.mark.parametrize(
    ("arguments", "magic"),
    [
        (["-o", "x.tar"], b"-rf"),
        (["-o", "x.tar.gz"], b"\x1f\x8b"),
        (["--output=x"], b"\x1f\x8b"),
        (["-o", "x.tar.zst"], b"\x28\xb5\x2f\xfd"),
        (["-o", "x.tar", "--compression", "gzip"], b"\x1f\x8b"),
    ],
)
def test_the_file_tells_the_compression_unless_told(
    tree: Path, tmp_path: Path, arguments: list[str], magic: bytes
) -> None:
    assert run("archive", tree, *arguments, cwd=tmp_path).returncode == 0
    (file,) = tmp_path.glob("x*")
    assert file.read_bytes().startswith(magic)


def test_members_and_patterns_choose(tree: Path, tmp_path: Path) -> None:
    def listed(*arguments: str) -> list[str]:
        assert run("archive", tree, "-o", tmp_path / "x.tar", *arguments).returncode == 0
        return names((tmp_path / "x.tar").read_bytes())

    assert listed("--", "-rf", "b") == ["-rf", "b", "b/c"]
    assert listed("--exclude", "*.log", "--exclude", "b/") == ["-rf", "a"]
    assert listed("--missing-ok", "a", "nope") == ["a"]


def test_json_tells_what_it_is(tree: Path, tmp_path: Path) -> None:
    told = json.loads(run("archive", tree, "-o", tmp_path / "x.tar", "--json").stdout)
    data = (tmp_path / "x.tar").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    sizes = {"size": len(data), "tar_size": len(data)}
    assert told == {
        "ok": True,
        "name": "tree",
        "digest": digest,
        "member_count": 5,
        "compression": "none",
        **sizes,
    }


class TestRefused:
    """Exit code 2, all that is wrong, and nothing is written."""

    def test_a_tree_with_faults(self, tree: Path, tmp_path: Path) -> None:
        (tree / "out").symlink_to("/etc")
        (tree / "\x1b[31mred").symlink_to("..")
        ended = run("archive", tree, "-o", tmp_path / "x.tar")
        assert ended.returncode == 2
        assert "out: the link is absolute, and leads out of the tree: /etc" in ended.stderr
        assert "\x1b" not in ended.stderr
        assert not (tmp_path / "x.tar").exists()

    @pytest.mark.parametrize(
        "arguments",
        [["nope"], ["../x"], ["--compression", "lzma"], ["--exclude", "!"], ["--nope"]],
    )
    def test_arguments(self, tree: Path, tmp_path: Path, arguments: list[str]) -> None:
        ended = run("archive", tree, *arguments, "-o", tmp_path / "x.tar")
        assert ended.returncode == 2
        assert ended.stderr
        assert os.listdir(tmp_path) == ["tree"]

    def test_no_output_and_no_root(self, tree: Path, tmp_path: Path) -> None:
        assert run("archive", tree).returncode == 2
        assert run("archive", "-o", tmp_path / "x.tar").returncode == 2
        assert run("archive", tmp_path / "nope", "-o", tmp_path / "x.tar").returncode == 2
        assert run("archive", "", "-o", tmp_path / "x.tar").returncode == 2

    def test_a_time_that_is_none(self, tree: Path, tmp_path: Path) -> None:
        ended = run("archive", tree, "-o", tmp_path / "x.tar", env={"SOURCE_DATE_EPOCH": "now"})
        assert (ended.returncode, ended.stdout) == (2, "")
        assert "SOURCE_DATE_EPOCH" in ended.stderr

    def test_as_json(self, tree: Path, tmp_path: Path) -> None:
        told = json.loads(run("archive", tree, "no", "-o", tmp_path / "x.tar", "--json").stdout)
        assert told["ok"] is False
        assert [problem["kind"] for problem in told["problems"]] == ["member-missing"]


class TestPrinted:
    """What somebody else named cannot steer a terminal, or begin a line."""

    HOSTILE = "a\x1b[31m\nb"

    def test_a_member_and_a_root(self, tree: Path, tmp_path: Path) -> None:
        for arguments in ([tree, self.HOSTILE], [tmp_path / self.HOSTILE]):
            ended = run("archive", *arguments, "-o", tmp_path / "x.tar")
            assert ended.returncode == 2
            assert r"/a\x1b[31m\nb: " in ended.stderr
            assert "\x1b" not in ended.stderr
            assert ended.stderr.count("\n") == 1

    def test_an_output(self, tree: Path, tmp_path: Path) -> None:
        ended = run("archive", tree, "-o", f"{self.HOSTILE}.tar", cwd=tmp_path)
        assert ended.returncode == 0
        digest = hashlib.sha256((tmp_path / f"{self.HOSTILE}.tar").read_bytes()).hexdigest()
        assert ended.stdout == f"{digest}  a\\x1b[31m\\nb.tar\n"


class TestFailed:
    """Exit code 1: it could not be read or written to the end."""

    @pytest.mark.parametrize("output", ["nope/x.tar", "/dev/full"])
    def test_what_cannot_be_written(self, tree: Path, tmp_path: Path, output: str) -> None:
        ended = run("archive", tree, "-o", output, cwd=tmp_path)
        assert ended.returncode == 1
        assert ended.stderr.startswith(f"error: {output}: ")

    def test_a_full_disk_leaves_the_old_one(self, tree: Path, tmp_path: Path) -> None:
        (tree / "large").write_bytes(os.urandom(500_000))
        (tmp_path / "x.tar").write_bytes(b"old")
        small = ["sh", "-c", 'ulimit -f 100; exec "$@"', "sh"]  # blocks of 512 or 1024 bytes
        ended = run("archive", tree, "-o", tmp_path / "x.tar", before=small)
        assert (ended.returncode, ended.stderr) == (1, f"error: {tmp_path}/x.tar: File too large\n")
        assert (tmp_path / "x.tar").read_bytes() == b"old"
        assert sorted(os.listdir(tmp_path)) == ["tree", "x.tar"]

    @pytest.mark.skipif(not MINDS_PERMISSIONS, reason="root reads everything")
    def test_what_cannot_be_read(self, tree: Path, tmp_path: Path) -> None:
        (tree / "a").chmod(0)
        ended = run("archive", tree, "-o", tmp_path / "x.tar", before=WITHOUT_POWERS)
        assert ended.returncode == 2
        assert "tree/a: cannot be read: Permission denied" in ended.stderr
        assert os.listdir(tmp_path) == ["tree"]

    def test_a_tree_that_changes(self, tree: Path, tmp_path: Path) -> None:
        """While it is written to a FIFO, which holds far less."""
        (tree / "large").write_bytes(os.urandom(4 * 2**20))
        os.mkfifo(tmp_path / "fifo")
        command = [*PROGRAM, "archive", str(tree), "-o", str(tmp_path / "fifo")]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
            with open(tmp_path / "fifo", "rb") as fifo:
                fifo.read(1)
                (tree / "x.log").write_bytes(b"5")
                fifo.read()
            complaint = process.communicate(timeout=20)[1].decode()
        assert process.returncode == 1
        assert complaint.startswith(f"error: {tree}/x.log changed while")

    def test_a_reader_that_has_seen_enough(self, tmp_path: Path) -> None:
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree" / "large").write_bytes(os.urandom(4 * 2**20))
        command = [*PROGRAM, "archive", str(tmp_path / "tree"), "-o", "-"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.read(10)
            process.stdout.close()
            assert process.stderr is not None
            complaint = process.stderr.read()
        assert (process.returncode, complaint) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_the_old_file_stays(tmp_path: Path, sent: signal.Signals) -> None:
    (tmp_path / "tree").mkdir()
    with open(tmp_path / "tree" / "huge", "wb") as file:
        file.truncate(50 * 2**30)
    command = [*PROGRAM, "archive", "tree", "-o", "x.tar.gz"]
    (tmp_path / "x.tar.gz").write_bytes(b"old")
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 20
        while not list(tmp_path.glob(".trio-skills-*")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(sent)
        complaint = process.communicate(timeout=10)[1]
    assert process.returncode == 128 + sent
    assert complaint == b"interrupted; no file was written\n"
    assert (tmp_path / "x.tar.gz").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["tree", "x.tar.gz"]


# Interrupted in the end of a `with`, closing the file is left to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_an_interrupt_at_any_line_leaves_no_temporary_file(tree: Path, tmp_path: Path) -> None:
    """A signal's handler runs between any two lines: here at each of those that write a file."""
    target = tmp_path / "x.tar"
    recipe = _archive.Recipe.of(tree, None, (), "none", missing_ok=False)
    functions = (_archive.write.__code__, _archive._replacing.__wrapped__.__code__)  # type: ignore[attr-defined]  # what is decorated

    def interrupted_at(number: int) -> str | None:
        """Return the line at which it was; None: the archive was written before."""
        count = 0
        place: str | None = None

        def trace(frame: FrameType, event: str, _: object) -> object:
            nonlocal count, place
            if frame.f_code not in functions:
                return None
            count += event == "line"
            if count == number and place is None:
                place = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)  # type: ignore[arg-type]  # a type that names itself
        try:
            _archive.write(recipe, target)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        return place

    target.write_bytes(b"old")
    _archive.write(recipe, tmp_path / "new")
    new = (tmp_path / "new").read_bytes()
    left: dict[str, list[str]] = {}
    for number in itertools.count(1):
        target.write_bytes(b"old")
        place = interrupted_at(number)
        if place is None:
            break
        assert target.read_bytes() in (b"old", new)
        if temporary := list(map(str, tmp_path.glob(".trio-skills-*"))):
            left[place] = temporary
            for path in temporary:
                os.remove(path)
    assert number > 10
    assert left == {}


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="there is no /dev/fd")
def test_a_pipe_that_has_a_name_is_written_to(tree: Path) -> None:
    """As a shell's `-o >(command)` is, and /dev/stdout before a `|`."""
    read, written = os.pipe()
    with open(read, "rb") as reader:
        try:
            output = f"/dev/fd/{written}"
            options = ["--compression", "none"]
            ended = run("archive", tree, "-o", output, *options, pass_fds=(written,))
        finally:
            os.close(written)
        digest = hashlib.sha256(reader.read()).hexdigest()
    assert ended.stderr == ""
    assert ended.stdout == f"{digest}  {output}\n"


# Prints the most that was resident, in KiB, as `bench/peak.py` does, not where the archive goes.
PEAK = """
import sys
from trio_skills.cli import main
try:
    main()
except SystemExit as exc:
    if exc.code:
        raise
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0], file=sys.stderr)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="there is no /proc")
def test_a_gibibyte_takes_little_memory_and_time(tmp_path: Path) -> None:
    """To a file and to standard output."""
    for name, size in (("nothing", 0), ("much", 2**30)):
        (tmp_path / name).mkdir()
        with open(tmp_path / name / "file", "wb") as file:
            file.truncate(size)

    def peak(source: str, *options: str) -> int:
        command = [sys.executable, "-c", PEAK, "archive", str(tmp_path / source), "--quiet"]
        with open(tmp_path / "streamed", "wb") as stdout:
            ended = subprocess.run(
                [*command, *options], stdout=stdout, stderr=subprocess.PIPE, timeout=20, check=True
            )
        return int(ended.stderr)

    to_file = tmp_path / "x.tar.gz"
    base = peak("nothing", "-o", str(to_file))
    assert peak("much", "-o", str(to_file)) <= base + 64 * 2**10
    assert peak("much", "-o", "-", "--compression", "zstd") <= base + 64 * 2**10
    for packed in (to_file, tmp_path / "streamed"):
        assert packed.stat().st_size > 10_000  # of zeros, very little is left
