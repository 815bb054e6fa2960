"""A plan is a function of the folders' content, and nothing lies outside its destination."""

from __future__ import annotations

import itertools
import os
import posixpath
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.simulation import simulate
from trio_skills import OnCollision, PlanError, Upload, install, plan_skills, plan_uploads
from trio_skills.testing import MemoryRuntime
from trio_skills.testing.strategies import Content, SkillTree, file_names, skill_trees


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
            tree.write(other / "skill", order, {path: rng.random() * 1e9 for path in tree.files})
        finally:
            os.umask(before)
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
    if changed == "bytes" and content:
        index = data.draw(st.integers(0, len(content) - 1))
        other_byte = bytes([content[index] ^ data.draw(st.integers(1, 255))])
        files[path] = (content[:index] + other_byte + content[index + 1 :], executable)
    elif changed == "bytes":
        files[path] = (b"x", executable)
    elif changed == "mode":
        files[path] = (content, not executable)
    elif path != "SKILL.md":
        del files[path]
        if changed == "name":
            files[posixpath.join(posixpath.dirname(path), "renamed")] = (content, executable)
    other = SkillTree(files, {})
    for link, goal in tree.links.items():
        if any(f"{there}/".startswith(f"{goal}/") for there in other.installed):
            other = SkillTree(files, {**other.links, link: goal})
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
        planned = {upload.target: content_of(upload) for upload in plan.uploads}
    base = "/" * absolute + "/".join([*parts, "skill"])
    assert planned == {f"{base}/{path}": content for path, content in tree.installed.items()}
    assert all(target.startswith(base + "/") for target in planned)


targets = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)


def is_rival(one: str, other: str) -> bool:
    """Whether they are one place, or one is a file where the other needs a folder."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


@given(
    st.lists(targets, max_size=12),
    st.sampled_from(["error", "first", "last"]),
    st.lists(st.floats(0, 10), min_size=1, max_size=5),
    st.random_module(),
)
def test_collisions_are_decided_by_the_rule_and_not_by_who_is_faster(
    paths: list[str], policy: OnCollision, delays: list[float], schedule: object
) -> None:
    uploads = [Upload.of(path, b"%d" % number) for number, path in enumerate(paths)]
    kept: dict[str, bytes] = {}
    for number, path in sorted(enumerate(paths), reverse=policy == "last"):
        if not any(is_rival(path, other) for other in kept):
            kept[path] = b"%d" % number
    lost = len(uploads) - len(kept)
    if policy == "error" and lost:
        with pytest.raises(PlanError) as caught:
            plan_uploads(uploads)
        assert len(caught.value.problems) == lost
        return
    plan = plan_uploads(uploads, on_collision=policy)
    assert [upload.target for upload in plan.uploads] == sorted(kept)
    assert len(plan.excluded) == lost
    slow = itertools.cycle(delays)
    runtime = MemoryRuntime(latency=lambda call: next(slow))
    simulate(partial(install, plan, runtime))
    assert {path: file.data for path, file in runtime.files.items()} == kept


@given(
    st.lists(skill_trees(max_files=4), min_size=2, max_size=3), st.sampled_from(["first", "last"])
)
def test_of_skills_with_one_name_each_file_is_that_of_the_first_or_last(
    trees: list[SkillTree], policy: OnCollision
) -> None:
    with folder() as place:
        sources = [tree.write(place / f"{i}" / "skill") for i, tree in enumerate(trees)]
        plan = plan_skills([*sources, *sources], on_collision=policy)
        contents = {u.target.removeprefix("skill/"): content_of(u) for u in plan.uploads}
        with pytest.raises(PlanError):
            plan_skills(sources)
    expected: dict[str, Content] = {}
    for tree in trees if policy == "first" else reversed(trees):
        for path, content in sorted(tree.installed.items(), reverse=policy == "last"):
            if not any(is_rival(path, other) for other in expected):
                expected[path] = content
    assert contents == expected


def content_of(upload: Upload) -> Content:
    assert isinstance(upload.source, Path)
    return upload.source.read_bytes(), upload.executable


@given(st.text(max_size=20), st.sampled_from(["", "..", "../x", "a/../../b", "a\0b", "\udc80"]))
def test_a_hostile_destination_is_refused_or_harmless(text: str, hostile: str) -> None:
    with folder() as place:
        SkillTree({"SKILL.md": (b"", False)}, {}).write(place / "skill")
        try:
            plan = plan_skills([place / "skill"], text + hostile)
        except PlanError:
            return
    below = "" if plan.dest == "." else plan.dest.rstrip("/") + "/"
    for upload in plan.uploads:
        assert upload.target.startswith(below)
        assert ".." not in upload.target.split("/")
        assert "\0" not in upload.target
