"""A plan is a function of the folders' content, and nothing lies outside its destination."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_skills import PlanError, Upload, plan_skills, plan_uploads
from trio_skills.testing.strategies import SkillTree, file_names, skill_trees


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@given(skill_trees(), st.randoms(use_true_random=False), st.sampled_from([0o022, 0o077, 0o002]))
def test_the_same_content_is_the_same_plan(tree: SkillTree, rng: random.Random, umask: int) -> None:
    """In another order, with other times and modes for others, under another name of the place."""
    order = list(tree.files)
    rng.shuffle(order)
    with folder() as one, folder() as other:
        tree.write(one / "skill")
        before = os.umask(umask)
        try:
            tree.write(other / "skill", order)
        finally:
            os.umask(before)
        for path in tree.files:
            os.utime(other / "skill" / path, (rng.random() * 1e9, rng.random() * 1e9))
        first = plan_skills([one / "skill"], "dest")
        here = Path.cwd()
        os.chdir(other / "skill")
        try:
            second = plan_skills(["."], "dest")
        finally:
            os.chdir(here)
    assert first.digest == second.digest
    without_source = [attrs.evolve(upload, source=b"") for upload in first.uploads]
    assert without_source == [attrs.evolve(upload, source=b"") for upload in second.uploads]


@given(skill_trees(), st.data())
def test_any_change_of_the_content_is_another_plan(tree: SkillTree, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(tree.files)))
    content, executable = tree.files[path]
    changed = data.draw(st.sampled_from(["bytes", "mode", "name", "gone"]))
    files = dict(tree.files)
    if changed == "bytes":
        files[path] = (content + b"x", executable)
    elif changed == "mode":
        files[path] = (content, not executable)
    elif path != "SKILL.md":
        del files[path]
        if changed == "name":
            files[path + "x"] = (content, executable)
    links = {link: target for link, target in tree.links.items() if target in files}
    other = SkillTree(files, links)
    with folder() as place:
        tree.write(place / "a" / "skill")
        other.write(place / "b" / "skill")
        before = plan_skills([place / "a" / "skill"])
        after = plan_skills([place / "b" / "skill"])
    assert (before.digest == after.digest) == (tree.installed == other.installed)


@given(skill_trees(), st.lists(file_names(), max_size=3), st.booleans())
def test_the_plan_is_the_tree_and_lies_below_its_destination(
    tree: SkillTree, parts: list[str], absolute: bool
) -> None:
    dest = "/" * absolute + "/".join(parts)
    with folder() as place:
        tree.write(place / "skill")
        plan = plan_skills([place / "skill"], dest)
        planned = {
            upload.target: (Path(str(upload.source)).read_bytes(), upload.executable)
            for upload in plan.uploads
        }
    base = "/" * absolute + "/".join([*parts, "skill"])
    assert planned == {f"{base}/{path}": content for path, content in tree.installed.items()}
    assert all(target.startswith(base + "/") for target in planned)


targets = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)


@given(st.lists(targets, max_size=12), st.sampled_from(["error", "first", "last"]))
def test_collisions_are_decided_by_the_rule(paths: list[str], policy: str) -> None:
    uploads = [Upload.of(path, b"%d" % number) for number, path in enumerate(paths)]
    kept: dict[str, Upload] = {}
    for upload in reversed(uploads) if policy == "last" else uploads:
        rivals = [
            other
            for other in kept
            if other == upload.target
            or other.startswith(upload.target + "/")
            or upload.target.startswith(other + "/")
        ]
        if not rivals:
            kept[upload.target] = upload
    lost = len(uploads) - len(kept)
    if policy == "error" and lost:
        with pytest.raises(PlanError) as caught:
            plan_uploads(uploads)
        assert len(caught.value.problems) == lost
        return
    plan = plan_uploads(uploads, on_collision=policy)  # type: ignore[arg-type]  # one of the three
    assert {upload.target: upload for upload in plan.uploads} == kept
    assert len(plan.excluded) == lost
    assert [upload.target for upload in plan.uploads] == sorted(kept)


@given(st.text(max_size=20), st.sampled_from(["", "..", "../x", "a/../../b", "a\0b", "\udc80"]))
def test_a_hostile_destination_is_refused_or_harmless(text: str, hostile: str) -> None:
    with folder() as place:
        SkillTree({"SKILL.md": (b"", False)}, {}).write(place / "skill")
        try:
            plan = plan_skills([place / "skill"], text + hostile)
        except PlanError:
            return
    for upload in plan.uploads:
        assert ".." not in upload.target.split("/")
        assert "\0" not in upload.target
