"""The commands that ask a sandbox, run by this machine's own shell over hostile names."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import trio

from tests.far_sides import SPELLINGS, swapped_again_and_again
from tests.trees import make_skill
from trio_skills import CommandError, FileState, RunResult, Upload, install, plan_uploads
from trio_skills._commands import inspect, make_executable, read_inspection

HOSTILE = [
    "a b",
    "$(touch owned)",
    "`touch owned`",
    "-rf",
    "--help",
    "new\nline",
    "carriage\rreturn",
    "back\\slash",
    "quote'\"",
    "(",
    "!",
    "*",
    "ünï",
    "folder/-n",
    "\n",
    "0" * 64 + "  x",
]


class ShellRuntime:
    """The two methods over this machine's commands, as the simplest of real sandboxes has them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def write(self, target: str, data: bytes) -> None:
        path = trio.Path(self.root, target)
        await path.parent.mkdir(parents=True, exist_ok=True)
        await path.write_bytes(data)

    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        ended = await trio.run_process(
            list(argv),
            cwd=self.root,
            env={**os.environ, **env},
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        return RunResult(ended.returncode, ended.stdout, ended.stderr)


def run(argv: list[str], cwd: Path) -> RunResult:
    ended = subprocess.run(
        argv, cwd=cwd, env={**os.environ, "LC_ALL": "C"}, capture_output=True, check=False
    )
    return RunResult(ended.returncode, ended.stdout, ended.stderr)


class TestInspect:
    def test_tells_what_is_there(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"1")
        (tmp_path / "program").touch(0o755)
        (tmp_path / "folder").mkdir()
        (tmp_path / "link").symlink_to("file")
        os.mkfifo(tmp_path / "fifo")
        targets = ["file", "missing", "program", "folder", "link", "fifo", "file/below"]
        ((argv, batch),) = inspect(targets)
        states = read_inspection(batch, run(argv, tmp_path))
        kinds = {target: state.kind for target, state in states.items()}
        assert kinds == {
            "file": "file",
            "missing": "missing",
            "program": "file",
            "folder": "folder",
            "link": "other",
            "fifo": "other",
            "file/below": "missing",
        }
        assert states["program"].executable
        assert not states["file"].executable
        assert states["file"].digest == Upload.of("x", b"1").digest

    def test_what_others_swap_is_there_or_missing(self, tmp_path: Path) -> None:
        make_skill(tmp_path / "pdf", {})
        with swapped_again_and_again(tmp_path / "pdf"):
            for argv, batch in [*inspect(list(SPELLINGS))] * 4:
                for target, state in read_inspection(batch, run(argv, tmp_path)).items():
                    assert state.kind in ("missing", SPELLINGS[target])

    def test_a_name_cannot_forge_anothers_digest(self, tmp_path: Path) -> None:
        """A name may hold a newline and what looks like the next line."""
        forged = "a\n" + "f" * 64 + "  b"
        (tmp_path / forged).write_bytes(b"1")
        (tmp_path / "b").write_bytes(b"2")
        ((argv, batch),) = inspect([forged, "b"])
        states = read_inspection(batch, run(argv, tmp_path))
        assert states["b"].digest == Upload.of("x", b"2").digest

    @pytest.mark.parametrize(
        "result",
        [
            RunResult(127, b"", b"sh: not found"),
            RunResult(127, b"f\n", b"sh: sha256sum: not found"),
            RunResult(0, b"", b""),
            RunResult(0, b"ff\n", b""),
        ],
    )
    def test_an_output_that_makes_no_sense_is_an_error(self, result: RunResult) -> None:
        with pytest.raises(CommandError, match=f"failed with exit code {result.exit_code}"):
            read_inspection(["a"], result)

    def test_a_file_without_a_digest_is_not_as_planned(self) -> None:
        states = read_inspection(["a", "b"], RunResult(1, b"ff\n" + b"0" * 64 + b"  ./b\n"))
        assert states["a"] == FileState("file", None)
        assert states["b"].digest == "0" * 64


class TestArguments:
    def test_are_split_by_bytes(self) -> None:
        targets = [f"{number:0100}" for number in range(2_500)]
        batches = [batch for _, batch in make_executable(targets)]
        assert [target for batch in batches for target in batch] == targets
        assert max(sum(len(target) + 1 for target in batch) for batch in batches) <= 100_000

    def test_a_target_longer_than_a_command_goes_alone(self) -> None:
        assert [batch for _, batch in make_executable(["a", "b" * 200_000, "c"])] == [
            ["a"],
            ["b" * 200_000],
            ["c"],
        ]

    def test_nothing_asked_for_is_no_command(self) -> None:
        assert list(make_executable([])) == list(inspect([])) == []


async def test_hostile_names_are_installed_verified_and_made_executable(tmp_path: Path) -> None:
    """Case 11, rllm-org/rllm#927: argv or quoting, everywhere."""
    root = tmp_path / "my sandbox"
    root.mkdir()
    plan = plan_uploads(
        Upload.of(f"my skills/{name}", name.encode(), executable=number % 2 == 0)
        for number, name in enumerate(HOSTILE)
    )
    runtime = ShellRuntime(root)
    report = await install(plan, runtime, verify=True)
    assert report.ok
    assert (await install(plan, runtime, skip_unchanged=True)).summary() == "16 unchanged"
    assert not (root / "owned").exists()
    (root / "my skills" / "a b").chmod(0o644)
    (root / "my skills" / "\n").write_bytes(b"changed")
    again = await install(plan, runtime, skip_unchanged=True, verify=True)
    assert again.summary() == "2 written, 14 unchanged"
