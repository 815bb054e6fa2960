"""Installs that share a cache read a plan once; within its bound, and while nobody else waits."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.test_archive_cache import is_idle, names
from tests.trees import Tree, planned_tree, read_tree, two_skills, write_tree
from trio_skills import (
    ArchiveCache,
    Compression,
    InstallError,
    Limits,
    Packing,
    Plan,
    RunResult,
    Runtime,
    install,
    open_runtime,
    plan_skills,
    plan_uploads,
)
from trio_skills._far_side import parcels
from trio_skills._upload import Packed, Upload
from trio_skills.testing import PackingMemoryRuntime

KINDS = ["local", "exec", "packing", "memory"]


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
    if kind == "memory":
        yield PackingMemoryRuntime()
    elif kind == "local":
        async with open_runtime(f"local:{root}") as runtime:
            yield runtime
    else:
        # Commands run where the words say: in the root.
        async with open_runtime(f"exec:env --chdir={root}") as runtime:
            yield runtime if kind == "exec" else Packing(Two(runtime))


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return plan_skills(two_skills(tmp_path / "skills"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    write_tree(tmp_path / "tree", {"a": b"1", "b/c": (b"2", True)})
    return tmp_path / "tree"


async def put(plan: Plan, kind: str, root: Path, archives: ArchiveCache, **options: Any) -> None:
    async with sandbox(kind, root) as runtime:
        await install(plan, runtime, archives=archives, **options)
    assert tree_in(runtime, root) == planned_tree(plan)


def tree_in(runtime: Any, root: Path) -> Tree:
    """Return what is in a sandbox."""
    if isinstance(runtime, PackingMemoryRuntime):
        return {path: (file.data, file.executable) for path, file in runtime.files.items()}
    return read_tree(root)


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


OPENS = """
import os, sys, trio
from collections import Counter
from pathlib import Path
from tests.test_packed_cache import sandbox, tree_in
from tests.trees import planned_tree
from trio_skills import ArchiveCache, install, plan_skills

skills, kind, root = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
plan = plan_skills(sorted(skills.iterdir()))
expected = planned_tree(plan)
names = Counter(upload.source.name for upload in plan.uploads)
opened, in_the_loop = Counter(), []

def hook(event, args):
    # By its name, in a folder that is open. Not those that are written, or passed through.
    if event == "open" and args[0] in names and not args[2] & (os.O_CREAT | os.O_DIRECTORY):
        opened[args[0]] += 1
        if trio.lowlevel.in_trio_task():
            in_the_loop.append(args[0])

async def put(to, archives):
    async with sandbox(kind, to) as runtime:
        await install(plan, runtime, archives=archives)
    assert tree_in(runtime, to) == expected

async def at_once(to, archives, count):
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(put, to / str(number), archives)

async def in_turn(to, archives, count):
    for number in range(count):
        await put(to / str(number), archives)

sys.addaudithook(hook)
for way, archives, count in (
    (at_once, ArchiveCache(), 100), (in_turn, ArchiveCache(), 100), (at_once, None, 3)
):
    opened.clear()
    trio.run(way, root / f"{way.__name__}-{count}", archives, count)
    times = {opened[name] / count for name, count in names.items()}
    print(sum(names.values()), *map(int, times))
assert not in_the_loop, in_the_loop
"""


@pytest.mark.parametrize("kind", KINDS)
def test_each_file_is_opened_once_for_all(plan: Plan, tmp_path: Path, kind: str) -> None:
    """A hundred at once, and a hundred in turn; without a cache each of three opens it."""
    command = [sys.executable, "-c", OPENS, str(tmp_path / "skills"), kind, str(tmp_path / "to")]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    count = len(plan.uploads)
    assert printed.splitlines() == [f"{count} 1", f"{count} 1", f"{count} 3"]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_held_takes_no_more_memory_than_it_says(tmp_path: Path, kind: str) -> None:
    """Nor does what is made of it to send it."""
    write_tree(tmp_path, {f"s/f{number}": os.urandom(50_000) for number in range(40)})
    plan = plan_uploads(Upload.of(f"s/{path.name}", path) for path in (tmp_path / "s").iterdir())
    await put(plan, kind, tmp_path / "before", ArchiveCache(0))  # what is made once for all
    archives = ArchiveCache()
    tracemalloc.start()
    try:
        await put(plan, kind, tmp_path / "to", archives)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert plan.total_bytes < taken < archives.statistics().bytes_held * 1.2


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
    """For each of those who install it at once."""
    archives = ArchiveCache()
    right = planned_tree(plan)
    del right["pdf/a b"]
    (tmp_path / "skills" / "pdf" / "a b").write_bytes(b"2")

    async def fail(root: Path) -> None:
        async with sandbox(kind, root) as runtime:
            with pytest.raises(InstallError, match="changed after it was planned") as caught:
                await install(plan, runtime, archives=archives)
        assert [o.target for o in caught.value.report.failed] == ["pdf/a b"]
        assert len(caught.value.report.written) == len(plan.uploads) - 1
        assert tree_in(runtime, root) == right

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(fail, tmp_path / f"s{number}")
    assert archives.statistics().held == 0
    again = plan_skills(sorted((tmp_path / "skills").iterdir()))
    await put(again, kind, tmp_path / "t", archives)
    assert archives.statistics().held == 1


async def test_what_was_planned_is_what_is_held_whatever_became_of_the_sources(
    plan: Plan, tmp_path: Path
) -> None:
    archives = ArchiveCache()
    await put(plan, "local", tmp_path / "s", archives)
    planned = planned_tree(plan)
    (tmp_path / "skills" / "pdf" / "a b").unlink()
    (tmp_path / "skills" / "xlsx" / "empty").write_bytes(b"no more")
    async with sandbox("local", tmp_path / "t") as runtime:
        await install(plan, runtime, archives=archives)
    assert read_tree(tmp_path / "t") == planned


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bound", [0, 50_000])
async def test_a_plan_that_is_larger_than_the_bound_is_not_held(
    plan: Plan, tmp_path: Path, kind: str, bound: int
) -> None:
    archives = ArchiveCache(bound)
    await put(plan, kind, tmp_path / "s", archives)
    told = archives.statistics()
    assert (told.builds, told.bytes_held, told.evictions) == (0, 0, 0)
    assert await archives.packed(plan.uploads) is plan.uploads


async def test_uploads_whose_content_is_not_known_come_back_as_they_are(tmp_path: Path) -> None:
    archives = ArchiveCache()
    uploads = [Upload.of("a", b"1"), Upload("b", b"2", 1)]
    assert await archives.packed(uploads) is uploads
    assert archives.statistics().builds == 0


async def test_a_difference_in_target_mode_or_content_is_another_one(plan: Plan) -> None:
    archives = ArchiveCache()
    alike = [
        [Upload.of("a", b"1")],
        [Upload.of("b", b"1")],
        [Upload.of("a", b"1", executable=True)],
        [Upload.of("a", b"2")],
        [Upload.of("a", b"1"), Upload.of("b", b"1")],
        [Upload.of("b", b"1"), Upload.of("a", b"1")],
    ]
    for _ in range(2):
        for uploads in alike:
            assert list(await archives.packed(uploads)) == uploads
    assert (archives.statistics().builds, archives.statistics().hits) == (6, 6)


async def test_a_plan_of_several_transfers_is_held_in_several_pieces(
    plan: Plan, tmp_path: Path
) -> None:
    archives = ArchiveCache()
    for number in range(3):
        limits = Limits(max_bytes=1_000)  # a transfer for each skill
        await put(plan, "exec", tmp_path / f"s{number}", archives, limits=limits)
    assert (archives.statistics().builds, archives.statistics().held) == (2, 2)


@pytest.mark.parametrize("kind", KINDS)
async def test_who_is_cancelled_leaves_the_others(plan: Plan, tmp_path: Path, kind: str) -> None:
    """At some moment, first or last of those who ask for the same."""
    ended = 0
    for moment in range(8):
        archives = ArchiveCache()
        to = tmp_path / str(moment)
        scope = trio.CancelScope()

        async def give_up(to: Path, archives: ArchiveCache, scope: trio.CancelScope) -> None:
            async with sandbox(kind, to / "c") as runtime:
                with scope:
                    await install(plan, runtime, archives=archives)

        async with trio.open_nursery() as nursery:
            if moment % 2:
                nursery.start_soon(give_up, to, archives, scope)
            for number in range(3):
                nursery.start_soon(put, plan, kind, to / str(number), archives)
            if not moment % 2:
                nursery.start_soon(give_up, to, archives, scope)
            await trio.sleep(moment * 0.003)
            scope.cancel()
        ended += scope.cancelled_caught
        assert is_idle(archives)
        assert archives.statistics().held == 1
        await put(plan, kind, to / "later", archives)
    assert ended > 0


class TestKeys:
    """What is the same is built once, and what is not is not."""

    async def test_other_words_for_the_same_tree(
        self, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "link").symlink_to(tree)
        monkeypatch.chdir(tmp_path)
        cache = ArchiveCache()
        for root in (tree, str(tree), "tree", "./tree/", tmp_path / "link", "tree/b/.."):
            members: Iterable[str | Path]
            for members in (["a", "b"], ("b", "a"), iter(["a", "b"]), map(Path, "ab")):
                await cache.source_archive(root, members)
        assert cache.statistics().builds == 1

    async def test_other_words_at_once_for_the_same_tree(self, tree: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tree)
        cache = ArchiveCache()
        async with trio.open_nursery() as nursery:
            for root in (tree, os.path.relpath(tree), tmp_path / "link") * 20:
                nursery.start_soon(cache.source_archive, root)
        assert cache.statistics().builds == 1

    async def test_all_that_makes_a_difference(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache = ArchiveCache()
        compressions: tuple[Compression, ...] = ("gzip", "zstd", "none")
        for compression in compressions:
            archive = await cache.source_archive(tree, compression=compression)
            assert archive.compression == compression
        assert names(await cache.source_archive(tree, ["a"])) == ["a"]
        assert names(await cache.source_archive(tree, exclude=["a"])) == ["b", "b/c"]
        assert names(await cache.source_archive(tree, ["a", "no"], missing_ok=True)) == ["a"]
        assert names(await cache.source_archive(tree, ["a"], missing_ok=True)) == ["a"]
        before = await cache.source_archive(tree)
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "5")
        assert (await cache.source_archive(tree)).digest != before.digest
        assert cache.statistics().builds == 8

    async def test_wrong_arguments_are_told_at_once(self, tree: Path) -> None:
        cache = ArchiveCache()
        with pytest.raises(ValueError, match="refresh"):
            await cache.source_archive(tree, refresh="often")  # type: ignore[arg-type]  # that is it
        with pytest.raises(TypeError, match="list of paths"):
            await cache.source_archive(tree, "a")
        with pytest.raises(ValueError, match="max_bytes"):
            ArchiveCache(-1)


class TestBound:
    """What is held stays within it; the least recently used goes first."""

    async def test_an_archive_that_is_larger_is_returned_and_not_held(self, tree: Path) -> None:
        for bound in (0, 500):
            cache = ArchiveCache(bound)
            for _ in range(2):
                assert names(await cache.source_archive(tree)) == ["a", "b", "b/c"]
            told = cache.statistics()
            assert (told.builds, told.held, told.bytes_held) == (2, 0, 0)
            assert cache._keys == {}

    async def test_what_is_let_go_of_leaves_nothing(self, tmp_path: Path) -> None:
        cache = ArchiveCache(2_000)
        write_tree(tmp_path, {f"{number}/a": os.urandom(100) for number in range(200)})
        for number in range(200):
            root = tmp_path / str(number)
            await cache.source_archive(root)
            await cache.source_archive(os.path.relpath(root))
            told = cache.statistics()
            assert told.bytes_held <= told.max_bytes
            assert len(cache._keys) <= 2 * told.held
        assert 0 < cache.statistics().held < 10
        assert cache.statistics().evictions == 200 - cache.statistics().held
        assert "held" in repr(cache)

    async def test_a_call_for_what_is_held_allocates_little(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "tree", {"a": os.urandom(5 * 2**20)})
        cache = ArchiveCache()
        assert (await cache.source_archive(tmp_path / "tree")).size > 5 * 2**20
        tracemalloc.start()
        try:
            for _ in range(5):
                await cache.source_archive(tmp_path / "tree")
            assert tracemalloc.get_traced_memory()[1] < 20_000
        finally:
            tracemalloc.stop()


class TestEventLoop:
    """It keeps turning, and never touches a file."""

    async def test_while_50_mb_are_built_others_wake_in_time(self, tmp_path: Path) -> None:
        root = tmp_path / "tree"
        root.mkdir()
        for number in range(500):
            (root / f"f{number}").write_bytes(os.urandom(100_000))
        figures = []
        for _ in range(3):
            late: list[float] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_beat, late)
                await ArchiveCache().source_archive(root)
                nursery.cancel_scope.cancel()
            assert len(late) > 50
            figures.append(statistics.quantiles(late, n=100)[-1])
            if figures[-1] <= 0.01:
                return
        pytest.fail(f"99 of 100 wake up at most so many seconds late: {figures}")

    def test_no_file_is_touched_in_it(self, tree: Path) -> None:
        program = (
            "import sys, trio\n"
            "from trio_skills import ArchiveCache\n"
            "seen = []\n"
            "def hook(event, args):\n"
            "    touches = event in ('open', 'os.scandir', 'os.listdir')\n"
            "    if touches and trio.lowlevel.in_trio_task():\n"
            "        seen.append((event, args[0]))\n"
            "async def main():\n"
            "    cache = ArchiveCache()\n"
            "    await cache.source_archive(sys.argv[1])\n"
            "    sys.addaudithook(hook)\n"
            "    for refresh in ('never', 'stat', 'content'):\n"
            "        await cache.source_archive(sys.argv[1], refresh=refresh)\n"
            "        await ArchiveCache().source_archive(sys.argv[1], refresh=refresh)\n"
            "    assert not seen, seen\n"
            "    open('/dev/null').close()\n"
            "    assert seen\n"
            "trio.run(main)\n"
        )
        subprocess.run([sys.executable, "-c", program, tree], check=True)


async def _beat(late: list[float]) -> None:
    while True:
        start = time.perf_counter()
        await trio.sleep(0.001)
        late.append(time.perf_counter() - start - 0.001)
