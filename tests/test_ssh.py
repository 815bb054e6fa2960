"""A real ssh server: one connection, whatever goes over it, and nothing that outlives it."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
import trio
import trio.lowlevel

from tests.corpus import SKILLS
from tests.far_sides import (
    CancelledRunContract,
    RunningContract,
    clients,
    litter,
    processes,
)
from tests.programs import run
from tests.services import SshServer
from tests.test_corpus_install import source_tree
from tests.trees import Content, Tree, make_skill, planned_tree, read_tree, two_skills, write_tree
from tests.ways import STRATEGIES, every_strategy
from trio_skills import (
    DestinationError,
    Existing,
    InstallError,
    Plan,
    Runtime,
    Strategy,
    Upload,
    find_skills,
    install,
    open_runtime,
    open_ssh,
    plan_skills,
    plan_uploads,
)

pytestmark = [pytest.mark.ssh, pytest.mark.usefixtures("ssh_first_in_path")]

every_port = pytest.mark.parametrize("kind", ["port", "banner_port", "no_tar_port"])


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return plan_skills(two_skills(tmp_path / "source"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "far side" / "skills"


class TestInstalling:
    @every_port
    @every_strategy
    async def test_puts_the_plan_there_and_nothing_else(
        self, ssh: SshServer, plan: Plan, root: Path, kind: str, strategy: Strategy
    ) -> None:
        async with open_runtime(ssh.url(str(root), getattr(ssh, kind))) as runtime:
            report = await install(plan, runtime, strategy=strategy, verify=True)
            again = await install(plan, runtime, strategy=strategy, skip_unchanged=True)
        assert len(report.written) == len(again.unchanged) == len(plan.uploads)
        assert report.in_place == ()
        assert read_tree(root) == planned_tree(plan)
        assert litter(root) == []

    async def test_hostile_names_arrive(self, ssh: SshServer, tmp_path: Path, root: Path) -> None:
        """Case 11, rllm-org/rllm#927."""
        names = [word.replace("/", "") for word in RunningContract.WORDS if word]
        files: dict[str, Content] = {name: (name.encode(), True) for name in names if name != "~"}
        skill = make_skill(tmp_path / "source" / "$(x) '\"\n", files)
        plan = plan_skills([skill], dest="my `skills`")
        for strategy in STRATEGIES:
            async with open_runtime(ssh.url(quote(f"{root}/{strategy}"))) as runtime:
                await install(plan, runtime, strategy=strategy, verify=True)
            assert read_tree(root / strategy) == planned_tree(plan)

    async def test_the_path_may_hold_anything(
        self, ssh: SshServer, plan: Plan, tmp_path: Path
    ) -> None:
        for name in ("a b", "$(x)", "'", '"', "100%", "é", "\\", "a?b", "a#b", "~", "-x", "a\nb"):
            root = tmp_path / "far" / name
            async with open_runtime(ssh.url(quote(str(root)))) as runtime:
                await install(plan, runtime)
            assert read_tree(root) == planned_tree(plan)
        async with open_runtime(ssh.url(f"{tmp_path}/far/raw  space")) as runtime:
            await install(plan, runtime)
        assert read_tree(tmp_path / "far" / "raw  space") == planned_tree(plan)

    @every_strategy
    async def test_the_home_folder_is_that_of_the_account(
        self, ssh: SshServer, plan: Plan, strategy: Strategy
    ) -> None:
        for folder in (f"/~/{strategy}/my%20skills", f"/~/{strategy}/your skills"):
            async with open_runtime(ssh.url(folder)) as runtime:
                await install(plan, runtime, strategy=strategy, verify=True)
        for name in ("my skills", "your skills"):
            assert read_tree(ssh.home / strategy / name) == planned_tree(plan)

    async def test_an_absolute_destination_is_where_it_says(
        self, ssh: SshServer, plan: Plan, root: Path
    ) -> None:
        absolute = plan_skills([skill.folder for skill in plan.skills], str(root))
        async with open_runtime(ssh.url("")) as runtime:
            await install(absolute, runtime, verify=True)
        assert read_tree(root) == planned_tree(plan)

    async def test_2600_small_files_take_four_round_trips_at_most(
        self, ssh: SshServer, tmp_path: Path, root: Path
    ) -> None:
        """Case 8, vercel/eve#1601."""
        padding = "p" * 100
        files: dict[str, Content] = {
            f"{n % 13}/{padding}{n}": (b"%d" % n, True) for n in range(2_600)
        }
        plan = plan_skills([make_skill(tmp_path / "pdf", files)])
        async with open_runtime(ssh.url(str(root))) as runtime:
            report = await install(plan, runtime, verify=True)
        assert report.round_trips <= 4
        assert len(report.written) == 2_601
        assert read_tree(root) == planned_tree(plan)

    async def test_one_round_trip_for_the_usual_plan(
        self, ssh: SshServer, plan: Plan, root: Path
    ) -> None:
        async with open_runtime(ssh.url(str(root))) as runtime:
            assert (await install(plan, runtime)).round_trips == 1
            assert (await install(plan, runtime, existing="replace")).round_trips == 1
            assert (await install(plan, runtime, verify=True)).round_trips == 2
            assert (await install(plan, runtime, skip_unchanged=True)).round_trips == 1

    @pytest.mark.corpus
    @pytest.mark.parametrize("package", SKILLS)
    def test_the_command_line_installs_a_collection(
        self, ssh: SshServer, corpus: dict[str, Path], root: Path, package: str
    ) -> None:
        expected = {
            path: entry
            for path, entry in source_tree(find_skills(corpus[package])).items()
            if not path.endswith((".pyc", ".DS_Store"))
        }
        to = ["--to", ssh.url(quote(str(root)))]
        first = run("install", corpus[package], *to, "--verify")
        assert first.returncode == 0, first.stderr
        assert read_tree(root) == expected
        again = run("install", corpus[package], *to, "--skip-unchanged")
        assert f"{len(expected):,} unchanged" in again.stdout
        assert litter(root) == []
        assert clients(ssh) == []


class TestExisting:
    @pytest.fixture(autouse=True)
    def old(self, root: Path) -> None:
        write_tree(root, {"pdf/old/x": b"old", "pdf/a b": b"old", "other/y": b"kept"})

    @pytest.mark.parametrize("kind", ["port", "banner_port"])
    async def test_replace_leaves_the_plan_alone(
        self, ssh: SshServer, plan: Plan, root: Path, kind: str
    ) -> None:
        async with open_runtime(ssh.url(str(root), getattr(ssh, kind))) as runtime:
            report = await install(plan, runtime, existing="replace")
        assert report.in_place == ()
        assert read_tree(root) == planned_tree(plan) | {"other/y": (b"kept", False)}

    @every_port
    async def test_merge_keeps_the_other_files(
        self, ssh: SshServer, plan: Plan, root: Path, kind: str
    ) -> None:
        async with open_runtime(ssh.url(str(root), getattr(ssh, kind))) as runtime:
            await install(plan, runtime, existing="merge")
        kept: Tree = {"pdf/old/x": (b"old", False), "other/y": (b"kept", False)}
        assert read_tree(root) == planned_tree(plan) | kept

    @every_port
    async def test_error_writes_nothing(
        self, ssh: SshServer, plan: Plan, root: Path, kind: str
    ) -> None:
        before = read_tree(root)
        async with open_runtime(ssh.url(str(root), getattr(ssh, kind))) as runtime:
            with pytest.raises(DestinationError, match="pdf: it is there already"):
                await install(plan, runtime, existing="error")
        assert read_tree(root) == before

    async def test_without_tar_a_folder_is_not_replaced_and_it_says_why(
        self, ssh: SshServer, plan: Plan, root: Path
    ) -> None:
        before = read_tree(root)
        async with open_runtime(ssh.url(str(root), ssh.no_tar_port)) as runtime:
            with pytest.raises(InstallError, match="'tar'"):
                await install(plan, runtime, existing="replace")
        assert read_tree(root) == before
        assert litter(root) == []

    async def test_without_tar_error_installs_where_nothing_is_there(
        self, ssh: SshServer, plan: Plan, tmp_path: Path
    ) -> None:
        """Or it says that it cannot; it must not report what is not there."""
        elsewhere = tmp_path / "elsewhere"
        async with open_runtime(ssh.url(str(elsewhere), ssh.no_tar_port)) as runtime:
            try:
                await install(plan, runtime, existing="error")
            except InstallError as exc:
                assert "tar" in str(exc)  # noqa: PT017
                assert exc.report.written == ()  # noqa: PT017
                assert read_tree(elsewhere) in ({}, {".": (b"an empty folder", False)})
            else:
                assert read_tree(elsewhere) == planned_tree(plan)


class TestConnections:
    async def test_one_carries_everything(self, ssh: SshServer, plan: Plan, root: Path) -> None:
        before = ssh.logins
        async with open_runtime(ssh.url(str(root))) as runtime:
            for strategy in STRATEGIES:
                await install(plan, runtime, strategy=strategy, verify=True)
            await install(plan, runtime, existing="replace")
            async with trio.open_nursery() as nursery:
                for number in range(40):
                    nursery.start_soon(runtime.write, f"loose/{number}", b"1")
                    nursery.start_soon(runtime.run, ["true"], {})
        assert ssh.logins == before + 1
        assert len(read_tree(root / "loose")) == 40

    async def test_300_files_one_by_one_fail_in_no_case(
        self, ssh: SshServer, tmp_path: Path, root: Path
    ) -> None:
        """Case 7, ronf/asyncssh#244: sshd refuses more than ten sessions."""
        plan = plan_skills([make_skill(tmp_path / "pdf", {f"{n}": b"%d" % n for n in range(299)})])
        async with open_runtime(ssh.url(str(root))) as runtime:
            report = await install(plan, runtime, strategy="concurrent")
        assert len(report.written) == 300
        assert read_tree(root) == planned_tree(plan)

    async def test_installs_that_share_one_share_its_sessions(
        self, ssh: SshServer, root: Path
    ) -> None:
        plans = [
            plan_uploads(Upload.of(f"{n}/{m}", b"%d" % m) for m in range(40)) for n in range(3)
        ]
        async with open_runtime(ssh.url(str(root))) as runtime, trio.open_nursery() as nursery:
            for plan in plans:

                @nursery.start_soon
                async def put(plan: Plan = plan) -> None:
                    await install(plan, runtime, strategy="concurrent")

        assert len(read_tree(root)) == 120


class TestRunning(RunningContract, CancelledRunContract):
    @pytest.fixture(params=["port", "banner_port"])
    async def runtime(
        self, ssh: SshServer, root: Path, request: pytest.FixtureRequest
    ) -> AsyncIterator[Runtime]:
        async with open_runtime(ssh.url(str(root), getattr(ssh, request.param))) as runtime:
            yield runtime

    async def test_it_runs_in_the_folder(self, runtime: Runtime, root: Path) -> None:
        assert (await runtime.run(["pwd"], {})).stdout == f"{root}\n".encode()

    async def test_a_cancelled_command_leaves_the_connection_and_no_client(
        self, ssh: SshServer, runtime: Runtime
    ) -> None:
        before = clients(ssh)
        await self.test_cancelled_it_leaves_no_process(runtime)
        assert clients(ssh) == before
        assert (await runtime.run(["echo", "still there"], {})).stdout == b"still there\n"


class TestCancelling:
    @pytest.mark.parametrize("existing", ["merge", "replace"])
    async def test_a_packed_write_leaves_nothing(
        self, ssh: SshServer, root: Path, existing: Existing
    ) -> None:
        write_tree(root, {"pdf/old": b"kept"})
        noise = random.Random(1).randbytes(5_000_000)
        uploads = [Upload.of(f"pdf/{n:02}", noise) for n in range(20)]
        plan = Plan(tuple(uploads), folders=("pdf",))
        async with open_runtime(ssh.url(str(root))) as runtime:
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def put() -> None:
                    await install(plan, runtime, existing=existing)

                with trio.fail_after(10):
                    while not any("new" in path.parts for path in root.rglob("0*")):
                        await trio.lowlevel.checkpoint()
                began = trio.current_time()
                nursery.cancel_scope.cancel()
            assert trio.current_time() - began < 1
            assert read_tree(root) == {"pdf/old": (b"kept", False)}
            assert processes(str(root)) == []
            assert (await runtime.run(["echo", "still there"], {})).stdout == b"still there\n"

    async def test_a_single_write_leaves_nothing(self, ssh: SshServer, root: Path) -> None:
        write_tree(root, {"big": b"kept"})
        noise = random.Random(1).randbytes(10_000_000) * 10
        async with open_runtime(ssh.url(str(root))) as runtime:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(runtime.write, "big", noise)
                with trio.fail_after(10):
                    while not any(path.is_file() for path in root.glob(".trio-skills*/*")):
                        await trio.lowlevel.checkpoint()
                began = trio.current_time()
                nursery.cancel_scope.cancel()
            assert trio.current_time() - began < 1
            assert read_tree(root) == {"big": (b"kept", False)}
            assert processes(str(root)) == []

    async def test_many_single_files_leave_nothing(
        self, ssh: SshServer, tmp_path: Path, root: Path
    ) -> None:
        files = {f"{n}": b"%d" % n * 10_000 for n in range(200)}
        plan = plan_skills([make_skill(tmp_path / "pdf", files)])
        async with open_runtime(ssh.url(str(root))) as runtime:
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def put() -> None:
                    await install(plan, runtime, strategy="concurrent")

                with trio.fail_after(10):
                    while not (root / "pdf").exists() or len(os.listdir(root / "pdf")) < 20:
                        await trio.lowlevel.checkpoint()
                began = trio.current_time()
                nursery.cancel_scope.cancel()
            assert trio.current_time() - began < 1
            assert read_tree(root).items() <= planned_tree(plan).items()
            assert processes(str(root)) == []


async def test_open_ssh_takes_a_program_and_a_port(
    ssh: SshServer, plan: Plan, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"].replace(f"{ssh.path}:", ""))
    host = f"{ssh.user}@127.0.0.1"
    async with open_ssh(host, str(root), port=ssh.port, command=ssh.command) as runtime:
        await install(plan, runtime, verify=True)
    assert read_tree(root) == planned_tree(plan)
