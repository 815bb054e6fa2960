"""Hostile trees on a real disk: what is there afterwards is the plan, and nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from property_tests.simulation import STRATEGIES, failed
from property_tests.test_install_properties import CancelAtStep
from trio_skills import InstallError, Plan, Strategy, install, open_local, plan_skills
from trio_skills.testing.strategies import Content, SkillTree, skill_trees

fewer = settings(max_examples=settings().max_examples // 2)
schedules = st.random_module()


def read(root: Path) -> dict[str, Content]:
    return {
        str(path.relative_to(root)): (path.read_bytes(), bool(path.lstat().st_mode & 0o100))
        for path in root.rglob("*")
        if not path.is_dir()
    }


def below(name: str, tree: SkillTree) -> dict[str, Content]:
    return {f"{name}/{path}": content for path, content in tree.installed.items()}


def put(plan: Plan, root: Path, **options: Any) -> None:
    async def main() -> None:
        async with open_local(root) as runtime:
            await install(plan, runtime, **options)

    trio.run(main)


@given(skill_trees(), skill_trees(), st.sampled_from(STRATEGIES), schedules)
def test_what_is_there_is_the_source(
    one: SkillTree, two: SkillTree, strategy: Strategy, schedule: object
) -> None:
    with tempfile.TemporaryDirectory() as place:
        sources = [one.write(Path(place, "one")), two.write(Path(place, "two"))]
        root = Path(place, "root")
        put(plan_skills(sources), root, strategy=strategy, verify=True)
        assert read(root) == below("one", one) | below("two", two)
        assert sorted(path.name for path in root.iterdir()) == ["one", "two"]


@fewer
@given(skill_trees(), skill_trees(), st.sampled_from(STRATEGIES), st.booleans(), schedules)
def test_a_reinstall_merges_or_replaces(
    old: SkillTree, new: SkillTree, strategy: Strategy, skip_unchanged: bool, schedule: object
) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place, "root")
        before, after = below("skill", old), below("skill", new)
        put(plan_skills([old.write(Path(place, "old", "skill"))]), root)
        plan = plan_skills([new.write(Path(place, "new", "skill"))])
        clash = any(
            one.startswith(other + "/") or other.startswith(one + "/")
            for one in before
            for other in after
        )
        if not clash:
            put(plan, root, strategy=strategy, skip_unchanged=skip_unchanged)
            assert read(root) == before | after
        put(plan, root, existing="replace")
        assert read(root) == after


@given(skill_trees(), st.data(), st.sampled_from(STRATEGIES), schedules)
def test_a_file_that_changed_after_planning_fails_alone(
    tree: SkillTree, data: st.DataObject, strategy: Strategy, schedule: object
) -> None:
    with tempfile.TemporaryDirectory() as place:
        source = tree.write(Path(place, "skill"))
        plan = plan_skills([source])
        path = data.draw(st.sampled_from(sorted(tree.files)))
        content, _ = tree.files[path]
        longer = data.draw(st.booleans()) or not content
        (source / path).write_bytes(content + b"x" if longer else bytes(255 - b for b in content))
        changed = {f"skill/{p}" for p in (path, *(k for k, v in tree.links.items() if v == path))}
        with pytest.raises(InstallError) as caught:
            put(plan, Path(place, "root"), strategy=strategy)
        assert failed(caught.value.report.outcomes) == changed
        assert read(Path(place, "root")).keys() == below("skill", tree).keys() - changed


@fewer
@given(skill_trees(), skill_trees(), st.sampled_from(["merge", "replace"]), schedules)
def test_cancelled_at_any_step_a_skill_is_the_old_or_the_new(
    old: SkillTree, new: SkillTree, existing: str, schedule: object
) -> None:
    with tempfile.TemporaryDirectory() as place:
        before, after = below("skill", old), below("skill", new)
        old_plan = plan_skills([old.write(Path(place, "old", "skill"))])
        plan = plan_skills([new.write(Path(place, "new", "skill"))])
        for step in range(1, 40):
            root = Path(place, f"root{step}")
            if existing == "replace":
                put(old_plan, root)
            instrument = CancelAtStep(step)

            async def main() -> bool:
                with instrument.scope as scope:  # noqa: B023
                    async with open_local(root) as runtime:  # noqa: B023
                        await install(plan, runtime, existing=existing)  # type: ignore[arg-type]  # one of the two
                return scope.cancelled_caught

            cancelled = trio.run(main, instruments=[instrument])
            there = read(root) if root.exists() else {}
            assert there in ([{}, after] if existing == "merge" else [before, after])
            if not cancelled:
                assert there == after
                return
