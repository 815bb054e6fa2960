"""The command line when it is stopped, or cannot print: it ends as promised all the same."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.programs import PROGRAM
from tests.trees import make_skill

both = pytest.mark.parametrize("received", [signal.SIGINT, signal.SIGTERM])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


class TestJson:
    @pytest.mark.parametrize("unbuffered", ["", "1"])
    @pytest.mark.parametrize("command", ["plan", "install"])
    def test_is_whole_though_a_signal_comes_while_it_is_printed(
        self, tmp_path: Path, root: Path, command: str, unbuffered: str
    ) -> None:
        make_skill(tmp_path / "pdf", {f"{n:04}": b"" for n in range(800)})
        arguments = [command, str(tmp_path / "pdf"), "--json"]
        arguments += ["--to", str(root)] if command == "install" else []
        ours, theirs = os.pipe()
        env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        with subprocess.Popen([*PROGRAM, *arguments], stdout=theirs, env=env) as ended:
            os.close(theirs)
            while _waiting_in(ours) < 16_384:  # of more than a pipe holds: it waits for a reader
                assert ended.poll() is None
                time.sleep(0.01)
            time.sleep(0.1)
            ended.send_signal(signal.SIGINT)
            time.sleep(0.1)
            with open(ours) as reader:
                printed = json.load(reader)
        assert ended.returncode == 0
        assert len(printed["uploads" if command == "plan" else "outcomes"]) == 801

    @both
    def test_is_one_object_though_nothing_was_begun(
        self, tmp_path: Path, root: Path, received: signal.Signals
    ) -> None:
        code, printed, complained = _stopped_while_planning(tmp_path, root, received, "--json")
        assert (code, complained) == (128 + received, "")
        assert json.loads(printed) == {"ok": False, "interrupted": True}

    @pytest.mark.parametrize("unbuffered", ["", "1"])
    @pytest.mark.parametrize("arguments", ["plan nope --json", "install --json", "--help"])
    def test_or_help_that_cannot_be_printed_is_said(self, arguments: str, unbuffered: str) -> None:
        with open("/dev/full", "w") as full:
            ended = subprocess.run(
                [*PROGRAM, *arguments.split()],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
                check=False,
            )
        assert ended.returncode == 74
        assert ended.stderr == "error: cannot print: No space left on device\n"


class TestStopped:
    @both
    def test_while_planning_it_says_that_nothing_was_written(
        self, tmp_path: Path, root: Path, received: signal.Signals
    ) -> None:
        code, printed, complained = _stopped_while_planning(tmp_path, root, received)
        assert (code, printed) == (128 + received, "")
        assert complained == "interrupted; no file was written\n"
        assert not root.exists()

    def test_quietly_it_still_says_how_far_it_came(self, tmp_path: Path, root: Path) -> None:
        make_skill(tmp_path / "big", {f"f{n}": bytes(10_000) for n in range(2_000)})
        command = ["install", str(tmp_path / "big"), "--to", str(root), "--strategy", "sequential"]
        with subprocess.Popen(
            [*PROGRAM, *command, "--quiet"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as ended:
            while not (root / "big" / "f0").exists():
                time.sleep(0.001)
            ended.send_signal(signal.SIGINT)
            printed, complained = ended.communicate()
        assert (ended.returncode, printed) == (130, "")
        assert complained.startswith("interrupted, ")
        assert "not reached" in complained

    def test_again_when_all_is_said_the_exit_code_stays(self, tmp_path: Path, root: Path) -> None:
        """Python's own end would otherwise be by the signal, or with a traceback."""
        make_skill(tmp_path / "big", {f"f{n}": bytes(10_000) for n in range(1_000)})
        command = ["install", str(tmp_path / "big"), "--to", str(root), "--strategy", "sequential"]
        with subprocess.Popen(
            [*PROGRAM, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as ended:
            while not (root / "big" / "f0").exists():
                time.sleep(0.001)
            ended.send_signal(signal.SIGINT)
            assert ended.stdout is not None
            report = ended.stdout.readline()
            while "interrupted, " not in report:
                report = ended.stdout.readline()
            while ended.poll() is None and _catches(ended.pid, signal.SIGINT):
                pass  # until Python has let go of its handlers
            ended.send_signal(signal.SIGINT)
            complained = ended.communicate()[1]
        assert (ended.returncode, complained) == (130, "")


def _stopped_while_planning(
    tmp_path: Path, root: Path, received: signal.Signals, *options: str
) -> tuple[int, str, str]:
    """Return the exit code and what was printed, of an install that was stopped before it began."""
    make_skill(tmp_path / "pdf", {"sparse": b""})
    os.truncate(tmp_path / "pdf" / "sparse", 2**34)  # takes no space, and long to read
    with subprocess.Popen(
        [*PROGRAM, "install", str(tmp_path / "pdf"), "--to", str(root), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as ended:
        while not _has_open(ended.pid, tmp_path):
            time.sleep(0.001)
        ended.send_signal(received)
        printed, complained = ended.communicate()
    return ended.returncode, printed, complained


def _has_open(process: int, folder: Path) -> bool:
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(descriptor).startswith(str(folder)):
                return True
    return False


def _catches(process: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    with suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
        status = Path(f"/proc/{process}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) & 1 << (number - 1))
    return False


def _waiting_in(pipe: int) -> int:
    """Return how many bytes were written to a pipe and not yet read."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), "little")
