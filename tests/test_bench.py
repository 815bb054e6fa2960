"""The benchmark runs, and says what it measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services import Engine, SshServer


def run_quickly(group: str, folder: Path) -> tuple[set[str], str]:
    """Return the names of what was measured, and what was printed."""
    command = [sys.executable, "-m", "bench", group, "--quick", "--json", str(folder / "r.json")]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    results = json.loads((folder / "r.json").read_text())["results"]
    assert all(result["ours"] and result["baseline"] for result in results)
    return {result["name"] for result in results}, ended.stdout


def test_the_core_group_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    names, printed = run_quickly("core", tmp_path)
    assert {name.split("/")[0] for name in names} == {"engine", "local", "memory", "plan"}
    assert all(name in printed for name in names)


def test_the_archives_group_measures_builds_calls_and_looks(tmp_path: Path) -> None:
    names, printed = run_quickly("archives", tmp_path)
    kinds = {"first", "held", "stat", "heartbeat", "compress", "memory"}
    assert {name.split("/")[0] for name in names} == kinds
    assert all(name in printed for name in names)


@pytest.mark.corpus
@pytest.mark.docker
@pytest.mark.ssh
def test_the_group_of_real_sandboxes_measures_each_against_its_own_tools(
    docker: Engine, ssh: SshServer, corpus: dict[str, Path], tmp_path: Path
) -> None:
    names, printed = run_quickly("sandboxes", tmp_path)
    assert names == {
        *("docker/4", "docker/4-busybox", "docker/4-exec"),
        *("docker/8", "docker/8-busybox", "docker/8-exec"),
        *("docker/corpus", "docker/corpus-verified", "docker/corpus-cli", "docker/warm"),
        *("packing/8", "shell/4", "ssh/8", "ssh/8-per-file", "ssh/8-8-at-once"),
    }
    assert all(name in printed for name in names)


def test_a_service_that_is_not_there_is_named_and_its_comparisons_are_absent(
    tmp_path: Path,
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "bench", "sandboxes", "--quick"],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "without Docker: dockerd is not installed" in ended.stderr
    assert "without ssh: ssh is not installed" in ended.stderr
    assert ended.stderr.endswith("there are: \n")
