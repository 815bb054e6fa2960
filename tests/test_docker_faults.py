"""What goes wrong with containers on the way: nothing is called written that is not there."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from tests.containers import DEST, gone, litter, noise, processes, read_container, running, wired
from tests.moments import Moments
from tests.services import Engine
from tests.trees import Tree, make_skill, planned_tree
from tests.ways import every_image, with_shell, with_tar
from trio_skills import (
    Existing,
    InstallError,
    Limits,
    Plan,
    Report,
    Strategy,
    install,
    plan_skills,
)
from trio_skills.runtimes.docker import open_docker

in_thread = trio.to_thread.run_sync

pytestmark = pytest.mark.docker


@pytest.fixture
def old(tmp_path: Path) -> Plan:
    """An earlier version of the skill `pdf`."""
    return plan_skills([make_skill(tmp_path / "old" / "pdf", {"old": b"1", "bin/go": b"old"})])


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """The skill `pdf` of 4 MB."""
    files = {f"f{n:02}": noise(100_000 + n) for n in range(40)}
    return plan_skills([make_skill(tmp_path / "new" / "pdf", {**files, "bin/go": (b"new", True)})])


@pytest.fixture
def large(tmp_path: Path) -> Plan:
    """The skill `pdf` of 48 MB, in two files."""
    files = {"f0": noise(24_000_000), "f1": noise(24_000_001)}
    return plan_skills([make_skill(tmp_path / "large" / "pdf", files)])


@pytest.fixture
def container(docker: Engine) -> Iterator[str]:
    with docker.container() as name:
        yield name


async def report_of(install: Awaitable[Report]) -> Report:
    try:
        return await install
    except InstallError as error:
        return error.report


def agrees(report: Report, plan: Plan, tree: Tree) -> bool:
    """Whether every file that is called written is there, whole."""
    planned = planned_tree(plan)
    written = {outcome.target for outcome in report.written} - set(report.not_executable)
    return all(tree.get(target) == planned[target] for target in written)


class TestCutConnections:
    """Case 13, kubernetes/kubernetes#60140: copy ends early, the tail is missing."""

    @pytest.mark.parametrize("part", [0, 0.5, 0.99])
    @with_tar
    async def test_a_cut_in_the_payload_fails_every_file_and_the_old_folder_stays(
        self, docker: Engine, tmp_path: Path, old: Plan, plan: Plan, image: str, part: float
    ) -> None:
        with docker.container(image) as name:
            async with wired(docker, name, tmp_path) as (runtime, wire):
                await install(old, runtime)
                wire.cut_after = wire.sent + 1 + int(part * plan.total_bytes)
                with pytest.raises(InstallError) as caught:
                    await install(plan, runtime, existing="replace")
            assert len(caught.value.report.failed) == len(plan.uploads)
            await gone(docker, name)
            assert read_container(docker, name, DEST) == planned_tree(old)

    async def test_a_cut_after_the_last_byte_is_a_failure_or_a_success_that_is_there(
        self, docker: Engine, tmp_path: Path, old: Plan, plan: Plan, container: str
    ) -> None:
        """Every place around the end of what the client sends, where nobody can know."""
        async with wired(docker, container, tmp_path) as (runtime, wire):
            await install(old, runtime)
            before = wire.sent
            await install(plan, runtime, existing="replace")
            usual = wire.sent - before
        endings = [*range(3), 50, 100, 200, 300, 400, 511, 512, 513, 1024, 2048, 10240, 11000]
        outcomes = set()
        for missing in endings:
            # Never a folder, as that could be gone: what is asserted is this very run's.
            dest = f"/root/{missing}"
            path = tmp_path / str(missing)
            path.mkdir()
            async with wired(docker, container, path, dest) as (runtime, wire):
                await install(old, runtime)
                wire.cut_after = wire.sent + usual - missing
                installing = install(plan, runtime, existing="replace", retries=0)
                report = await report_of(installing)
            await gone(docker, container)
            tree = read_container(docker, container, dest)
            assert tree in (planned_tree(old), planned_tree(plan)), missing
            if report.ok:
                assert tree == planned_tree(plan), missing
            else:
                assert len(report.failed) == len(plan.uploads), missing
            outcomes.add(report.ok)
        assert False in outcomes

    @pytest.mark.parametrize("part", [0.2, 0.7])
    async def test_exactly_the_files_of_the_transfer_that_was_cut_fail(
        self, docker: Engine, tmp_path: Path, container: str, part: float
    ) -> None:
        first = make_skill(tmp_path / "a", {"data": noise(1_000_000)})
        second = make_skill(tmp_path / "b", {"data": noise(1_000_001), "more": b"1"})
        plan = plan_skills([first, second])
        one_by_one = Limits(max_in_flight=1, max_bytes=1_500_000)
        async with wired(docker, container, tmp_path) as (runtime, wire):
            wire.cut_after = wire.sent + 1_100_000 + int(part * 1_000_000)
            report = await report_of(install(plan, runtime, existing="replace", limits=one_by_one))
        assert [outcome.target for outcome in report.written] == ["a/SKILL.md", "a/data"]
        assert [outcome.target for outcome in report.failed] == ["b/SKILL.md", "b/data", "b/more"]
        await gone(docker, container)
        tree = {path: entry for path, entry in planned_tree(plan).items() if path.startswith("a/")}
        assert read_container(docker, container, DEST) == tree

    @pytest.mark.parametrize("strategy", ["sequential", "concurrent", "packed"])
    @pytest.mark.parametrize("existing", ["merge", "replace"])
    @every_image
    async def test_after_a_cut_that_passes_what_is_called_written_is_there(
        self,
        docker: Engine,
        tmp_path: Path,
        plan: Plan,
        image: str,
        existing: Existing,
        strategy: Strategy,
    ) -> None:
        if existing == "replace" and (strategy != "packed" or image == "no-shell"):
            existing = "merge"  # only whole folders are replaced, and only by a shell
        with docker.container(image) as name:
            async with wired(docker, name, tmp_path) as (runtime, wire):
                wire.stays_cut = False
                wire.cut_after = wire.sent + 2_000_000
                report = await report_of(
                    install(plan, runtime, existing=existing, strategy=strategy)
                )
                assert wire.is_cut
                # The sandbox is still there, and so is the way to it.
                again = await report_of(install(plan, runtime, existing=existing))
            await gone(docker, name)
            assert again.ok
            tree = read_container(docker, name, DEST)
            assert agrees(report, plan, tree)
            assert tree == planned_tree(plan)

    @with_shell
    async def test_a_single_write_that_was_cut_leaves_the_old_file(
        self, docker: Engine, tmp_path: Path, image: str
    ) -> None:
        with docker.container(image) as name:
            async with wired(docker, name, tmp_path) as (runtime, wire):
                await runtime.write("file", b"old")
                wire.cut_after = wire.sent + 500_000
                with pytest.raises(Exception, match=r"(?s)."):  # any, with a text
                    await runtime.write("file", noise(1_000_000))
            await gone(docker, name)
            assert read_container(docker, name, DEST) == {"file": (b"old", False)}

    async def test_a_write_that_was_cut_where_there_is_no_shell_can_be_repeated(
        self, docker: Engine, tmp_path: Path
    ) -> None:
        """The engine renames nothing, so that it may be half there; but nobody says it is."""
        with docker.container("no-shell") as name:
            async with wired(docker, name, tmp_path) as (runtime, wire):
                wire.stays_cut = False
                wire.cut_after = wire.sent + 500_000
                with pytest.raises(Exception, match=r"(?s)."):  # any, with a text
                    await runtime.write("file", noise(1_000_000))
                await runtime.write("file", noise(1_000_000))
            assert read_container(docker, name, DEST) == {"file": (noise(1_000_000), False)}

    @every_image
    async def test_what_is_cut_once_is_sent_again(
        self, docker: Engine, tmp_path: Path, plan: Plan, image: str
    ) -> None:
        with docker.container(image) as name:
            async with wired(docker, name, tmp_path) as (runtime, wire):
                wire.stays_cut = False
                wire.cut_after = wire.sent + 2_000_000
                report = await install(plan, runtime)
                assert wire.is_cut
            assert report.ok
            assert report.retries == 1
            await gone(docker, name)
            assert read_container(docker, name, DEST) == planned_tree(plan)


class TestCancellation:
    @staticmethod
    async def cancelled(
        call: Callable[[], Awaitable[object]], is_under_way: Callable[[], Awaitable[object]]
    ) -> float:
        """Cancel a call when it is under way. Returns how many seconds it took to return."""
        asked = math.inf
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def cancel() -> None:
                    nonlocal asked
                    await is_under_way()
                    asked = trio.current_time()
                    scope.cancel()

                await call()
                nursery.cancel_scope.cancel()
        assert scope.cancelled_caught, "it ended before it was cancelled"
        return trio.current_time() - asked

    @pytest.mark.parametrize("existing", ["merge", "replace"])
    @with_shell
    async def test_of_a_packed_transfer_leaves_nothing(
        self,
        docker: Engine,
        tmp_path: Path,
        old: Plan,
        large: Plan,
        image: str,
        existing: Existing,
    ) -> None:
        """Case 15, docker/cli#3447: interrupting a copy wedges the container."""
        with docker.container(image) as name:
            async with wired(docker, name, tmp_path) as (runtime, wire):
                await install(old, runtime)
                wire.slow_after = wire.sent + 10_000_000
                seconds = await self.cancelled(
                    lambda: install(large, runtime, existing=existing), wire.slowed.wait
                )
                assert await in_thread(processes, docker, name) == []
                assert await in_thread(read_container, docker, name, DEST) == planned_tree(old)
                assert seconds < 1
                wire.slow_after = math.inf
                await install(old, runtime)  # the sandbox answers at once
            assert litter(docker, name) == []

    @with_shell
    async def test_of_a_single_write_leaves_the_old_file(
        self, docker: Engine, tmp_path: Path, image: str
    ) -> None:
        with docker.container(image) as name:
            async with wired(docker, name, tmp_path) as (runtime, wire):
                await runtime.write("file", b"old")
                wire.slow_after = wire.sent + 5_000_000
                seconds = await self.cancelled(
                    lambda: runtime.write("file", noise(20_000_000)), wire.slowed.wait
                )
                assert await in_thread(processes, docker, name) == []
                there = await in_thread(read_container, docker, name, DEST)
                assert there == {"file": (b"old", False)}
                assert seconds < 1

    async def test_where_there_is_no_shell_leaves_a_container_that_answers(
        self, docker: Engine, tmp_path: Path, old: Plan, large: Plan
    ) -> None:
        with docker.container("no-shell") as name:
            async with wired(docker, name, tmp_path) as (runtime, wire):
                await install(old, runtime)
                wire.slow_after = wire.sent + 10_000_000
                seconds = await self.cancelled(lambda: install(large, runtime), wire.slowed.wait)
                assert seconds < 1
                wire.slow_after = math.inf
                with trio.fail_after(5):
                    await install(large, runtime)
            tree = read_container(docker, name, DEST)
            assert tree == planned_tree(old) | planned_tree(large)

    @with_tar
    async def test_of_a_command_ends_it_and_what_it_started(
        self, docker: Engine, image: str
    ) -> None:
        script = "trap '' TERM HUP INT; sleep 1001 & sleep 1000; sleep 1002"
        with docker.container(image) as name:

            async def both_run() -> None:
                while len([p for p in processes(docker, name) if p.startswith("sleep 100")]) < 2:
                    await trio.sleep(0.01)

            async with open_docker(name, host=docker.host) as runtime:
                seconds = await self.cancelled(
                    lambda: runtime.run(["sh", "-c", script], {}), both_run
                )
                assert processes(docker, name) == []
                assert seconds < 1
                seconds = await self.cancelled(
                    lambda: runtime.run(["sleep", "1000"], {}),
                    lambda: running(docker, name, "sleep 1000"),
                )
                assert processes(docker, name) == []
                assert seconds < 1
                assert (await runtime.run(["echo", "there"], {})).stdout == b"there\n"

    async def test_at_any_moment_leaves_the_old_folder_or_the_new(
        self, docker: Engine, old: Plan, plan: Plan, container: str
    ) -> None:
        async with open_docker(container, DEST, host=docker.host) as runtime:
            await install(plan, runtime, existing="replace")
            began = trio.current_time()
            await install(old, runtime, existing="replace")
            moments = Moments(trio.current_time() - began, runs=25, strikes=6)
            now = old
            for step, moment in enumerate(moments):
                wanted = plan if now is old else old
                with trio.move_on_after(moment) as scope:
                    await install(wanted, runtime, existing="replace")
                moments.ended(struck=scope.cancelled_caught)
                tree = read_container(docker, container, DEST)
                assert tree in (planned_tree(now), planned_tree(wanted)), step
                assert processes(docker, container) == [], step
                now = wanted if tree == planned_tree(wanted) else now
        assert litter(docker, container) == []

    async def test_of_one_install_disturbs_no_other(
        self, docker: Engine, plan: Plan, large: Plan, container: str
    ) -> None:
        async with (
            open_docker(container, DEST, host=docker.host) as runtime,
            trio.open_nursery() as nursery,
        ):
            for _ in range(4):
                nursery.start_soon(install, plan, runtime)
            with trio.move_on_after(0.05):
                await install(large, runtime, existing="replace")
        assert read_container(docker, container, DEST) == planned_tree(plan)
        assert litter(docker, container) == []

    async def test_of_opening_leaves_nothing(self, docker: Engine, container: str) -> None:
        for step in range(20):
            with trio.move_on_after(step * 0.003):
                async with open_docker(container, DEST, host=docker.host):
                    pass
            assert processes(docker, container) == []


class TestContainersThatEnd:
    # The engine alone goes on unpacking into a container that ended, and what it has put there is.
    @pytest.mark.parametrize("image", ["busybox", "debian"])
    async def test_one_that_is_killed_in_a_transfer_fails_every_file(
        self, docker: Engine, tmp_path: Path, large: Plan, image: str
    ) -> None:
        with docker.container(image) as name:
            async with wired(docker, name, tmp_path) as (runtime, wire):
                wire.slow_after = wire.sent + 10_000_000
                async with trio.open_nursery() as nursery:

                    @nursery.start_soon
                    async def kill() -> None:
                        await wire.slowed.wait()
                        # In a thread: the engine ends it when it has taken what is on its way.
                        await trio.to_thread.run_sync(docker.docker, "kill", name)

                    with trio.fail_after(20), pytest.raises(InstallError) as caught:
                        await install(large, runtime)
            assert caught.value.report.written == ()
            reasons = [str(error) for error in caught.value.exceptions]
            assert all(reason.split(": ", 1)[1] for reason in reasons)

    @pytest.mark.parametrize("image", ["busybox", "debian"])
    async def test_one_that_is_paused_in_a_transfer_can_be_given_up(
        self, docker: Engine, tmp_path: Path, large: Plan, image: str
    ) -> None:
        """What is frozen cannot be ended; it must not keep the caller either."""
        with docker.container(image) as name:
            try:
                async with wired(docker, name, tmp_path) as (runtime, wire):
                    wire.slow_after = wire.sent + 10_000_000
                    with trio.CancelScope() as scope:
                        async with trio.open_nursery() as nursery:

                            @nursery.start_soon
                            async def pause() -> None:
                                await wire.slowed.wait()
                                await trio.to_thread.run_sync(docker.docker, "pause", name)
                                scope.deadline = trio.current_time()

                            await install(large, runtime)
                    assert trio.current_time() - scope.deadline < 2
            finally:
                docker.docker("unpause", name)
            await gone(docker, name)
            assert read_container(docker, name, DEST) == {}


class TestFullDisks:
    @pytest.fixture
    def small(self, docker: Engine) -> Iterator[str]:
        with docker.container("busybox", "--tmpfs", "/small:size=1m") as name:
            yield name

    async def test_replace_keeps_the_old_folder(
        self, docker: Engine, old: Plan, plan: Plan, small: str
    ) -> None:
        async with open_docker(small, "/small", host=docker.host) as runtime:
            await install(old, runtime)
            with pytest.raises(InstallError, match=r"(?i)no space left") as caught:
                await install(plan, runtime, existing="replace")
        assert len(caught.value.report.failed) == len(plan.uploads)
        assert read_container(docker, small, "/small") == planned_tree(old)

    @pytest.mark.parametrize("strategy", ["sequential", "batched", "concurrent", "packed"])
    async def test_merge_says_which_files_had_no_room(
        self, docker: Engine, tmp_path: Path, small: str, strategy: Strategy
    ) -> None:
        files = {f"f{n}": noise(200_000 + n) for n in range(8)}
        plan = plan_skills([make_skill(tmp_path / "pdf", {**files, "z": b"small"})])
        async with open_docker(small, "/small", host=docker.host) as runtime:
            with pytest.raises(InstallError, match=r"(?i)no space left") as caught:
                await install(plan, runtime, strategy=strategy)
        report = caught.value.report
        assert report.written
        assert report.failed
        tree = read_container(docker, small, "/small")
        assert agrees(report, plan, tree)
        assert set(tree) == {outcome.target for outcome in report.written}
