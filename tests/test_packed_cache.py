"""Installs that share a cache read and pack the files of a plan once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.trees import planned_tree, read_tree, two_skills
from trio_skills import (
    ArchiveCache,
    InstallError,
    Limits,
    Packing,
    Plan,
    RunResult,
    Runtime,
    install,
    open_runtime,
    plan_skills,
)
from trio_skills._far_side import parcels
from trio_skills._upload import Packed
from trio_skills.testing import PackingMemoryRuntime

KINDS = ["local", "exec", "packing"]


class Two:
    """A sandbox that has nothing but the two methods that every one has."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def write(self, target: str, data: bytes) -> None:
        await self._runtime.write(target, data)

    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        return await self._runtime.run(argv, env)


@asynccontextmanager
async def sandbox(kind: str, root: Path) -> AsyncIterator[Any]:  # Any: a Runtime that packs
    root.mkdir(parents=True)
    if kind == "local":
        async with open_runtime(f"local:{root}") as runtime:
            yield runtime
    else:
        # Commands run where the words say: in the root.
        async with open_runtime(f"exec:env --chdir={root}") as runtime:
            yield runtime if kind == "exec" else Packing(Two(runtime))


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return plan_skills(two_skills(tmp_path / "skills"))


async def put(plan: Plan, kind: str, root: Path, archives: ArchiveCache, **options: Any) -> None:
    async with sandbox(kind, root) as runtime:
        await install(plan, runtime, archives=archives, **options)
    assert read_tree(root) == planned_tree(plan)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_sandbox_holds_the_plan_and_one_build_was_made(
    plan: Plan, tmp_path: Path, kind: str
) -> None:
    archives = ArchiveCache()
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(put, plan, kind, tmp_path / f"s{number}", archives)
    await put(plan, kind, tmp_path / "later", archives, existing="replace")
    told = archives.statistics()
    assert (told.builds, told.hits + told.misses) == (1, 21)
    assert plan.total_bytes < told.bytes_held < plan.total_bytes + 2_500 * len(plan.uploads)


async def test_sandboxes_in_memory_share_it_too(plan: Plan) -> None:
    archives = ArchiveCache()
    for _ in range(5):
        runtime = PackingMemoryRuntime()
        await install(plan, runtime, archives=archives)
        files = {path: (file.data, file.executable) for path, file in runtime.files.items()}
        assert files == planned_tree(plan)
    assert archives.statistics().builds == 1


OPENS = """
import os, sys, trio
from collections import Counter
from pathlib import Path
from tests.test_packed_cache import put
from trio_skills import ArchiveCache, plan_skills

skills, kind, root = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
plan = plan_skills(sorted(skills.iterdir()))
opened = Counter()
is_installing = [True]

def hook(event, args):
    if event == "open" and is_installing and os.fspath(skills) in str(args[0]):
        opened[args[0]] += 1

async def quietly(number, archives):
    from trio_skills import install
    from tests.test_packed_cache import sandbox
    async with sandbox(kind, root / str(number)) as runtime:
        await install(plan, runtime, archives=archives)

async def main(archives):
    async with trio.open_nursery() as nursery:
        for number in range(15):
            nursery.start_soon(quietly, number, archives)
    for number in range(15, 20):
        await quietly(number, archives)

sys.addaudithook(hook)
trio.run(main, ArchiveCache())
print(len(opened), max(opened.values()), len(plan.uploads))
opened.clear()
root = root / "without"
trio.run(main, None)
print(len(opened), max(opened.values()), len(plan.uploads))
"""


@pytest.mark.parametrize("kind", KINDS)
def test_each_file_is_opened_once_for_all(plan: Plan, tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-c", OPENS, str(tmp_path / "skills"), kind, str(tmp_path / "to")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    count = len(plan.uploads)
    assert printed.split("\n")[:2] == [f"{count} 1 {count}", f"{count} 20 {count}"]


async def test_what_is_sent_is_made_once(plan: Plan) -> None:
    archives = ArchiveCache()
    packed = await archives.packed(plan.uploads)
    assert isinstance(packed, Packed)
    (parcel,) = parcels(packed, plan.folders)
    first = b"".join(parcel.archive("merge", {}))
    (again,) = parcels(await archives.packed(plan.uploads), plan.folders)
    assert again._made is parcel._made
    assert len(parcel._made or ()) == 1
    assert b"".join(again.archive("replace", {})) == first
    (anew,) = parcels(plan.uploads, plan.folders)
    assert len(b"".join(anew.archive("merge", {}))) == len(first)


async def test_plans_of_the_same_content_share_it(tmp_path: Path) -> None:
    archives = ArchiveCache()
    for place in ("a", "b"):
        plan = plan_skills(two_skills(tmp_path / place))
        await put(plan, "local", tmp_path / f"{place}-there", archives)
    assert archives.statistics().builds == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_source_that_changed_fails_alone_and_is_not_held(
    plan: Plan, tmp_path: Path, kind: str
) -> None:
    archives = ArchiveCache()
    (tmp_path / "skills" / "pdf" / "a b").write_bytes(b"2")
    async with sandbox(kind, tmp_path / "s") as runtime:
        with pytest.raises(InstallError, match="changed after it was planned") as caught:
            await install(plan, runtime, archives=archives)
    assert [o.target for o in caught.value.report.failed] == ["pdf/a b"]
    assert len(caught.value.report.written) == len(plan.uploads) - 1
    assert archives.statistics().held == 0
    again = plan_skills(sorted((tmp_path / "skills").iterdir()))
    await put(again, kind, tmp_path / "t", archives)
    assert archives.statistics().held == 1


async def test_a_plan_that_is_larger_than_the_bound_is_not_held(plan: Plan, tmp_path: Path) -> None:
    archives = ArchiveCache(max_bytes=50_000)
    await put(plan, "exec", tmp_path / "s", archives)
    told = archives.statistics()
    assert (told.builds, told.bytes_held) == (0, 0)


async def test_a_plan_of_several_transfers_is_held_in_several_pieces(
    plan: Plan, tmp_path: Path
) -> None:
    archives = ArchiveCache()
    for number in range(3):
        limits = Limits(max_bytes=1_000)  # a transfer for each skill
        await put(plan, "exec", tmp_path / f"s{number}", archives, limits=limits)
    assert (archives.statistics().builds, archives.statistics().held) == (2, 2)


async def test_who_is_cancelled_leaves_the_others(plan: Plan, tmp_path: Path) -> None:
    archives = ArchiveCache()
    for moment in range(6):
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(put, plan, "exec", tmp_path / f"s{moment}-{number}", archives)
            with trio.move_on_after(moment * 0.004):
                async with sandbox("exec", tmp_path / f"c{moment}") as runtime:
                    await install(plan, runtime, archives=archives)
        assert archives.statistics().tasks_waiting == 0
