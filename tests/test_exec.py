"""A sandbox that a command reaches: here `env`, which runs what follows, with several shells."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from tests.far_sides import (
    SPELLINGS,
    WORLDS,
    CancelledRunContract,
    RunningContract,
    a_long_time,
    every_world,
    gone,
    litter,
    make_world,
    processes,
    running,
    swapped_again_and_again,
    two_worlds,
)
from tests.programs import MINDS_PERMISSIONS, WITHOUT_POWERS, run
from tests.trees import Content, Tree, make_skill, planned_tree, read_tree, two_skills, write_tree
from tests.ways import STRATEGIES, every_strategy
from trio_skills import (
    DestinationError,
    Event,
    ExecRuntime,
    Existing,
    InstallError,
    Plan,
    Report,
    Strategy,
    TransferEnded,
    TransferStarted,
    Upload,
    VerifyError,
    find_skills,
    install,
    plan_skills,
    plan_uploads,
)

# The others differ only in how many of the same commands run at once.
either_way = pytest.mark.parametrize("strategy", ["sequential", "packed"])

HOSTILE = ["a b", "$(x)", "`x`", "'", '"', "new\nline", "-rf", "--", "\\", "\\n", "*", "~", "%00"]
HOSTILE += ["é", "e\u0301", "\r", "\t", " ", "...", ".hidden", "..a", "#", "n" * 255, "\x1b[31m"]
HOSTILE += [
    "a\n",
    "\n",
    "drop",
    "new",
    "old",
    "swap",
    "end",
    "@",
    "{}",
    "?",
    "[a]",
    "!",
    "=",
    "a=b",
]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return plan_skills(two_skills(tmp_path / "source"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "far side" / "skills"


MakeRuntime = Callable[..., ExecRuntime]


@pytest.fixture
def reach(tmp_path: Path, root: Path) -> MakeRuntime:
    """Return a function that makes a runtime in `root`, given a world and what it lacks."""

    def reach(world: str = "dash", *without: str, path: Path = root) -> ExecRuntime:
        programs = tmp_path / "programs" / "-".join([world.replace(" ", "-"), *without])
        if not programs.exists():
            make_world(programs, world, without)
        return ExecRuntime(("env", f"PATH={programs}"), str(path))

    return reach


class TestInstalling:
    @every_strategy
    @every_world
    async def test_puts_the_plan_there_and_nothing_else(
        self, plan: Plan, root: Path, reach: MakeRuntime, world: str, strategy: Strategy
    ) -> None:
        report = await install(plan, reach(world), strategy=strategy, verify=True)
        assert report.ok
        assert report.in_place == ()
        assert read_tree(root) == planned_tree(plan)
        assert litter(root) == []

    @every_world
    async def test_again_repairs_bytes_and_modes(
        self, plan: Plan, root: Path, reach: MakeRuntime, world: str
    ) -> None:
        """Case 2, cli/cli#14086: an update undoes a repair."""
        await install(plan, reach(world))
        (root / "pdf" / "bin" / "go").chmod(0o644)
        (root / "pdf" / "a b").write_bytes(b"changed")
        (root / "pdf" / "a b").chmod(0o755)
        write_tree(root / "pdf", {"mine": b"kept"})
        await install(plan, reach(world))
        assert read_tree(root) == planned_tree(plan) | {"pdf/mine": (b"kept", False)}

    @either_way
    @every_world
    async def test_hostile_names_arrive(
        self, tmp_path: Path, root: Path, reach: MakeRuntime, world: str, strategy: Strategy
    ) -> None:
        """Case 11, rllm-org/rllm#927."""
        files: dict[str, Content] = {name: (name.encode(), True) for name in HOSTILE}
        files |= {f"in {name}/{name}/{name[:200]}x": name.encode() for name in HOSTILE[:-20]}
        skills = [make_skill(tmp_path / "source" / name) for name in HOSTILE]
        plan = plan_skills([*skills, make_skill(tmp_path / "source" / "files", files)])
        report = await install(plan, reach(world), strategy=strategy, verify=True)
        assert len(report.written) == len(plan.uploads)
        assert read_tree(root) == planned_tree(plan)
        again = await install(plan, reach(world), strategy=strategy, skip_unchanged=True)
        assert len(again.unchanged) == len(plan.uploads)

    @every_world
    async def test_a_hostile_folder_holds_the_skills(
        self, tmp_path: Path, plan: Plan, reach: MakeRuntime, world: str
    ) -> None:
        for name in HOSTILE:
            path = tmp_path / "far side" / name / name
            sources = [skill.folder for skill in plan.skills]
            inner = plan_skills(sources, f"{name}/{name}")
            await install(inner, reach(world, path=path))
            assert read_tree(path) == planned_tree(inner)

    @every_strategy
    async def test_an_absolute_destination_is_where_it_says(
        self, tmp_path: Path, plan: Plan, root: Path, reach: MakeRuntime, strategy: Strategy
    ) -> None:
        elsewhere = tmp_path / "else where"
        absolute = plan_skills([skill.folder for skill in plan.skills], str(elsewhere))
        await install(absolute, reach(), strategy=strategy, verify=True)
        assert read_tree(elsewhere) == planned_tree(plan)
        assert not root.exists()

    @either_way
    @every_world
    async def test_single_files_need_no_skill(
        self, root: Path, reach: MakeRuntime, world: str, strategy: Strategy
    ) -> None:
        write_tree(root, {"a/old": b"kept", "a/b": b"old", "x/y": b"kept"})
        plan = plan_uploads(
            [Upload.of(target, b"1", executable=True) for target in ("a/b", "a/c/d/e", "c", "x/z")]
        )
        await install(plan, reach(world), strategy=strategy)
        kept: Tree = {"a/old": (b"kept", False), "x/y": (b"kept", False)}
        assert read_tree(root) == planned_tree(plan) | kept
        assert litter(root) == []

    @every_strategy
    async def test_a_program_finds_the_one_beside_it(
        self, tmp_path: Path, root: Path, reach: MakeRuntime, strategy: Strategy
    ) -> None:
        """Case 1, vercel-labs/skills#1140: a dispatcher that starts a helper."""
        files: dict[str, Content] = {
            "bin/go": (b'#!/bin/sh\nexec "${0%/*}/lib/h"\n', True),
            "bin/lib/h": (b"#!/bin/sh\necho started\n", True),
        }
        plan = plan_skills([make_skill(tmp_path / "pdf", files)])
        await install(plan, reach(), strategy=strategy)
        assert subprocess.check_output([root / "pdf/bin/go"]) == b"started\n"

    @every_strategy
    async def test_execute_bits_survive_any_umask(
        self, plan: Plan, root: Path, reach: MakeRuntime, strategy: Strategy
    ) -> None:
        runtime = reach()
        before = os.umask(0o077)
        try:
            await install(plan, runtime, strategy=strategy)
        finally:
            os.umask(before)
        assert read_tree(root) == planned_tree(plan)

    async def test_a_deep_tree_is_installed_and_replaced(
        self, root: Path, reach: MakeRuntime
    ) -> None:
        deep = "/".join(["0"] * 500)
        plan = Plan(plan_uploads([Upload.of(f"pdf/{deep}/x", b"1")]).uploads, folders=("pdf",))
        await install(plan, reach())
        assert set(read_tree(root)) == {f"pdf/{deep}/x"}
        await install(plan, reach(), existing="merge")
        await install(plan, reach(), existing="replace")
        assert set(read_tree(root)) == {f"pdf/{deep}/x"}

    async def test_cdpath_and_other_variables_do_not_mislead_it(
        self, plan: Plan, tmp_path: Path, root: Path, reach: MakeRuntime
    ) -> None:
        (tmp_path / "else" / "sub").mkdir(parents=True)
        make_world(tmp_path / "world", "dash")
        variables = (f"CDPATH={tmp_path}/else", "IFS=/a", "TAPE=/nowhere", "POSIXLY_CORRECT=1")
        prefix = ("env", f"PATH={tmp_path}/world", *variables, "TAR_OPTIONS=--exclude=*")
        sub = plan_skills([skill.folder for skill in plan.skills], "sub")
        await install(sub, ExecRuntime(prefix, str(root)))
        assert read_tree(root) == planned_tree(sub)

    async def test_one_round_trip_for_the_usual_plan(self, plan: Plan, reach: MakeRuntime) -> None:
        assert (await install(plan, reach())).round_trips == 1
        assert (await install(plan, reach(), existing="replace")).round_trips == 1
        assert (await install(plan, reach(), verify=True)).round_trips == 2
        assert (await install(plan, reach(), skip_unchanged=True)).round_trips == 1

    async def test_four_round_trips_at_most_for_2600_small_files(
        self, tmp_path: Path, root: Path, reach: MakeRuntime
    ) -> None:
        """Cases 8 and 16: vercel/eve#1601, langchain-ai/deepagents#2117."""
        padding = "p" * 100
        files: dict[str, Content] = {
            f"{n % 13}/{padding}{n}": (b"%d" % n, True) for n in range(2_600)
        }
        plan = plan_skills([make_skill(tmp_path / "pdf", files)])
        report = await install(plan, reach(), verify=True)
        assert report.round_trips <= 4
        assert read_tree(root) == planned_tree(plan)
        assert (await install(plan, reach(), existing="merge")).round_trips <= 4

    async def test_nothing_outlives_a_call(
        self, plan: Plan, root: Path, reach: MakeRuntime
    ) -> None:
        descriptors = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            await install(plan, reach())
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert processes(str(root)) == []


class TestExisting:
    OLD: dict[str, bytes] = {"pdf/old/x": b"old", "pdf/a b": b"old", "other/y": b"kept"}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def old(self, root: Path) -> None:
        write_tree(root, self.OLD)

    @either_way
    @two_worlds
    async def test_merge_keeps_the_other_files(
        self, plan: Plan, root: Path, reach: MakeRuntime, world: str, strategy: Strategy
    ) -> None:
        await install(plan, reach(world), existing="merge", strategy=strategy)
        kept: Tree = {"pdf/old/x": (b"old", False), "other/y": (b"kept", False)}
        assert read_tree(root) == planned_tree(plan) | kept
        assert litter(root) == []

    @two_worlds
    async def test_replace_leaves_the_plan_alone(
        self, plan: Plan, root: Path, reach: MakeRuntime, world: str
    ) -> None:
        report = await install(plan, reach(world), existing="replace")
        assert report.in_place == ()
        assert read_tree(root) == planned_tree(plan) | {"other/y": (b"kept", False)}
        assert litter(root) == []

    @either_way
    @two_worlds
    async def test_error_writes_nothing(
        self, plan: Plan, root: Path, reach: MakeRuntime, world: str, strategy: Strategy
    ) -> None:
        before = read_tree(root)
        with pytest.raises(DestinationError, match="pdf: it is there already"):
            await install(plan, reach(world), existing="error", strategy=strategy)
        assert read_tree(root) == before
        assert litter(root) == []

    @two_worlds
    async def test_error_refuses_what_came_after_it_had_looked(
        self, plan: Plan, root: Path, reach: MakeRuntime, world: str
    ) -> None:
        write_tree(root, {"xlsx/late": b"kept"})
        result = await reach(world).write_many(plan.uploads, folders=plan.folders, existing="error")
        assert len(result.errors) == len(plan.uploads)
        assert all("there already" in str(error) for error in result.errors)
        assert set(read_tree(root)) == {*self.OLD, "xlsx/late"}

    @every_strategy
    async def test_error_installs_where_nothing_is_there(
        self, plan: Plan, tmp_path: Path, reach: MakeRuntime, strategy: Strategy
    ) -> None:
        elsewhere = tmp_path / "elsewhere"
        await install(plan, reach(path=elsewhere), existing="error", strategy=strategy)
        assert read_tree(elsewhere) == planned_tree(plan)

    @two_worlds
    async def test_replace_with_a_failure_leaves_the_old_folder(
        self, plan: Plan, root: Path, reach: MakeRuntime, world: str
    ) -> None:
        before = read_tree(root)
        source = plan.uploads[1].source
        assert isinstance(source, Path)
        source.write_bytes(b"changed after planning")
        with pytest.raises(InstallError, match="3 of 6 files failed") as caught:
            await install(plan, reach(world), existing="replace")
        reasons = [str(error) for error in caught.value.exceptions]
        assert sum("changed after it was planned" in reason for reason in reasons) == 1
        assert sum("other files of its skill failed" in reason for reason in reasons) == 2
        assert read_tree(root) == before | {
            path: entry for path, entry in planned_tree(plan).items() if path.startswith("xlsx")
        }

    @two_worlds
    async def test_merge_with_a_failure_blames_that_file_alone(
        self, plan: Plan, root: Path, reach: MakeRuntime, world: str
    ) -> None:
        source = plan.uploads[1].source
        assert isinstance(source, Path)
        expected = planned_tree(plan)
        source.write_bytes(b"changed after planning")
        with pytest.raises(InstallError, match="1 of 6 files failed") as caught:
            await install(plan, reach(world), existing="merge")
        target = plan.uploads[1].target
        assert [outcome.target for outcome in caught.value.report.failed] == [target]
        expected[target] = (b"old", False)
        there = read_tree(root)
        assert {path: there[path][0] for path in expected} == {
            path: data for path, (data, _) in expected.items()
        }

    @two_worlds
    async def test_one_unwritable_target_among_200_fails_alone(
        self, tmp_path: Path, root: Path, reach: MakeRuntime, world: str
    ) -> None:
        files: dict[str, Content] = {f"f{n:03}": (b"%d" % n, n % 2 == 0) for n in range(199)}
        plan = plan_skills([make_skill(tmp_path / "pdf", files)])
        write_tree(root, {"pdf/f077/in the way": b"kept"})
        with pytest.raises(InstallError, match="1 of 200 files failed") as caught:
            await install(plan, reach(world))
        report = caught.value.report
        assert [outcome.target for outcome in report.failed] == ["pdf/f077"]
        assert len(report.written) == 199
        there = read_tree(root)
        assert there["pdf/f077/in the way"] == (b"kept", False)
        expected = planned_tree(plan)
        del expected["pdf/f077"]
        assert {path: there[path][0] for path in expected} == {
            path: data for path, (data, _) in expected.items()
        }

    @pytest.mark.skipif(not MINDS_PERMISSIONS, reason="root ignores permissions here")
    @pytest.mark.parametrize("existing", ["merge", "replace"])
    @two_worlds
    def test_an_old_folder_that_cannot_be_changed_stays(
        self, plan: Plan, root: Path, tmp_path: Path, world: str, existing: str
    ) -> None:
        """Its other skill is written all the same."""
        prefix = make_world(tmp_path / "programs", world)
        (root / "pdf").chmod(0o555)
        (root / "pdf" / "old").chmod(0o555)
        try:
            ended = run(
                *("install", tmp_path / "source", "--to", shlex.join(["exec:env", *prefix[1:]])),
                *("--dest", root, "--existing", existing, "--json"),
                before=WITHOUT_POWERS,
            )
        finally:
            (root / "pdf").chmod(0o755)
            (root / "pdf" / "old").chmod(0o755)
        there = read_tree(root)
        new = planned_tree(plan)
        assert {p: e for p, e in there.items() if p.startswith("xlsx/")} == {
            p: e for p, e in new.items() if p.startswith("xlsx/")
        }
        pdf = {p: e for p, e in there.items() if p.startswith("pdf/")}
        if ended.returncode == 0:
            # Moving a folder takes no permission to write into it on every system.
            assert existing == "replace"
            assert pdf == {p: e for p, e in new.items() if p.startswith("pdf/")}
        else:
            assert pdf == {p: (d, False) for p, d in self.OLD.items() if p.startswith("pdf/")}
        assert litter(root) == []


class TestInTheWay:
    @pytest.fixture
    def behind(self, tmp_path: Path) -> Path:
        """What a link leads to."""
        write_tree(
            tmp_path / "behind", {"precious": b"kept", "bin/go": b"kept", "SKILL.md": b"kept"}
        )
        return tmp_path / "behind"

    @either_way
    @two_worlds
    @pytest.mark.parametrize("link", ["pdf", "pdf/bin"])
    async def test_a_link_is_refused_and_nothing_is_written_behind_it(
        self,
        plan: Plan,
        root: Path,
        behind: Path,
        reach: MakeRuntime,
        world: str,
        strategy: Strategy,
        link: str,
    ) -> None:
        before = read_tree(behind)
        (root / link).parent.mkdir(parents=True)
        (root / link).symlink_to(behind)
        with pytest.raises(InstallError, match="link") as caught:
            await install(plan, reach(world), strategy=strategy)
        expected = {upload.target for upload in plan.uploads if upload.target.startswith(link)}
        assert {outcome.target for outcome in caught.value.report.failed} == expected
        assert read_tree(behind) == before
        assert (root / link).readlink() == behind
        assert litter(root) == litter(behind) == []

    @either_way
    @two_worlds
    async def test_a_link_above_the_skill_folder_is_refused_too(
        self,
        plan: Plan,
        root: Path,
        behind: Path,
        reach: MakeRuntime,
        world: str,
        strategy: Strategy,
    ) -> None:
        """Only of the plan's own path: what the runtime was opened with may be a link."""
        before = read_tree(behind)
        root.mkdir(parents=True)
        (root / "sub").symlink_to(behind)
        sub = plan_skills([skill.folder for skill in plan.skills], "sub/skills")
        with pytest.raises((InstallError, DestinationError), match="link"):
            await install(sub, reach(world), strategy=strategy)
        assert read_tree(behind) == before

    @every_strategy
    async def test_the_folder_that_was_named_may_be_a_link(
        self, plan: Plan, root: Path, behind: Path, reach: MakeRuntime, strategy: Strategy
    ) -> None:
        before = read_tree(behind)
        root.parent.mkdir(parents=True)
        root.symlink_to(behind)
        await install(plan, reach(), strategy=strategy)
        assert read_tree(behind) == before | planned_tree(plan)

    @two_worlds
    async def test_a_file_that_is_a_link_is_replaced_not_followed(
        self, plan: Plan, root: Path, behind: Path, reach: MakeRuntime, world: str
    ) -> None:
        for strategy in STRATEGIES:
            (root / "pdf" / "bin").mkdir(parents=True, exist_ok=True)
            (root / "pdf" / "bin" / "go").unlink(missing_ok=True)
            (root / "pdf" / "bin" / "go").symlink_to(behind / "bin" / "go")
            await install(plan, reach(world), strategy=strategy)
            assert (behind / "bin" / "go").read_bytes() == b"kept"
            assert read_tree(root) == planned_tree(plan)

    @two_worlds
    async def test_replacing_a_link_leaves_what_is_behind_it(
        self, plan: Plan, root: Path, behind: Path, reach: MakeRuntime, world: str
    ) -> None:
        before = read_tree(behind)
        root.mkdir(parents=True)
        (root / "pdf").symlink_to(behind)
        (root / "xlsx").mkdir()
        (root / "xlsx" / "link").symlink_to(behind)
        await install(plan, reach(world), existing="replace")
        assert read_tree(root) == planned_tree(plan)
        assert read_tree(behind) == before

    @two_worlds
    async def test_a_workspace_that_is_a_link_is_not_swept(
        self, plan: Plan, root: Path, behind: Path, reach: MakeRuntime, world: str
    ) -> None:
        before = read_tree(behind)
        root.mkdir(parents=True)
        fake = root / f"{'.trio-skills'}@host@boot@1@2@nonce"
        fake.symlink_to(behind)
        await install(plan, reach(world))
        assert read_tree(behind) == before

    @either_way
    @two_worlds
    async def test_a_destination_that_is_a_file_is_refused(
        self, plan: Plan, root: Path, reach: MakeRuntime, world: str, strategy: Strategy
    ) -> None:
        root.parent.mkdir(parents=True)
        root.write_bytes(b"kept")
        with pytest.raises((InstallError, DestinationError), match="a file is in the way"):
            await install(plan, reach(world), strategy=strategy)
        assert root.read_bytes() == b"kept"
        assert [path.name for path in root.parent.iterdir()] == [root.name]

    @either_way
    @two_worlds
    async def test_a_target_that_is_a_folder_fails_alone(
        self, plan: Plan, root: Path, reach: MakeRuntime, world: str, strategy: Strategy
    ) -> None:
        write_tree(root, {"pdf/a b/x": b"kept"})
        with pytest.raises(InstallError, match="folder is in the way") as caught:
            await install(plan, reach(world), strategy=strategy)
        assert [outcome.target for outcome in caught.value.report.failed] == ["pdf/a b"]
        there = read_tree(root)
        expected = planned_tree(plan)
        del expected["pdf/a b"]
        assert there.keys() == expected.keys() | {"pdf/a b/x"}
        assert litter(root) == []

    @either_way
    @two_worlds
    @pytest.mark.parametrize("path", ["pdf", "pdf/bin"])
    async def test_a_file_where_a_folder_is_needed_fails_what_is_beneath(
        self,
        plan: Plan,
        root: Path,
        reach: MakeRuntime,
        world: str,
        strategy: Strategy,
        path: str,
    ) -> None:
        write_tree(root, {path: b"kept"})
        with pytest.raises(InstallError) as caught:
            await install(plan, reach(world), strategy=strategy)
        beneath = {u.target for u in plan.uploads if u.target.startswith(f"{path}/")}
        assert {outcome.target for outcome in caught.value.report.failed} == beneath
        assert (root / path).read_bytes() == b"kept"
        assert litter(root) == []

    @pytest.mark.mounts
    @two_worlds
    async def test_a_disk_with_room_for_a_part_of_the_workspace_is_left_as_it_was(
        self, small_disk: Path, plan: Plan, reach: MakeRuntime, world: str
    ) -> None:
        remount = ["mount", "-o", "remount,nr_inodes=4", str(small_disk)]
        subprocess.run(remount, check=True)
        with pytest.raises(InstallError, match=r"(?i)no space"):
            await install(plan, reach(world, path=small_disk))
        assert read_tree(small_disk) == {}
        assert litter(small_disk) == []

    @pytest.mark.mounts
    @two_worlds
    async def test_a_full_disk_fails_and_leaves_the_old_folder(
        self, small_disk: Path, tmp_path: Path, reach: MakeRuntime, world: str
    ) -> None:
        write_tree(small_disk, {"pdf/old": b"kept"})
        big = make_skill(tmp_path / "pdf", {"big": os.urandom(2_000_000)})
        existing: Existing
        for existing in ("replace", "merge"):
            with pytest.raises(InstallError, match=r"(?i)no space|wrote only"):
                await install(plan_skills([big]), reach(world, path=small_disk), existing=existing)
            assert read_tree(small_disk)["pdf/old"] == (b"kept", False)
            assert "pdf/big" not in read_tree(small_disk)
            assert litter(small_disk) == []


class TestMissingPrograms:
    """Cases 9 and 10: without a program it works, or it says which one it lacks."""

    every_program = pytest.mark.parametrize(
        "program",
        ["tar", "mv", "mkdir", "rm", "cat", "chmod", "sha256sum", "wc", "cp", "find", "setsid"],
    )

    @every_program
    # A busybox shell has its own programs, whatever PATH is.
    @pytest.mark.parametrize("world", ["dash", "dash with busybox"])
    async def test_installing(
        self, plan: Plan, root: Path, reach: MakeRuntime, world: str, program: str
    ) -> None:
        await self.check(plan, root, reach(world, program), program)

    @every_program
    async def test_installing_single_files(
        self, plan: Plan, root: Path, reach: MakeRuntime, program: str
    ) -> None:
        await self.check(plan, root, reach("dash", program), program, strategy="concurrent")

    @every_program
    async def test_replacing_loses_nothing(
        self, plan: Plan, root: Path, reach: MakeRuntime, program: str
    ) -> None:
        write_tree(root, {"pdf/old": b"old"})
        kept: Tree = {"pdf/old": (b"old", False)}
        runtime = reach("dash", program)
        await self.check(plan, root, runtime, program, kept, existing="replace")

    async def check(
        self,
        plan: Plan,
        root: Path,
        runtime: ExecRuntime,
        program: str,
        kept: Tree | None = None,
        **options: Any,
    ) -> None:
        try:
            report = await install(plan, runtime, verify=True, **options)
        except (InstallError, DestinationError) as exc:
            assert program in str(exc)  # noqa: PT017
            there = {path: data for path, (data, _) in read_tree(root).items()}
            planned = {path: data for path, (data, _) in planned_tree(plan).items()}
            if program in ("chmod", "sha256sum"):  # which come after everything was written
                assert there == planned
            else:
                written: set[str] = set()
                if isinstance(exc, InstallError):
                    written = {outcome.target for outcome in exc.report.written}
                expected = {path: data for path, (data, _) in (kept or {}).items()}
                assert there == expected | {target: planned[target] for target in written}
        else:
            assert report.ok
            assert read_tree(root) == planned_tree(plan)
        assert litter(root) == []

    async def test_without_tar_files_travel_one_by_one(
        self, plan: Plan, root: Path, reach: MakeRuntime
    ) -> None:
        report = await install(plan, reach("dash", "tar"), verify=True)
        assert len(report.written) == len(plan.uploads)
        assert read_tree(root) == planned_tree(plan)

    async def test_without_tar_a_folder_cannot_be_replaced(
        self, plan: Plan, root: Path, reach: MakeRuntime
    ) -> None:
        write_tree(root, {"pdf/old": b"kept"})
        with pytest.raises(InstallError, match="tar"):
            await install(plan, reach("dash", "tar"), existing="replace")
        assert read_tree(root) == {"pdf/old": (b"kept", False)}

    async def test_without_a_shell_it_says_so(
        self, plan: Plan, root: Path, reach: MakeRuntime
    ) -> None:
        with pytest.raises(InstallError, match="'sh'"):
            await install(plan, reach("dash", "sh"))

    async def test_a_command_that_is_not_there_is_named(self, plan: Plan, root: Path) -> None:
        with pytest.raises(InstallError, match="no-such-command"):
            await install(plan, ExecRuntime(("no-such-command",), str(root)))

    async def test_a_command_that_only_fails_is_no_success(self, plan: Plan, root: Path) -> None:
        with pytest.raises(InstallError, match=r"[36] of 6 files"):
            await install(plan, ExecRuntime(("false",), str(root)))
        with pytest.raises(InstallError):
            await install(plan, ExecRuntime(("true",), str(root)))

    async def test_a_command_that_passes_no_input_on_is_no_success(
        self, plan: Plan, root: Path, tmp_path: Path
    ) -> None:
        """`kubectl exec` without `-i`."""
        without = tmp_path / "without-input"
        without.write_text('#!/bin/sh\nexec "$@" </dev/null\n')
        without.chmod(0o755)
        with pytest.raises(InstallError) as caught:
            await install(plan, ExecRuntime((str(without),), str(root)))
        # Nothing was to be sent of an empty file.
        written = {outcome.target for outcome in caught.value.report.written}
        assert written <= {"xlsx/empty"}
        assert {path for path in read_tree(root) if (root / path).is_file()} <= written
        assert litter(root) == []

    async def test_a_command_that_loses_bytes_is_no_success(
        self, plan: Plan, root: Path, tmp_path: Path
    ) -> None:
        """Case 9, UKGovernmentBEIS/inspect_k8s_sandbox#225: a short file reported as written."""
        lossy = tmp_path / "lossy"
        lossy.write_text('#!/bin/sh\nhead -c 3000 | "$@"\n')
        lossy.chmod(0o755)
        runtime = ExecRuntime((str(lossy),), str(root))
        big = plan_uploads([Upload.of("pdf/big", b"1" * 50_000)])
        existing: Existing
        for existing in ("replace", "merge"):
            with pytest.raises(InstallError, match=r"cut off|tar failed"):
                await install(Plan(big.uploads, folders=("pdf",)), runtime, existing=existing)
            assert not (root / "pdf/big").exists()
            assert litter(root) == []


class TestVerifying:
    @two_worlds
    async def test_what_was_changed_is_found_and_repaired(
        self, plan: Plan, root: Path, reach: MakeRuntime, world: str
    ) -> None:
        await install(plan, reach(world))
        (root / "pdf/a b").write_bytes(b"9")
        (root / "pdf/bin/go").chmod(0o644)
        (root / "xlsx/empty").unlink()
        (root / "xlsx/x/y/z").rename(root / "kept")
        (root / "xlsx/x/y/z").symlink_to(root / "kept")
        report = await install(plan, reach(world), skip_unchanged=True)
        assert {outcome.target for outcome in report.written} == {
            *("pdf/a b", "pdf/bin/go", "xlsx/empty", "xlsx/x/y/z"),
        }
        (root / "kept").unlink()
        assert read_tree(root) == planned_tree(plan)

    @two_worlds
    async def test_what_changes_before_it_was_verified_is_a_failure(
        self, plan: Plan, root: Path, reach: MakeRuntime, world: str
    ) -> None:
        def meddle(event: Event) -> None:
            if isinstance(event, TransferEnded):
                (root / "pdf/bin/go").chmod(0o644)

        with pytest.raises(InstallError, match="1 of 6 files failed") as caught:
            await install(plan, reach(world), verify=True, on_event=meddle)
        assert isinstance(caught.value.exceptions[0].__cause__, VerifyError)


class TestRunning(RunningContract, CancelledRunContract):
    @pytest.fixture(params=WORLDS)
    def runtime(self, request: pytest.FixtureRequest, reach: MakeRuntime) -> ExecRuntime:
        return reach(request.param)

    async def test_it_runs_in_the_folder(self, runtime: ExecRuntime, root: Path) -> None:
        assert (await runtime.run(["pwd"], {})).stdout == f"{root}\n".encode()


class TestCancelling:
    @two_worlds
    @pytest.mark.parametrize("existing", ["merge", "replace"])
    async def test_a_packed_write_leaves_nothing(
        self, root: Path, reach: MakeRuntime, world: str, existing: Existing
    ) -> None:
        write_tree(root, {"pdf/old": b"kept"})
        uploads = [Upload.of(f"pdf/{n:02}", bytes(4_000_000)) for n in range(20)]
        plan = Plan(tuple(uploads), folders=("pdf",))
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def put() -> None:
                await install(plan, reach(world), existing=existing)

            with trio.fail_after(10):
                while not any("new" in path.parts for path in root.rglob("0*")):
                    await trio.lowlevel.checkpoint()
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began < 1
        assert read_tree(root) == {"pdf/old": (b"kept", False)}
        assert processes(str(root)) == []

    @two_worlds
    async def test_a_single_write_leaves_nothing(
        self, root: Path, reach: MakeRuntime, world: str
    ) -> None:
        write_tree(root, {"big": b"kept"})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reach(world).write, "big", bytes(100_000_000))
            with trio.fail_after(10):
                while not any(path.is_file() for path in root.glob(".trio-skills*/*")):
                    await trio.lowlevel.checkpoint()
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began < 1
        assert read_tree(root) == {"big": (b"kept", False)}
        assert processes(str(root)) == []

    async def test_a_command_that_never_answers_is_ended(self, plan: Plan, tmp_path: Path) -> None:
        long = a_long_time()
        deaf = tmp_path / "deaf"
        deaf.write_text(f"#!/bin/sh\ntrap '' HUP INT TERM PIPE\nsleep {long} & sleep {long}\n")
        deaf.chmod(0o755)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(install, plan, ExecRuntime((str(deaf),), "/nowhere"))
            await running("sleep", long)
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began < 1
        await gone(long, within=1)


class TestTwoAtOnce:
    @two_worlds
    @pytest.mark.parametrize("existing", ["merge", "replace"])
    async def test_installs_of_one_plan_all_end_well(
        self, plan: Plan, root: Path, reach: MakeRuntime, world: str, existing: Existing
    ) -> None:
        write_tree(root, {"pdf/SKILL.md": b"old"})

        async def put() -> None:
            for _ in range(5):
                await install(plan, reach(world), existing=existing)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(put)
        assert read_tree(root) == planned_tree(plan)
        assert litter(root) == []

    @two_worlds
    async def test_new_folders_that_merge_have_the_files_of_both(
        self, tmp_path: Path, root: Path, reach: MakeRuntime, world: str
    ) -> None:
        plans = [
            plan_skills([make_skill(tmp_path / name / "pdf", {f"x/{name}": b"1", name: b"2"})])
            for name in ("one", "two")
        ]
        for number in range(10):
            runtime = reach(world, path=root / str(number))
            async with trio.open_nursery() as nursery:
                for plan in plans:
                    nursery.start_soon(install, plan, runtime)
            assert read_tree(root / str(number)) == planned_tree(plans[0]) | planned_tree(plans[1])

    @two_worlds
    async def test_different_plans_that_replace_leave_one_of_them(
        self, tmp_path: Path, root: Path, reach: MakeRuntime, world: str
    ) -> None:
        plans = [
            plan_skills([make_skill(tmp_path / name / "pdf", {f"x/{name}": b"1", name: b"2"})])
            for name in ("one", "two")
        ]
        write_tree(root, {"pdf/old": b"old"})
        for _ in range(10):
            async with trio.open_nursery() as nursery:
                for plan in plans:

                    @nursery.start_soon
                    async def put(plan: Plan = plan) -> None:
                        await install(plan, reach(world), existing="replace")

            assert read_tree(root) in [planned_tree(plan) for plan in plans]

    @two_worlds
    async def test_what_others_swap_is_there_or_missing(
        self, root: Path, reach: MakeRuntime, world: str
    ) -> None:
        write_tree(root, {"pdf/SKILL.md": b"1"})
        runtime = reach(world)
        with swapped_again_and_again(root / "pdf"):
            for _ in range(10):
                for target, state in (await runtime.inspect(list(SPELLINGS))).items():
                    assert state.kind in ("missing", SPELLINGS[target])

    @two_worlds
    async def test_a_destination_that_is_made_after_it_was_missed_is_entered(
        self, tmp_path: Path, root: Path, world: str
    ) -> None:
        programs = tmp_path / "programs"
        make_world(programs, world)
        start = 'sh=$1 text=$3; shift 3; exec "$sh" -c "$0$text" "$@"'
        prefix = ("env", f"PATH={programs}", "sh", "-c", start, MADE_AFTER_IT_WAS_MISSED)
        states = await ExecRuntime(prefix, str(root)).inspect(["."])
        assert root.is_dir()
        assert states["."].kind == "folder"

    async def test_one_runtime_counts_the_processes_of_all_its_installs(
        self, tmp_path: Path, root: Path
    ) -> None:
        prefix = make_world(tmp_path / "programs", "dash")
        runtime = ExecRuntime(prefix, str(root), max_in_flight=2)
        files = [[Upload.of(f"{n}/{m}", b"1") for m in range(30)] for n in range(3)]
        plans = [plan_uploads(uploads) for uploads in files]
        most = 0

        def count(event: Event) -> None:
            nonlocal most
            if isinstance(event, TransferStarted):
                most = max(most, len(processes("sh", str(root), "write")))

        async with trio.open_nursery() as nursery:
            for plan in plans:

                @nursery.start_soon
                async def put(plan: Plan = plan) -> None:
                    await install(plan, runtime, strategy="concurrent", on_event=count)

        assert len(read_tree(root)) == 90
        # Each is one shell, which forks itself.
        assert 0 < most <= 2 * 3


MADE_AFTER_IT_WAS_MISSED = """\
cd() {
  command cd "$@" && return
  mkdir -p -- "$2"
  return 1
}
"""


class TestTheCommandLine:
    def test_400_writers_and_few_descriptors(self, tmp_path: Path, root: Path) -> None:
        """Case 25, OpenNeuroOrg/openneuro#2613."""
        make_skill(tmp_path / "pdf", {f"f{n}": b"%d" % n for n in range(399)})
        ended = run(
            *("install", tmp_path / "pdf", "--to", "exec:env --", "--dest", root),
            *("--strategy", "concurrent", "--max-in-flight", "400"),
            before=["sh", "-c", 'ulimit -n 256; exec "$@"', "sh"],
        )
        assert ended.returncode == 0, ended.stderr + ended.stdout
        assert read_tree(root / "pdf") == read_tree(tmp_path / "pdf")

    @pytest.mark.corpus
    async def test_a_collection_arrives_whole_by_every_shell(
        self, corpus: dict[str, Path], tmp_path: Path, reach: MakeRuntime
    ) -> None:
        plan = plan_skills(find_skills(corpus["claude-data-skills"]))
        for world in WORLDS:
            path = tmp_path / "far side" / world
            report: Report = await install(plan, reach(world, path=path), verify=True)
            assert report.ok
            assert read_tree(path) == planned_tree(plan)
