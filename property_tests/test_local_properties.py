"""Hostile trees on a real disk: what is there afterwards is the plan, and nothing else."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from property_tests.simulation import STRATEGIES, failed
from property_tests.test_install_properties import CancelAtStep
from trio_skills import Existing, InstallError, Plan, Strategy, install, open_local, plan_skills
from trio_skills.runtimes._files import Files
from trio_skills.runtimes._staging import TEMPORARY
from trio_skills.testing.strategies import Content, SkillTree, skill_trees

# Each example of some is as many installs as it has steps.
fewer = settings(max_examples=settings().max_examples // 3)
few = settings(max_examples=settings().max_examples // 25)
schedules = st.random_module()
SKILL = SkillTree({"SKILL.md": (b"", False)}, {})


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
        with trio.fail_after(60):
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
        marked = attrs.evolve(tree, files={**tree.files, path: (b"mark", False)})
        changed = {p for p, c in below("skill", marked).items() if c == (b"mark", False)}
        with pytest.raises(InstallError) as caught:
            put(plan, Path(place, "root"), strategy=strategy)
        assert failed(caught.value.report.outcomes) == changed
        assert read(Path(place, "root")).keys() == below("skill", tree).keys() - changed


@fewer
@given(skill_trees(), skill_trees(), st.data())
def test_a_replacement_of_which_a_file_fails_leaves_the_old_skill(
    old: SkillTree, new: SkillTree, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place, "root")
        put(plan_skills([old.write(Path(place, "old", "skill"))]), root)
        source = new.write(Path(place, "new", "skill"))
        plan = plan_skills([source])
        (source / data.draw(st.sampled_from(sorted(new.files)))).write_bytes(b"changed" * 10)
        with pytest.raises(InstallError) as caught:
            put(plan, root, existing="replace")
        assert failed(caught.value.report.outcomes) == below("skill", new).keys()
        assert read(root) == below("skill", old)


@fewer
@given(skill_trees(), st.data(), st.sampled_from(STRATEGIES), st.booleans(), schedules)
def test_a_reinstall_repairs_what_somebody_changed(
    tree: SkillTree,
    data: st.DataObject,
    strategy: Strategy,
    skip_unchanged: bool,
    schedule: object,
) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place, "root")
        plan = plan_skills([tree.write(Path(place, "skill"))])
        put(plan, root)
        damages = st.sampled_from(["bytes", "bit", "gone", None])
        for path in below("skill", tree):
            file = root / path
            match data.draw(damages):
                case "bytes":
                    file.write_bytes(bytes(255 - byte for byte in file.read_bytes()) or b"x")
                case "bit":
                    file.chmod(file.stat().st_mode ^ 0o100)
                case "gone":
                    file.unlink()
        put(plan, root, strategy=strategy, skip_unchanged=skip_unchanged, verify=True)
        assert read(root) == below("skill", tree)


class Reinstall:
    """An old and a new version of one skill, and a new sandbox for each try."""

    def __init__(self, place: str, old: SkillTree, new: SkillTree, existing: Existing) -> None:
        self.place = Path(place)
        self.existing = existing
        self.before = below("skill", old) if existing == "replace" else {}
        self.after = below("skill", new)
        self.old_plan = plan_skills([old.write(self.place / "old" / "skill")])
        self.plan = plan_skills([new.write(self.place / "new" / "skill")])

    def sandboxes(self) -> Iterator[tuple[int, Path]]:
        """Yield 1, 2, … each with a sandbox that holds the old skill, if it is to be replaced."""
        for step in itertools.count(1):
            root = self.place / f"root{step}"
            root.mkdir()
            if self.existing == "replace":
                put(self.old_plan, root)
            yield step, root


@st.composite
def reinstalls(draw: st.DrawFn, place: str) -> Reinstall:
    """Small ones: each is tried as often as it has steps."""
    trees = skill_trees(max_files=3)
    return Reinstall(place, draw(trees), draw(trees), draw(st.sampled_from(["merge", "replace"])))


@fewer
@given(st.data(), schedules)
def test_cancelled_at_any_step_a_skill_is_the_old_or_the_new(
    data: st.DataObject, schedule: object
) -> None:
    with tempfile.TemporaryDirectory() as place:
        reinstall = data.draw(reinstalls(place))
        for step, root in reinstall.sandboxes():
            instrument = CancelAtStep(step)

            async def main() -> bool:
                with instrument.scope as scope:  # noqa: B023
                    async with open_local(root) as runtime:  # noqa: B023
                        await install(reinstall.plan, runtime, existing=reinstall.existing)
                return scope.cancelled_caught

            cancelled = trio.run(main, instruments=[instrument])
            assert read(root) in (reinstall.before, reinstall.after)
            if not cancelled:
                assert read(root) == reinstall.after
                return


class StoppedError(BaseException):
    """In place of the `Cancelled` that a worker thread notices."""


@fewer
@given(st.data())
def test_cancelled_at_any_file_a_skill_is_the_old_or_the_new(data: st.DataObject) -> None:
    """In the worker thread, which asks before each file whether it should go on."""
    with tempfile.TemporaryDirectory() as place:
        reinstall = data.draw(reinstalls(place))
        for step, root in reinstall.sandboxes():
            asked = itertools.count(1)

            def check_cancelled() -> None:
                if next(asked) == step:  # noqa: B023
                    raise StoppedError

            descriptor = os.open(root, os.O_RDONLY)
            try:
                Files(descriptor).write_many(
                    reinstall.plan.uploads,
                    reinstall.plan.folders,
                    reinstall.existing,
                    check_cancelled,
                )
            except StoppedError:
                assert read(root) == reinstall.before
            else:
                assert read(root) == reinstall.after
                return
            finally:
                os.close(descriptor)


@few
@given(st.data())
def test_killed_at_any_moment_a_skill_is_the_old_or_the_new(data: st.DataObject) -> None:
    """And the next install removes what the killed one left, and puts back what it moved aside."""
    with tempfile.TemporaryDirectory() as place:
        reinstall = data.draw(reinstalls(place))
        other = plan_skills([SKILL.write(Path(place, "other"))])
        for step, root in reinstall.sandboxes():
            killed = put_and_be_killed(step, reinstall.plan, root, existing=reinstall.existing)
            there = {p: c for p, c in read(root).items() if not p.startswith(TEMPORARY)}
            assert there in ({}, reinstall.before, reinstall.after)
            put(other, root)
            there = {p: c for p, c in read(root).items() if not p.startswith("other/")}
            assert there in (reinstall.before, reinstall.after)
            assert {path.name for path in root.iterdir()} <= {"skill", "other"}
            if not killed:
                assert there == reinstall.after
                return


@few
@given(skill_trees(max_files=3), st.sampled_from(STRATEGIES))
def test_killed_at_any_moment_a_file_is_the_old_or_the_new(
    old: SkillTree, strategy: Strategy
) -> None:
    new = attrs.evolve(old, files={p: (data + b"new", x) for p, (data, x) in old.files.items()})
    with tempfile.TemporaryDirectory() as place:
        plan = plan_skills([new.write(Path(place, "new", "skill"))])
        old_plan = plan_skills([old.write(Path(place, "old", "skill"))])
        for step in itertools.count(1):
            root = Path(place, f"root{step}")
            put(old_plan, root)
            killed = put_and_be_killed(step, plan, root, strategy=strategy)
            for path, (data, _) in read(root).items():
                if not any(part.startswith(TEMPORARY) for part in path.split("/")):
                    before, after = below("skill", old)[path], below("skill", new)[path]
                    assert data in (before[0], after[0])
            if not killed:
                assert read(root) == below("skill", new)
                return


def put_and_be_killed(step: int, plan: Plan, root: Path, **options: Any) -> bool:
    """Install in a child that dies in its n-th use of the file system; return whether it did."""
    with warnings.catch_warnings():
        # From Python 3.12 on, of the idle threads of earlier examples: the child uses none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            die_after(step)
            put(plan, root, **options)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def die_after(step: int) -> None:
    """Let this process be killed before the n-th change of the file system, or in its middle."""
    left = itertools.count(step, -1)
    write = os.write

    def audit(event: str, _: object) -> None:
        touches = event == "open" or event.startswith(("os.mk", "os.re", "os.rm", "os.ch"))
        if touches and next(left) == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def write_half(file: int, data: memoryview) -> int:
        if next(left) == 1:
            write(file, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(file, data)

    sys.addaudithook(audit)
    os.write = write_half  # type: ignore[assignment]  # of what it takes, bytes suffice
