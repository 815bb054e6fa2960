"""Finding skills in a folder of folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trees import make_skill
from trio_skills import PlanError, find_skills


def test_a_folder_that_is_a_skill_is_the_one(tmp_path: Path) -> None:
    pdf = make_skill(tmp_path / "pdf")
    make_skill(pdf / "inner")
    assert find_skills(pdf) == [pdf]


def test_skills_are_found_at_any_depth_and_sorted(tmp_path: Path) -> None:
    found = [make_skill(tmp_path / path) for path in ("z", "a/b/c", "a/.hidden", "m/n")]
    make_skill(tmp_path / ".git" / "no")
    make_skill(tmp_path / "z" / "belongs-to-z")
    assert find_skills(tmp_path) == sorted(found)


def test_links_inside_are_followed_once_and_loops_end(tmp_path: Path) -> None:
    pdf = make_skill(tmp_path / "store" / "pdf")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "itself").symlink_to("itself")
    (tmp_path / "alias").symlink_to("store/pdf")
    assert [found.resolve() for found in find_skills(tmp_path)] == [pdf]


def test_a_link_to_a_skill_outside_is_an_error_and_to_anything_else_is_not(tmp_path: Path) -> None:
    make_skill(tmp_path / "outside" / "pdf")
    root = tmp_path / "skills"
    xlsx = make_skill(root / "xlsx")
    (root / "folder").symlink_to("/etc")
    assert find_skills(root) == [xlsx]
    (root / "pdf").symlink_to("../outside/pdf")
    with pytest.raises(PlanError, match="name that skill as a source itself"):
        find_skills(root)
    assert find_skills(root / "pdf") == [root / "pdf"]


@pytest.mark.parametrize(
    ("path", "message"),
    [("nope", "no such folder"), ("file", "not a folder"), ("empty", r"no SKILL\.md in or below")],
)
def test_nothing_found_is_an_error_that_names_the_path(
    tmp_path: Path, path: str, message: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(PlanError, match=f"{path}: .*{message}"):
        find_skills(tmp_path / path)
