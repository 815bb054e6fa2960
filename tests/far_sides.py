"""What is on the far side of a command or a connection, where that is this machine, too."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import pytest
import trio

from tests.services import SshServer
from trio_skills import CommandError, Runtime

LITTER = ".trio-skills"
"""What the name begins with of everything that an install makes for itself there."""

PROGRAMS = (
    *("cat", "chmod", "cp", "env", "find", "head", "mkdir", "mv", "printf", "pwd", "rm"),
    *("setsid", "sha256sum", "sleep", "tar", "wc"),
)

# A shell, and whose programs it finds.
WORLDS = {
    "dash": ("dash", "gnu"),
    "bash": ("bash", "gnu"),
    "busybox": ("busybox", "busybox"),
    "dash with busybox": ("dash", "busybox"),
}
every_world = pytest.mark.parametrize("world", WORLDS)
two_worlds = pytest.mark.parametrize("world", ["dash", "busybox"])


# What is there while `pdf` is swapped, each asked for many times, by other spellings.
SPELLINGS = {
    "./" * number + target: kind
    for number in range(300)
    for target, kind in {"pdf": "folder", "pdf/SKILL.md": "file"}.items()
}


@contextmanager
def swapped_again_and_again(path: Path) -> Iterator[None]:
    """Rename what is there to another name and back, as installs that replace it do."""
    ended = threading.Event()

    def swap() -> None:
        aside = path.with_name("aside")
        while not ended.is_set():
            path.rename(aside)
            aside.rename(path)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        yield
    finally:
        ended.set()
        swapper.join()


def litter(folder: Path) -> list[Path]:
    """Return what installs made for themselves anywhere below a folder."""
    return sorted(folder.rglob(f"{LITTER}*"))


def make_world(folder: Path, world: str, without: Sequence[str] = ()) -> tuple[str, ...]:
    """Make a folder of programs; return a prefix by which a command finds those alone."""
    shell, kind = WORLDS[world]
    busybox = shutil.which("busybox")
    found = {"sh": shutil.which(shell)}
    for program in PROGRAMS:
        found[program] = busybox if kind == "busybox" else shutil.which(program)
    folder.mkdir(parents=True)
    for name, path in found.items():
        if path is None:
            pytest.skip(f"there is no {shell if name == 'sh' else name}")
        if name not in without:
            (folder / name).symlink_to(path)
    return (shutil.which("env") or "env", f"PATH={folder}")


def processes(*words: str) -> list[int]:
    """Return the ids of the other processes that have all these words in their command line.

    Those that have ended, and for which nobody has waited, are not among them.
    """
    return [pid for pid, line in _commands() if all(word.encode() in line for word in words)]


def _commands() -> Iterator[tuple[int, bytes]]:
    for folder in Path("/proc").glob("[1-9]*"):
        with suppress(OSError):  # it has ended
            line = (folder / "cmdline").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if line and state not in "ZX" and int(folder.name) != os.getpid():
                yield int(folder.name), line


def clients(ssh: SshServer) -> list[int]:
    """Return the ids of the ssh processes of this machine that may log in there."""
    return processes("ssh", str(ssh.config))


async def running(*argv: str) -> None:
    """Wait until this very command runs, not only what will start it."""
    wanted = "".join(f"{word}\0" for word in argv).encode()
    with trio.fail_after(10):
        while wanted not in [line for _, line in _commands()]:
            await trio.sleep(0.001)


async def gone(*words: str, within: float = 10) -> None:
    """Wait until no such process is left. What is left by then fails the test, and is ended."""
    with trio.move_on_after(within):
        while processes(*words):
            await trio.sleep(0.005)
    left = processes(*words)
    lines = [(pid, line[-300:]) for pid, line in _commands() if pid in left]
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left == [], f"still there after {within} s: {words}: {lines}"


def a_long_time() -> str:
    """Return seconds for `sleep` by which the process is found again."""
    return str(random.SystemRandom().randrange(10**6, 10**9))


class RunningContract:
    """What `run` does in every sandbox; its tests need a fixture `runtime`.

    The commands are those that every sandbox has.
    """

    WORDS: ClassVar = [
        "a b",
        "$(x)",
        "`x`",
        "",
        "'",
        '"',
        "new\nline",
        "-n",
        "--",
        "-",
        "\\",
        "\\n",
    ]
    WORDS += ["é*", "~", "%00", "\x01\x1b[31m", "#", ";", "&", "\t", "!x", "a=b", "\r", "\u202e"]

    async def test_arguments_arrive_unchanged(self, runtime: Runtime) -> None:
        ended = await runtime.run(["printf", r"%s\0", *self.WORDS], {})
        assert ended.stdout.decode().split("\0") == [*self.WORDS, ""]
        assert ended.exit_code == 0

    async def test_long_arguments_arrive_unchanged(self, runtime: Runtime) -> None:
        words = [f"{n:05} ".ljust(1_000, "$") for n in range(90)]
        ended = await runtime.run(["printf", r"%s\0", *words], {})
        assert ended.stdout.decode().split("\0") == [*words, ""]

    async def test_the_environment_arrives_unchanged(self, runtime: Runtime) -> None:
        env = {f"VALUE_{n}": word for n, word in enumerate(self.WORDS)}
        script = 'for n do eval "printf %s.\\\\\\\\0 \\"\\${VALUE_$n-unset}\\""; done'
        numbers = [str(n) for n in range(len(env))]
        ended = await runtime.run(["sh", "-c", script, "sh", *numbers, "none"], env)
        assert ended.stdout.decode().split(".\0") == [*self.WORDS, "unset", ""]

    async def test_no_name_of_a_variable_is_special(self, runtime: Runtime) -> None:
        names = ["count", "nonce", "base", "action", "watcher", "command", "IFS", "UID", "PPID"]
        env = dict.fromkeys(names, "7")
        ended = await runtime.run(["env"], env)
        assert {f"{name}=7" for name in names} <= set(ended.stdout.decode().split("\n"))

    async def test_what_is_printed_after_the_end_is_output(self, runtime: Runtime) -> None:
        ended = await runtime.run(["sh", "-c", "(sleep 0.2; echo late) & echo 1"], {})
        assert ended.exit_code == 0
        assert ended.stdout in (b"1\nlate\n", b"1\n")  # podman stops listening

    async def test_what_a_command_printed_is_in_no_error(self, runtime: Runtime) -> None:
        script = "echo secret >&2; kill -9 $PPID $$"
        try:
            ended = await runtime.run(["sh", "-c", script], {})
        except CommandError as exc:
            assert "secret" not in str(exc)  # noqa: PT017  # either is right
        else:
            assert ended.exit_code == 137

    async def test_streams_are_apart_and_bytes(self, runtime: Runtime) -> None:
        script = r"printf '\377\000\r\n\nout'; printf '\000\376\nerr' >&2"
        ended = await runtime.run(["sh", "-c", script], {})
        assert ended.stdout == b"\xff\0\r\n\nout"
        assert ended.stderr == b"\0\xfe\nerr"

    @pytest.mark.parametrize("output", ["", "\n", "\n\n", "x", "x\n", "\nx"])
    async def test_no_newline_is_lost_or_added(self, runtime: Runtime, output: str) -> None:
        script = 'printf %s "$1"; printf %s "$1" >&2'
        ended = await runtime.run(["sh", "-c", script, "sh", output], {})
        assert ended.stdout.decode() == ended.stderr.decode() == output

    async def test_much_output_comes_whole(self, runtime: Runtime) -> None:
        script = "head -c 3000000 /dev/zero; head -c 3000001 /dev/zero >&2"
        ended = await runtime.run(["sh", "-c", script], {})
        assert ended.stdout == b"\0" * 3_000_000
        assert ended.stderr == b"\0" * 3_000_001

    @pytest.mark.parametrize("code", [0, 1, 3, 126, 127, 255])
    async def test_exit_codes_arrive(self, runtime: Runtime, code: int) -> None:
        assert (await runtime.run(["sh", "-c", f"exit {code}"], {})).exit_code == code

    async def test_a_command_that_is_missing_ends_with_127(self, runtime: Runtime) -> None:
        assert (await runtime.run(["no-such-program"], {})).exit_code == 127
        assert (await runtime.run(["/no/such/program"], {})).exit_code == 127

    async def test_what_is_no_program_ends_with_126(self, runtime: Runtime) -> None:
        assert (await runtime.run(["/"], {})).exit_code == 126

    async def test_a_signal_is_no_success(self, runtime: Runtime) -> None:
        assert (await runtime.run(["sh", "-c", "kill -9 $$"], {})).exit_code == 137
        assert (await runtime.run(["sh", "-c", "kill -15 $$"], {})).exit_code == 143

    async def test_a_command_reads_no_input(self, runtime: Runtime) -> None:
        with trio.fail_after(10):
            assert (await runtime.run(["cat"], {})).stdout == b""

    async def test_a_command_that_leaves_another_does_not_hang(self, runtime: Runtime) -> None:
        long = a_long_time()
        script = 'sleep "$1" >/dev/null 2>&1 & echo done'
        with trio.fail_after(10):
            ended = await runtime.run(["sh", "-c", script, "sh", long], {})
        assert (ended.exit_code, ended.stdout) == (0, b"done\n")
        for pid in processes("sleep", long):
            os.kill(pid, signal.SIGKILL)


class CancelledRunContract:
    """What a cancelled `run` leaves of processes that can be seen here: none."""

    async def test_cancelled_it_leaves_no_process(self, runtime: Runtime) -> None:
        one, two = a_long_time(), a_long_time()
        async with trio.open_nursery() as nursery:
            script = 'sleep "$1" & sleep "$2"; true'
            nursery.start_soon(runtime.run, ["sh", "-c", script, "sh", one, two], {})
            await running("sleep", one)
            await running("sleep", two)
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began < 1
        await gone(one, within=0)
        await gone(two, within=0)

    async def test_cancelled_at_any_moment_it_leaves_no_process(self, runtime: Runtime) -> None:
        """Also before it has begun to run what it is to run."""
        chance = random.Random(1)
        long = a_long_time()
        for _ in range(40):
            with trio.move_on_after(chance.uniform(0, 0.05)):
                await runtime.run(["sleep", long], {})
            await gone(long, within=1)

    async def test_cancelled_it_ends_what_ignores_signals(self, runtime: Runtime) -> None:
        long = a_long_time()
        async with trio.open_nursery() as nursery:
            script = "trap '' HUP INT TERM PIPE; while :; do sleep \"$1\"; done"
            nursery.start_soon(runtime.run, ["sh", "-c", script, "sh", long], {})
            await running("sleep", long)
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began < 1
        await gone(long, within=0)
