"""Every program and every command of the README, run as a reader would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services import Engine, SshServer

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS: list[str] = [
    command.split("  #")[0].strip()
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE)
]
# These two set up an environment, so CI runs them itself.
IN_CI = {"make demo", "make test"}


SANDBOXES = [command for command in COMMANDS if "://" in command or "exec:" in command]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def run(command: list[str] | str, cwd: Path, **environment: str) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ended = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PATH": path, **environment},
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


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in IN_CI and c not in SANDBOXES])
def test_command(checkout: Path, command: str) -> None:
    run(command, checkout)


def sandbox_command(beginning: str) -> str:
    return next(command for command in SANDBOXES if f"--to {beginning}" in command)


def test_no_command_for_a_sandbox_is_left_out() -> None:
    assert len(SANDBOXES) == 3


@pytest.mark.docker
def test_docker_command(checkout: Path, docker: Engine) -> None:
    with docker.container("debian", named="my-container"):
        run(sandbox_command("docker://"), checkout, DOCKER_HOST=docker.host)
        assert b"count" in docker.run(
            "my-container", "cat", "/root/.agents/skills/word-count/SKILL.md"
        )


@pytest.mark.ssh
def test_ssh_command(checkout: Path, ssh: SshServer) -> None:
    # The host is the configuration's affair; what is written must be written elsewhere.
    command = sandbox_command("ssh://").replace(
        "build-machine/srv", f"127.0.0.1:{ssh.port}{checkout}"
    )
    path = os.pathsep.join([str(ssh.path), str(Path(sys.executable).parent), os.environ["PATH"]])
    run(command, checkout, PATH=path)
    assert (checkout / "agent/skills/word-count/SKILL.md").exists()


def test_kubectl_command(checkout: Path) -> None:
    """By a stand-in, which runs here what comes after `--`."""
    stand_in = checkout / "bin" / "kubectl"
    stand_in.parent.mkdir()
    stand_in.write_text(
        '#!/bin/sh\n[ "$1 $2 $3 $4" = "exec -i my-pod --" ] || exit 1\nshift 4\nexec "$@"\n'
    )
    stand_in.chmod(0o755)
    command = sandbox_command("'exec:").replace("/srv", str(checkout))
    parts = [str(stand_in.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    run(command, checkout, PATH=os.pathsep.join(parts))
    assert (checkout / "agent/skills/word-count/SKILL.md").exists()


def test_ci_runs_the_others() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert all(re.search(rf"^{command}$", script, re.MULTILINE) for command in IN_CI)
