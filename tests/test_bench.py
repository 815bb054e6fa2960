"""The benchmark runs, and says what it measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_the_core_group_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "core", "--quick", "--json", str(tmp_path / "r.json")]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    results = json.loads((tmp_path / "r.json").read_text())["results"]
    assert {result["name"].split("/")[0] for result in results} == {
        "engine",
        "local",
        "memory",
        "plan",
    }
    assert all(result["name"] in ended.stdout for result in results)
    assert all(result["ours"] and result["baseline"] for result in results)
