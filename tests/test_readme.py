"""Every program and every command of the README, run as a reader would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    command.split("  #")[0].strip()
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE)
]
# These two set up an environment, so CI runs them itself.
IN_CI = {"make demo", "make test"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def run(command: list[str] | str, cwd: Path) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ended = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PATH": path},
        shell=isinstance(command, str),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_readme_has_programs_and_commands() -> None:
    assert len(PROGRAMS) >= 3
    assert len(COMMANDS) >= 4
    assert set(COMMANDS) >= IN_CI


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_program(checkout: Path, number: int) -> None:
    printed = run([sys.executable, "-c", PROGRAMS[number]], checkout)
    if "print(report.summary())" in PROGRAMS[number]:
        assert re.fullmatch(r"\d+ written\n", printed)
    if "sandboxes" in PROGRAMS[number]:
        assert len(list((checkout / "sandboxes").glob("*/word-count/SKILL.md"))) == 100
    if "virtual seconds" in PROGRAMS[number]:
        assert printed.startswith("127 written, 1 failed in 23.") or "virtual seconds" in printed


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in IN_CI])
def test_command(checkout: Path, command: str) -> None:
    run(command, checkout)


def test_ci_runs_the_others() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert all(re.search(rf"^{command}$", script, re.MULTILINE) for command in IN_CI)
