"""Hostile trees by a real shell: there, too, a name is data, whatever shell it is."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from property_tests.test_local_properties import below, read
from trio_skills import ExecRuntime, Existing, Plan, Strategy, install, plan_skills
from trio_skills.testing.strategies import SkillTree, skill_trees

# A folder of programs of which `sh` is the one to be tried.
SHELLS = ("dash", "busybox")
PROGRAMS = ("cat", "chmod", "cp", "mkdir", "mv", "rm", "sha256sum", "tar", "wc")

# Each example starts a dozen processes.
fewer = settings(max_examples=settings().max_examples // 3)
# A process for each file takes long; these are for a few examples.
strategies = st.sampled_from(["packed"] * 7 + ["concurrent"])


@pytest.fixture(scope="module", params=SHELLS)
def prefix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return what comes before a command, so that it finds this shell and programs of its kind."""
    folder = tmp_path_factory.mktemp(request.param)
    busybox = shutil.which("busybox")
    for name in ("sh", *PROGRAMS):
        own = shutil.which(request.param if name == "sh" else name)
        path = busybox if request.param == "busybox" else own
        if path is None:
            pytest.skip(f"there is no {request.param}, or no {name}")
        (folder / name).symlink_to(path)
    return [shutil.which("env") or "env", f"PATH={folder}"]


def put(plan: Plan, prefix: list[str], root: Path, **options: Any) -> None:
    async def main() -> None:
        with trio.fail_after(60):
            await install(plan, ExecRuntime(prefix, str(root)), **options)

    trio.run(main)


def clash(one: SkillTree, two: SkillTree) -> bool:
    """Whether one has a folder where the other has a file."""
    return any(
        a.startswith(f"{b}/") or b.startswith(f"{a}/") for a in one.installed for b in two.installed
    )


@given(tree=skill_trees(), strategy=strategies)
def test_what_is_there_is_the_source(
    prefix: list[str], tree: SkillTree, strategy: Strategy
) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place, "root")
        plan = plan_skills([tree.write(Path(place, "skill"))])
        put(plan, prefix, root, strategy=strategy, verify=True)
        assert read(root) == below("skill", tree)
        assert [path.name for path in root.iterdir()] == ["skill"]


@fewer
@given(old=skill_trees(), new=skill_trees(), existing=st.sampled_from(["merge", "replace"]))
def test_a_reinstall_merges_or_replaces(
    prefix: list[str], old: SkillTree, new: SkillTree, existing: Existing
) -> None:
    assume(existing == "replace" or not clash(old, new))
    with tempfile.TemporaryDirectory() as place:
        root = Path(place, "root")
        put(plan_skills([old.write(Path(place, "old", "skill"))]), prefix, root)
        plan = plan_skills([new.write(Path(place, "new", "skill"))])
        put(plan, prefix, root, existing=existing)
        kept = below("skill", old) if existing == "merge" else {}
        assert read(root) == kept | below("skill", new)
        assert [path.name for path in root.iterdir()] == ["skill"]
