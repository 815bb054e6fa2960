"""Containers of podman, where it runs: by its own program, which a URL names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.containers import noise
from tests.far_sides import LITTER, RunningContract, a_long_time
from tests.programs import run
from tests.services import Podman
from tests.trees import Tree, make_skill, planned_tree, read_tree, two_skills
from tests.ways import every_strategy
from trio_skills import (
    ExecRuntime,
    Existing,
    InstallError,
    Plan,
    Runtime,
    RuntimeOpenError,
    Strategy,
    Upload,
    find_skills,
    install,
    open_runtime,
    plan_skills,
)

pytestmark = pytest.mark.podman

DEST = "/root/.agents/skills"


@pytest.fixture(autouse=True)
def first_in_path(podman: Podman, monkeypatch: pytest.MonkeyPatch) -> None:
    """`podman` is the one with storage of its own."""
    monkeypatch.setenv("PATH", f"{podman.path}:{os.environ['PATH']}")


@pytest.fixture(scope="module")
def container(podman: Podman) -> Iterator[str]:
    with podman.container("busybox") as name:
        yield name


@pytest.fixture
def empty(podman: Podman, container: str) -> str:
    """Return the container; nothing is installed in it."""
    podman.run(container, "rm", "-rf", "/root/.agents", "/home/agent/skills")
    return container


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return plan_skills(two_skills(tmp_path / "source"))


def read(podman: Podman, container: str, folder: str, to: Path) -> Tree:
    """Copy a folder out of the container and return what is in it."""
    podman.podman("cp", f"{container}:{folder}/.", str(to))
    return read_tree(to)


def processes(podman: Podman, container: str) -> list[str]:
    """Return the commands that run in a container beside its first process."""
    rows = podman.podman("top", container, "state", "args").stdout.decode().splitlines()[1:]
    found = [row.strip().partition(" ") for row in rows]
    # What is in brackets has no memory any more: it has ended, but for its exit code.
    commands = [args.strip() for state, _, args in found if state not in "ZX"]
    commands = [args for args in commands if not args.startswith("[")]
    return [args for args in commands if args != "sleep 1000000"]


def litter(podman: Podman, container: str) -> bytes:
    return podman.run(container, "find", "/root", "/home", "-name", f"{LITTER}*")


class TestInstalling:
    @every_strategy
    async def test_puts_the_plan_there_and_nothing_else(
        self, podman: Podman, plan: Plan, empty: str, tmp_path: Path, strategy: Strategy
    ) -> None:
        async with open_runtime(f"podman://{empty}{DEST}") as runtime:
            report = await install(plan, runtime, strategy=strategy, verify=True)
            again = await install(plan, runtime, skip_unchanged=True)
        assert len(report.written) == len(again.unchanged) == len(plan.uploads)
        assert again.round_trips == 1
        assert read(podman, empty, DEST, tmp_path / "read") == planned_tree(plan)
        assert litter(podman, empty) == b""
        assert processes(podman, empty) == []

    @pytest.mark.parametrize("existing", ["merge", "replace"])
    async def test_a_folder_that_is_there_is_merged_or_replaced(
        self, podman: Podman, plan: Plan, empty: str, tmp_path: Path, existing: Existing
    ) -> None:
        old = plan_skills([make_skill(tmp_path / "old" / "pdf", {"old": b"1", "a b": b"old"})])
        async with open_runtime(f"podman://{empty}{DEST}") as runtime:
            await install(old, runtime)
            report = await install(plan, runtime, existing=existing)
        assert report.round_trips == 1
        assert report.in_place == ()
        kept: Tree = {"pdf/old": (b"1", False)} if existing == "merge" else {}
        assert read(podman, empty, DEST, tmp_path / "read") == planned_tree(plan) | kept
        assert litter(podman, empty) == b""

    @every_strategy
    async def test_files_belong_to_the_user_that_was_chosen(
        self, podman: Podman, plan: Plan, empty: str, tmp_path: Path, strategy: Strategy
    ) -> None:
        async with open_runtime(f"podman://{empty}/home/agent/skills?user=agent") as runtime:
            await install(plan, runtime, strategy=strategy)
        owned = podman.run(empty, "find", "/home/agent/skills", "!", "-user", "agent")
        assert owned == b""
        there = read(podman, empty, "/home/agent/skills", tmp_path / "read")
        assert there == planned_tree(plan)

    async def test_by_gnu_programs_it_is_the_same(
        self, podman: Podman, plan: Plan, tmp_path: Path
    ) -> None:
        with podman.container("debian") as name:
            async with open_runtime(f"podman://{name}{DEST}") as runtime:
                await install(plan, runtime, verify=True)
                await install(plan, runtime, existing="replace")
            assert read(podman, name, DEST, tmp_path / "read") == planned_tree(plan)
            assert processes(podman, name) == []

    async def test_where_the_user_may_not_write_every_file_fails(
        self, podman: Podman, plan: Plan, empty: str
    ) -> None:
        async with open_runtime(f"podman://{empty}{DEST}?user=agent") as runtime:
            with pytest.raises(InstallError, match=r"(?i)permission denied") as caught:
                await install(plan, runtime)
        assert caught.value.report.written == ()

    @pytest.mark.parametrize("existing", ["merge", "replace"])
    async def test_a_skill_of_the_image_is_treated_as_any_other(
        self, podman: Podman, tmp_path: Path, existing: Existing
    ) -> None:
        """An overlay file system cannot rename it."""
        plan = plan_skills([make_skill(tmp_path / "baked", {"new": (b"new", True)})])
        with podman.container("with-skill") as name:
            async with open_runtime(f"podman://{name}{DEST}") as runtime:
                await install(plan, runtime, existing=existing)
            kept: Tree = {"baked/only-old.txt": (b"old\n", False)} if existing == "merge" else {}
            assert read(podman, name, DEST, tmp_path / "read") == planned_tree(plan) | kept
            assert litter(podman, name) == b""

    async def test_an_image_without_tar_takes_single_files(
        self, podman: Podman, plan: Plan, tmp_path: Path
    ) -> None:
        with podman.container("no-tar") as name:
            async with open_runtime(f"podman://{name}{DEST}") as runtime:
                await install(plan, runtime, verify=True)
                with pytest.raises(InstallError, match="'tar'"):
                    await install(plan, runtime, existing="replace")
            assert read(podman, name, DEST, tmp_path / "read") == planned_tree(plan)

    @pytest.mark.corpus
    def test_the_command_line_installs_a_collection(
        self, podman: Podman, corpus: dict[str, Path], empty: str, tmp_path: Path
    ) -> None:
        expected = planned_tree(plan_skills(find_skills(corpus["claude-data-skills"])))
        to = ["--to", f"podman://{empty}{DEST}"]
        first = run("install", corpus["claude-data-skills"], *to, "--verify")
        assert first.returncode == 0, first.stderr
        assert read(podman, empty, DEST, tmp_path / "read") == expected


class TestOpening:
    async def test_a_container_that_is_missing(self) -> None:
        with trio.fail_after(10), pytest.raises(RuntimeOpenError, match="no such container"):
            async with open_runtime("podman://no-such-container/x"):
                pytest.fail("it was opened")

    async def test_a_container_that_has_stopped(self, podman: Podman) -> None:
        with podman.container() as name:
            podman.podman("kill", name)
            podman.podman("wait", name)
            with trio.fail_after(10), pytest.raises(RuntimeOpenError, match="running"):
                async with open_runtime(f"podman://{name}/x"):
                    pytest.fail("it was opened")

    async def test_a_user_who_is_missing(self, container: str) -> None:
        with pytest.raises(RuntimeOpenError, match="nobody-here"):
            async with open_runtime(f"podman://{container}/x?user=nobody-here"):
                pytest.fail("it was opened")

    async def test_an_image_without_a_shell(self, podman: Podman) -> None:
        with (
            podman.container("no-shell") as name,
            pytest.raises(RuntimeOpenError, match=r"\bsh\b"),
        ):
            async with open_runtime(f"podman://{name}/x"):
                pytest.fail("it was opened")

    async def test_a_container_that_dies_is_a_failure(self, podman: Podman, plan: Plan) -> None:
        with podman.container() as name:
            async with open_runtime(f"podman://{name}/x") as runtime:
                podman.podman("kill", name)
                with trio.fail_after(20), pytest.raises(InstallError):
                    await install(plan, runtime)


class TestRunning(RunningContract):
    @pytest.fixture
    def runtime(self, container: str) -> ExecRuntime:
        """Reach it without the greeting that a URL begins with: there are many tests."""
        return ExecRuntime(("podman", "exec", "-i", container), "/tmp")

    async def test_cancelled_it_leaves_no_process(
        self, podman: Podman, container: str, runtime: Runtime
    ) -> None:
        long = a_long_time()
        async with trio.open_nursery() as nursery:
            script = 'sleep "$1" & sleep "$1"; true'
            nursery.start_soon(runtime.run, ["sh", "-c", script, "sh", long], {})
            with trio.fail_after(10):
                while processes(podman, container).count(f"sleep {long}") < 2:
                    await trio.sleep(0.01)
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began < 1
        assert processes(podman, container) == []

    async def test_a_cancelled_write_leaves_nothing(
        self, podman: Podman, empty: str, tmp_path: Path
    ) -> None:
        uploads = [Upload.of(f"pdf/{n:02}", noise(5_000_000)) for n in range(20)]
        plan = Plan(tuple(uploads), folders=("pdf",))
        async with open_runtime(f"podman://{empty}{DEST}") as runtime:
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def put() -> None:
                    await install(plan, runtime)

                with trio.fail_after(20):
                    while not litter(podman, empty):
                        await trio.sleep(0.01)
                began = trio.current_time()
                nursery.cancel_scope.cancel()
            assert trio.current_time() - began < 1
        assert processes(podman, empty) == []
        assert read(podman, empty, DEST, tmp_path / "read") == {}
