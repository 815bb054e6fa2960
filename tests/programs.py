"""The program, run as a user runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = [sys.executable, "-m", "trio_skills"]

# Root ignores permissions. This takes that power away from a command, and nothing else.
_POWERS = "-dac_override,-dac_read_search,-fowner"
WITHOUT_POWERS = (
    ["setpriv", f"--inh-caps={_POWERS}", f"--bounding-set={_POWERS}"] if os.geteuid() == 0 else []
)
MINDS_PERMISSIONS = os.geteuid() != 0 or shutil.which("setpriv") is not None


def run(
    *arguments: str | Path,
    before: list[str] | None = None,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    **options: Any,  # Any: of subprocess.run
) -> subprocess.CompletedProcess[str]:
    """Run `trio-skills` with arguments, by way of the command `before` if given."""
    return subprocess.run(
        [*(before or []), *PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        timeout=60,
        **options,
    )
