"""SIGKILL at any moment, of either side, 50 times: the old folder or the new one, never lost."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

from tests.containers import DEST, Inside, gone, litter, noise, processes, read_container
from tests.moments import Moments
from tests.programs import PROGRAM
from tests.services import Engine
from tests.trees import Tree, make_skill, planned_tree
from trio_skills import InstallError, Plan, install, plan_skills
from trio_skills.runtimes.docker import open_docker

pytestmark = pytest.mark.docker
SKILLS = 6


@pytest.fixture
def versions(tmp_path: Path) -> list[Plan]:
    """Two versions of six skills, of 6 MB together; no file of one is in the other."""
    return [
        plan_skills(
            make_skill(
                tmp_path / version / f"s{n}",
                {f"{version}/{i}": noise(100_000 + i) for i in range(10)},
            )
            for n in range(SKILLS)
        )
        for version in ("one", "two")
    ]


@pytest.fixture
def other(tmp_path: Path) -> Plan:
    return plan_skills([make_skill(tmp_path / "other")])


def of_folder(tree: Tree, number: int) -> Tree:
    return {path: entry for path, entry in tree.items() if path.startswith(f"s{number}/")}


@attrs.define
class Sandbox:
    """A container in which one version of the skills is."""

    docker: Engine
    name: str
    versions: list[Plan]
    other: Plan
    """A skill that is no part of them."""

    async def put(self, plan: Plan) -> bool:
        """Replace what is there. Returns whether that was reported a success."""
        async with open_docker(self.name, DEST, host=self.docker.host) as runtime:
            try:
                await install(plan, runtime, existing="replace", retries=0)
            except InstallError:
                return False
        return True

    def read(self) -> Tree:
        return read_container(self.docker, self.name, DEST)

    async def measure(self) -> float:
        """Return what it takes to replace what is there."""
        assert await self.put(self.versions[0])
        began = trio.current_time()
        assert await self.put(self.versions[0])
        return trio.current_time() - began

    async def check_that_nothing_is_lost(self) -> None:
        """Each folder is of one version as soon as anything was installed beside it."""
        await gone(self.docker, self.name)
        before = self.read()
        for number in range(SKILLS):
            # Moved aside, or whole: also before anybody has put it back.
            assert of_folder(before, number) in [{}, *self.whole(number)]
        await self.put(self.other)
        tree = self.read()
        for number in range(SKILLS):
            assert of_folder(tree, number) in self.whole(number)
        assert {path.split("/")[0] for path in tree} == {
            "other",
            *(f"s{number}" for number in range(SKILLS)),
        }
        assert litter(self.docker, self.name) == []

    def whole(self, number: int) -> list[Tree]:
        return [of_folder(planned_tree(version), number) for version in self.versions]


@pytest.fixture(params=["busybox", "debian"])
def sandbox(
    docker: Engine, versions: list[Plan], other: Plan, request: pytest.FixtureRequest
) -> Iterator[Sandbox]:
    with docker.container(request.param) as name:
        yield Sandbox(docker, name, versions, other)


async def kill_after(seconds: float, inside: Inside) -> None:
    await trio.sleep(seconds)
    inside.kill()


async def test_killed_on_the_far_side(sandbox: Sandbox) -> None:
    """The shell and the `tar` in the container: nobody there can clean up."""
    inside = Inside.of(sandbox.docker, sandbox.name)
    moments = Moments(await sandbox.measure(), runs=15, strikes=3, after=0.1)
    for step, moment in enumerate(moments):
        wanted = sandbox.versions[(step + 1) % 2]
        was_whole = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_after, moment, inside)
            was_whole = await sandbox.put(wanted)
            moments.ended(struck=not was_whole)
        if was_whole:
            tree = sandbox.read()
            assert planned_tree(wanted).items() <= tree.items()
        await sandbox.check_that_nothing_is_lost()
        assert await sandbox.put(wanted)
        assert planned_tree(wanted).items() <= sandbox.read().items()


async def test_killed_clients(sandbox: Sandbox) -> None:
    """The whole program, in the middle of a transfer: the far side has to notice."""
    inside = Inside.of(sandbox.docker, sandbox.name)
    moments = Moments(await sandbox.measure(), runs=10, strikes=5, after=-0.2)
    for step, moment in enumerate(moments):
        source = sandbox.versions[(step + 1) % 2].skills[0].folder.parent
        to = f"docker://{sandbox.name}{DEST}"
        command = [*PROGRAM, "install", str(source), "--to", to, "--existing", "replace"]
        with subprocess.Popen(
            command,
            env=sandbox.docker.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as client:
            while client.poll() is None and not inside.are_there():
                await trio.sleep(0.001)
            moments.began()
            with trio.move_on_after(moment):
                while client.poll() is None:
                    await trio.sleep(0.001)
            moments.ended(struck=client.poll() is None)
            client.kill()
        await sandbox.check_that_nothing_is_lost()
        assert processes(sandbox.docker, sandbox.name) == []
    wanted = sandbox.versions[0]
    assert await sandbox.put(wanted)
    assert planned_tree(wanted).items() <= sandbox.read().items()
