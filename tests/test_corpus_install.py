"""Published skills, installed for real: the same files, bytes and execute bits, nothing else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.corpus import SKILLS
from tests.trees import Tree, read_tree
from trio_skills import Strategy, find_skills, install, open_local, plan_skills

pytestmark = pytest.mark.corpus

STRATEGIES: tuple[Strategy, ...] = ("sequential", "batched", "concurrent", "packed")


def source_tree(skills: list[Path]) -> Tree:
    """Return what must be there, found out without this library."""
    return {
        f"{skill.name}/{path}": entry
        for skill in skills
        for path, entry in read_tree(skill).items()
        if entry[0] != b"an empty folder"
    }


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("package", SKILLS)
async def test_a_collection_arrives_whole(
    corpus: dict[str, Path], tmp_path: Path, package: str, strategy: Strategy
) -> None:
    skills = find_skills(corpus[package])
    expected = source_tree(skills)
    plan = plan_skills(skills)
    async with open_local(tmp_path) as runtime:
        report = await install(plan, runtime, strategy=strategy, verify=True)
        again = await install(plan, runtime, strategy=strategy, skip_unchanged=True)
    assert report.ok
    assert len(report.written) == len(again.unchanged) == len(expected) - len(plan.excluded)
    assert read_tree(tmp_path) == {
        path: entry for path, entry in expected.items() if not path.endswith((".pyc", ".DS_Store"))
    }


def test_problems_are_warnings_by_kind(corpus: dict[str, Path]) -> None:
    plan = plan_skills(find_skills(corpus["biomedical-ai-skills"]))
    assert Counter(warning.kind for warning in plan.warnings) == {"frontmatter-missing": 16}
