"""What `--json` prints: one object, whatever happens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import attrs

from trio_skills._archive import ArchiveInfo
from trio_skills._errors import PlanError, Problem
from trio_skills._plan import Plan
from trio_skills.cli import _signals


def print_json(data: dict[str, Any], file: TextIO | None = None) -> None:  # Any: JSON
    """Print one object, to standard output by default, whole: no signal cuts it off."""
    _signals.hold()
    print(json.dumps(data, indent=2), flush=True, file=file)


def archive_to_dict(info: ArchiveInfo) -> dict[str, Any]:
    """Return what an archive is."""
    return {"ok": True, **attrs.asdict(info)}


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Return a plan without the contents."""
    return {
        "dest": plan.dest,
        "digest": plan.digest,
        "total_bytes": plan.total_bytes,
        "folders": list(plan.folders),
        "uploads": [
            {
                "target": upload.target,
                "source": str(upload.source) if isinstance(upload.source, Path) else None,
                "size": upload.size,
                "executable": upload.executable,
                "digest": upload.digest,
            }
            for upload in plan.uploads
        ],
        "excluded": [attrs.asdict(excluded) for excluded in plan.excluded],
        "warnings": problems_to_list(plan.warnings),
    }


def problems_to_list(problems: Sequence[Problem]) -> list[dict[str, str]]:
    """Return problems as JSON has them."""
    return [attrs.asdict(problem) for problem in problems]


def refusal_to_dict(error: Exception) -> dict[str, Any]:
    """Return what was refused, and why."""
    problems = error.problems if isinstance(error, PlanError) else ()
    return {
        "ok": False,
        "error": {"type": type(error).__name__, "message": str(error)},
        "problems": problems_to_list(problems),
    }
