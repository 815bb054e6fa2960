"""SIGKILL of the shell on the far side at any moment: a folder is old or new, and never lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
import trio

from tests.far_sides import gone, litter, make_world, processes
from tests.moments import Moments
from tests.trees import Tree, make_skill, planned_tree, read_tree
from trio_skills import (
    CommandError,
    ExecRuntime,
    Existing,
    InstallError,
    Plan,
    install,
    plan_skills,
)

SKILLS = 2

KILLS_AT = """\
#!/bin/sh
# Counts the calls of all such programs, by files without content: the limit for files may be 0. At
# the call that is asked for it kills the shells above it, before or after it has done its work.
set -C
number=1
until (: >"$COUNTER/$number") 2>/dev/null; do number=$((number + 1)); done
end() {{
  shells=
  process=$PPID
  while read -r _ name _ parent _ <"/proc/$process/stat" && [ "$name" = '(sh)' ]; do
    shells="$process $shells"
    process=$parent
  done
  kill -9 $shells
  exit 1
}}
[ "$AT" != "before $number" ] || end
for last; do :; done
case $NO_RENAME$last in
yes*/old/) kill -XFSZ $$ ;; # as where it has to copy, and may not
esac
{program} "$@"
code=$?
[ "$AT" != "after $number" ] || end
exit $code
"""


@attrs.frozen
class Sandbox:
    """A folder in which versions of the same skills are installed, and what belongs there."""

    root: Path
    prefix: tuple[str, ...]
    versions: Sequence[Plan]
    other: Plan
    """A skill that is no part of them."""

    @property
    def runtime(self) -> ExecRuntime:
        return ExecRuntime(self.prefix, str(self.root))

    async def put(self, plan: Plan, *before: str, existing: Existing = "replace") -> bool:
        """Install. Returns whether that was reported a success."""
        try:
            runtime = ExecRuntime((*self.prefix, *before), str(self.root))
            await install(plan, runtime, existing=existing, retries=0)
        except InstallError:
            return False
        return True

    def versions_of(self, number: int) -> list[Tree]:
        return [of_folder(planned_tree(version), number) for version in self.versions]

    async def check(self, *, new: bool = False) -> None:
        """Each folder is of one version, at the latest when something was installed beside it.

        `new`: there was none before, so that one may be missing.
        """
        await gone(str(self.root))
        there = read_tree(self.root)
        for number in range(SKILLS):
            # Moved aside, or whole: also before anybody has put it back.
            assert of_folder(there, number) in [{}, *self.versions_of(number)]
        assert await self.put(self.other)
        there = read_tree(self.root)
        for number in range(SKILLS):
            allowed = [*self.versions_of(number), *([{}] if new else [])]
            assert of_folder(there, number) in allowed
        assert {path.split("/")[0] for path in there} <= {
            "other",
            *map("s{}".format, range(SKILLS)),
        }
        assert litter(self.root) == []

    def kill(self) -> int:
        """Kill the shell and what it started, its parents first. Returns how many there were."""
        found = processes("sh", str(self.root))
        for pid in [*found, *descendants(found)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(found)


def of_folder(tree: Tree, number: int) -> Tree:
    return {path: entry for path, entry in tree.items() if path.startswith(f"s{number}/")}


def descendants(processes: Sequence[int]) -> list[int]:
    found: list[int] = []
    for pid in processes:
        with suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            found += [*map(int, children), *descendants([*map(int, children)])]
    return found


@pytest.fixture
def sandbox(tmp_path: Path, world: str) -> Sandbox:
    versions = [
        plan_skills(
            make_skill(
                tmp_path / version / f"s{n}",
                {f"{version}/{i}": random.Random(i).randbytes(100_000) for i in range(5)},
            )
            for n in range(SKILLS)
        )
        for version in ("one", "two")
    ]
    other = plan_skills([make_skill(tmp_path / "other")])
    prefix = make_world(tmp_path / "programs", world)
    return Sandbox(tmp_path / "root", prefix, versions, other)


@pytest.mark.parametrize("world", ["dash", "busybox"])
class TestAtAnyMoment:
    async def test_replacing(self, sandbox: Sandbox) -> None:
        assert await sandbox.put(sandbox.versions[1])
        moments = Moments(await self.measure(sandbox, sandbox.versions[0]), runs=25, strikes=6)
        for step, moment in enumerate(moments):
            wanted = sandbox.versions[(step + 1) % 2]
            succeeded = await self.kill_in_between(sandbox, wanted, moment)
            moments.ended(struck=not succeeded)
            if succeeded:
                assert planned_tree(wanted).items() <= read_tree(sandbox.root).items()
            await sandbox.check()
        assert await sandbox.put(sandbox.versions[0])
        expected = planned_tree(sandbox.versions[0]) | planned_tree(sandbox.other)
        assert read_tree(sandbox.root) == expected

    async def test_new_folders_by_merging(self, sandbox: Sandbox) -> None:
        wanted = sandbox.versions[0]
        moments = Moments(await self.measure(sandbox, wanted), runs=25, strikes=6)
        for moment in moments:
            shutil.rmtree(sandbox.root)
            moments.began()
            # Without a retry, file by file, of what failed: that is not whole by itself.
            succeeded = await self.kill_in_between(sandbox, wanted, moment, packed_alone=True)
            moments.ended(struck=not succeeded)
            await sandbox.check(new=True)
            assert await sandbox.put(wanted, existing="merge")
            expected = planned_tree(wanted) | planned_tree(sandbox.other)
            assert read_tree(sandbox.root) == expected

    @staticmethod
    async def measure(sandbox: Sandbox, plan: Plan) -> float:
        began = trio.current_time()
        for _ in range(3):
            assert await sandbox.put(plan)
        return (trio.current_time() - began) / 3

    @staticmethod
    async def kill_in_between(
        sandbox: Sandbox, plan: Plan, moment: float, *, packed_alone: bool = False
    ) -> bool:
        succeeded = False
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def kill() -> None:
                await trio.sleep(moment)
                while not sandbox.kill() and not nursery.cancel_scope.cancel_called:
                    await trio.sleep(0.001)

            if packed_alone:
                with suppress(Exception):
                    result = await sandbox.runtime.write_many(
                        plan.uploads, folders=plan.folders, existing="merge"
                    )
                    succeeded = result.errors == (None,) * len(plan.uploads)
            else:
                succeeded = await sandbox.put(plan)
            nursery.cancel_scope.cancel()
        return succeeded


# A busybox shell has its own programs, whatever PATH is.
@pytest.mark.parametrize("when", ["before", "after"])
class TestAtEveryProgram:
    """Where nothing is left to chance: before and after each program that the shell calls."""

    @pytest.fixture
    def counter(self, tmp_path: Path) -> Path:
        """Have the programs of the sandbox count their calls, as files of this folder."""
        (tmp_path / "killing").mkdir()
        for program in ("mv", "rm", "mkdir", "tar", "cp"):
            path = tmp_path / "killing" / program
            path.write_text(KILLS_AT.format(program=f"{tmp_path}/programs/{program}"))
            path.chmod(0o755)
        return tmp_path / "counter"

    @pytest.fixture
    def prefix(self, sandbox: Sandbox, counter: Path) -> tuple[str, ...]:
        """Put them in front of those that do nothing but their work."""
        env, path = sandbox.prefix
        path = path.replace("PATH=", f"PATH={counter.parent}/killing:")
        return (env, path, f"COUNTER={counter}")

    @staticmethod
    def begin(counter: Path) -> None:
        shutil.rmtree(counter, ignore_errors=True)
        counter.mkdir()

    @pytest.mark.parametrize("world", ["dash", "dash with busybox"])
    @pytest.mark.parametrize("no_rename", ["no", "yes"])
    async def test_replacing(
        self, sandbox: Sandbox, counter: Path, prefix: tuple[str, ...], when: str, no_rename: str
    ) -> None:
        """Also where a folder cannot be renamed, as one that is in a container's image."""
        assert await sandbox.put(sandbox.versions[0])
        killing = attrs.evolve(sandbox, prefix=(*prefix, f"NO_RENAME={no_rename}"))
        for number in range(1, 60):
            self.begin(counter)
            succeeded = await killing.put(sandbox.versions[number % 2], f"AT={when} {number}")
            calls = len(os.listdir(counter))
            await sandbox.check()
            if number > calls:
                assert succeeded
                break
            assert not succeeded or number == calls or no_rename == "yes"
        else:
            pytest.fail("it was never completed")
        # To make the workspace, to unpack, to remove the workspace; and two for each skill.
        assert number > 3 + 2 * SKILLS

    @pytest.mark.parametrize("world", ["dash", "dash with busybox"])
    async def test_new_folders(
        self, sandbox: Sandbox, counter: Path, prefix: tuple[str, ...], when: str
    ) -> None:
        wanted = sandbox.versions[0]
        for number in range(1, 60):
            shutil.rmtree(sandbox.root, ignore_errors=True)
            self.begin(counter)
            killing = ExecRuntime((*prefix, f"AT={when} {number}"), str(sandbox.root))
            with suppress(CommandError):
                await killing.write_many(wanted.uploads, folders=wanted.folders, existing="replace")
            calls = len(os.listdir(counter))
            await sandbox.check(new=True)
            if number > calls:
                break
        else:
            pytest.fail("it was never completed")
        assert number > 3
        assert planned_tree(wanted).items() <= read_tree(sandbox.root).items()

    @pytest.mark.parametrize("world", ["dash"])
    @pytest.mark.parametrize("no_rename", ["no", "yes"])
    async def test_killed_again_while_it_tidies_up(
        self, sandbox: Sandbox, counter: Path, prefix: tuple[str, ...], when: str, no_rename: str
    ) -> None:
        """The install that finds what a killed one left may be killed, too."""
        assert await sandbox.put(sandbox.versions[0])
        killing = attrs.evolve(sandbox, prefix=(*prefix, f"NO_RENAME={no_rename}"))
        # Something is aside, or has been removed and is not yet there again.
        first = {"no": "before 5", "yes": "before 8"}[no_rename]
        for number in range(1, 60):
            self.begin(counter)
            assert not await killing.put(sandbox.versions[1 - number % 2], f"AT={first}")
            assert litter(sandbox.root) != []
            self.begin(counter)
            await killing.put(sandbox.other, f"AT={when} {number}")
            calls = len(os.listdir(counter))
            await sandbox.check()
            if number > calls:
                break
        else:
            pytest.fail("it was never completed")
        assert number > 3
