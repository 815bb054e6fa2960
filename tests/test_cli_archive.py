"""`trio-skills archive`, as a user runs it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from tests.programs import MINDS_PERMISSIONS, PROGRAM, WITHOUT_POWERS, run
from tests.trees import write_tree


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
        "ok": True, "name": "tree", "digest": digest, "member_count": 5,
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

    def test_as_json(self, tree: Path, tmp_path: Path) -> None:
        told = json.loads(run("archive", tree, "no", "-o", tmp_path / "x.tar", "--json").stdout)
        assert told["ok"] is False
        assert [problem["kind"] for problem in told["problems"]] == ["member-missing"]


class TestFailed:
    """Exit code 1: it could not be read or written to the end."""

    @pytest.mark.parametrize("output", ["nope/x.tar", "/dev/full"])
    def test_what_cannot_be_written(self, tree: Path, tmp_path: Path, output: str) -> None:
        ended = run("archive", tree, "-o", output, cwd=tmp_path)
        assert ended.returncode == 1
        assert ended.stderr.startswith(f"error: {output}: ")

    @pytest.mark.skipif(not MINDS_PERMISSIONS, reason="root reads everything")
    def test_what_cannot_be_read(self, tree: Path, tmp_path: Path) -> None:
        (tree / "a").chmod(0)
        ended = run("archive", tree, "-o", tmp_path / "x.tar", before=WITHOUT_POWERS)
        assert ended.returncode == 2
        assert "tree/a: cannot be read: Permission denied" in ended.stderr
        assert os.listdir(tmp_path) == ["tree"]

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
