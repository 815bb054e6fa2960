"""Built once for all who ask, held within a bound, and never a wrong one."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.trees import write_tree
from trio_skills import (
    Archive,
    ArchiveCache,
    ArchiveError,
    Compression,
    Refresh,
    SourceChangedError,
)
from trio_skills._archive import unpacked


def names(archive: Archive) -> list[str]:
    return [member.name for member, _ in unpacked(archive)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    write_tree(root, {"a": b"1", "b/c": (b"2", True)})
    return root


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A tree that takes seconds to build."""
    root = tmp_path / "large"
    root.mkdir()
    for name in ("x", "y"):
        with open(root / name, "wb") as file:
            file.truncate(2**31)
    return root


def is_idle(cache: ArchiveCache) -> bool:
    """Whether nothing is under way, and nobody waits."""
    return not cache._builds and cache.statistics().tasks_waiting == 0


class TestSingleFlight:
    """All who ask at once get what one build made."""

    async def test_a_hundred_tasks_cause_one_build(self, tree: Path) -> None:
        cache = ArchiveCache()
        got: list[Archive] = []

        async def ask() -> None:
            got.append(await cache.source_archive(tree))

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(ask)
        assert len(got) == 100
        assert len({id(archive) for archive in got}) == 1
        told = cache.statistics()
        assert (told.builds, told.misses, told.hits, told.held) == (1, 100, 0, 1)
        assert await cache.source_archive(tree) is got[0]
        assert cache.statistics().hits == 1

    @pytest.mark.parametrize("leaving", [{0}, {5}, {9}, set(range(9)), set(range(1, 10))])
    async def test_who_is_cancelled_leaves_the_others_waiting(
        self, large: Path, leaving: set[int]
    ) -> None:
        """Also the one who asked first."""
        for name in ("x", "y"):
            with open(large / name, "wb") as file:
                file.truncate(100 * 2**20)
        cache = ArchiveCache()
        got: list[int] = []
        scopes = [trio.CancelScope() for _ in range(10)]

        async def ask(number: int) -> None:
            with scopes[number]:
                await cache.source_archive(large)
                got.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(ask, number)
                await wait_all_tasks_blocked()
            await trio.sleep(0.05)
            assert cache.statistics().tasks_waiting == 10
            for number in leaving:
                scopes[number].cancel()
        assert sorted(got) == sorted(set(range(10)) - leaving)
        assert cache.statistics().builds == 1
        assert is_idle(cache)

    async def test_when_nobody_waits_any_more_the_build_ends_with_the_last(
        self, large: Path, tree: Path
    ) -> None:
        cache = ArchiveCache()
        start = time.monotonic()
        with trio.move_on_after(0.3):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(cache.source_archive, large)
        assert time.monotonic() - start < 1.3
        assert is_idle(cache)
        builds = [task for task in _system_tasks() if "ArchiveCache" in task]
        assert builds == []
        assert cache.statistics().held == 0
        # Whatever was let go of is made anew, and another one, too.
        assert names(await cache.source_archive(tree)) == ["a", "b", "b/c"]
        for name in ("x", "y"):
            (large / name).write_bytes(b"")
        assert names(await cache.source_archive(large)) == ["x", "y"]
        assert cache.statistics().builds == 3

    async def test_who_asks_while_a_build_is_being_ended_gets_a_new_one(self, large: Path) -> None:
        cache = ArchiveCache()
        for name in ("x", "y"):
            with open(large / name, "wb") as file:
                file.truncate(50 * 2**20)
        async with trio.open_nursery() as nursery:
            first = trio.CancelScope()

            async def ask() -> None:
                with first:
                    await cache.source_archive(large)

            nursery.start_soon(ask)
            await trio.sleep(0.05)
            first.cancel()
            assert names(await cache.source_archive(large)) == ["x", "y"]
        assert is_idle(cache)

    async def test_cancelled_at_every_step_of_the_scheduler(self, tree: Path) -> None:
        for refresh in ("never", "stat", "content"):
            cache = ArchiveCache()
            for step in range(1, 100):
                instrument = _CancelAt(step)
                with instrument.scope:
                    trio.lowlevel.add_instrument(instrument)
                    try:
                        await cache.source_archive(tree, refresh=refresh)
                    finally:
                        trio.lowlevel.remove_instrument(instrument)
                assert is_idle(cache)
                if not instrument.scope.cancelled_caught:
                    break
                cache = ArchiveCache() if step % 2 else cache
            else:
                pytest.fail("it never came to its end")
            assert step > 3
            assert names(await cache.source_archive(tree)) == ["a", "b", "b/c"]

    async def test_before_anything_begins(self, tree: Path) -> None:
        cache = ArchiveCache()
        with trio.CancelScope() as scope:
            scope.cancel()
            await cache.source_archive(tree)
        assert scope.cancelled_caught
        assert cache.statistics().builds == 0


@attrs.define(eq=False)
class _CancelAt(trio.abc.Instrument):
    """Cancels a scope before its task's n-th step."""

    step: int
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    steps: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        if self.steps == self.step:
            self.scope.cancel()


def _system_tasks() -> list[str]:
    root = trio.lowlevel.current_root_task()
    assert root is not None
    return [task.name for nursery in root.child_nurseries for task in nursery.child_tasks]


class TestFailure:
    """Told to each who asked, and not held."""

    async def test_each_gets_an_error_of_his_own(self, tree: Path) -> None:
        (tree / "out").symlink_to("/etc")
        cache = ArchiveCache()
        errors: list[ArchiveError] = []

        async def ask() -> None:
            with pytest.raises(ArchiveError) as caught:
                await cache.source_archive(tree)
            errors.append(caught.value)

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(ask)
        assert len({id(error) for error in errors}) == 100
        assert len({str(error) for error in errors}) == 1
        assert f"{tree}/out: the link is absolute" in str(errors[0])
        assert {error.problems[0].kind for error in errors} == {"link-leaves"}
        assert cache.statistics().builds == 1
        assert cache.statistics().held == 0
        (tree / "out").unlink()
        assert names(await cache.source_archive(tree)) == ["a", "b", "b/c"]

    async def test_wrong_arguments_are_told_at_once(self, tree: Path) -> None:
        cache = ArchiveCache()
        with pytest.raises(ValueError, match="refresh"):
            await cache.source_archive(tree, refresh="often")  # type: ignore[arg-type]  # that is it
        with pytest.raises(TypeError, match="list of paths"):
            await cache.source_archive(tree, "a")
        with pytest.raises(ValueError, match="max_bytes"):
            ArchiveCache(-1)


def changed_back(root: Path) -> None:
    before = (root / "a").stat()
    (root / "a").write_bytes(b"2")
    os.utime(root / "a", ns=(before.st_atime_ns, before.st_mtime_ns))


def renamed_over(root: Path) -> None:
    before = (root / "a").stat()
    (root / "new").write_bytes(b"2")
    os.utime(root / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(root / "new", root / "a")


def link_turned(root: Path) -> None:
    (root / "link").unlink()
    (root / "link").symlink_to("b")


CHANGES: dict[str, Callable[[Path], object]] = {
    "bytes-with-the-same-size-and-time": changed_back,
    "another-file-with-the-same-size-and-time": renamed_over,
    "size": lambda root: (root / "a").write_bytes(b"11"),
    "mode": lambda root: (root / "a").chmod(0o755),
    "added": lambda root: (root / "b" / "d").write_bytes(b""),
    "removed": lambda root: (root / "a").unlink(),
    "empty-folder": lambda root: (root / "e").mkdir(),
    "link": link_turned,
}


class TestRefresh:
    """A snapshot, unless it is asked to look."""

    @pytest.mark.parametrize("change", CHANGES)
    async def test_a_change_is_seen_by_who_looks(self, tree: Path, change: str) -> None:
        (tree / "link").symlink_to("a")
        cache = ArchiveCache()
        first = await cache.source_archive(tree)
        looks: tuple[Refresh, ...] = ("stat", "content")
        for refresh in looks:
            assert await cache.source_archive(tree, refresh=refresh) is first
        CHANGES[change](tree)
        assert await cache.source_archive(tree) is first
        expected = await ArchiveCache().source_archive(tree)
        assert expected.digest != first.digest
        for refresh in looks:
            other = ArchiveCache()
            other._held, other._keys = cache._held.copy(), cache._keys.copy()
            assert (await other.source_archive(tree, refresh=refresh)).digest == expected.digest
            assert (await other.source_archive(tree)).digest == expected.digest

    async def test_a_file_that_was_touched_is_the_same_content(self, tree: Path) -> None:
        cache = ArchiveCache()
        first = await cache.source_archive(tree)
        os.utime(tree / "a", (5, 5))
        assert await cache.source_archive(tree, refresh="content") is first
        assert await cache.source_archive(tree, refresh="stat") == first
        assert cache.statistics().builds == 2

    async def test_a_root_that_leads_elsewhere_is_seen_by_who_looks(
        self, tree: Path, tmp_path: Path
    ) -> None:
        write_tree(tmp_path / "other", {"z": b""})
        (tmp_path / "now").symlink_to(tree)
        cache = ArchiveCache()
        first = await cache.source_archive(tmp_path / "now")
        (tmp_path / "now").unlink()
        (tmp_path / "now").symlink_to(tmp_path / "other")
        assert await cache.source_archive(tmp_path / "now") is first
        assert names(await cache.source_archive(tmp_path / "now", refresh="stat")) == ["z"]
        assert names(await cache.source_archive(tmp_path / "now")) == ["z"]
        assert await cache.source_archive(tree) is first

    async def test_a_tree_that_has_become_wrong_is_an_error_for_who_looks(self, tree: Path) -> None:
        cache = ArchiveCache()
        first = await cache.source_archive(tree, ["a"])
        (tree / "a").unlink()
        for refresh in ("stat", "content"):
            with pytest.raises(ArchiveError, match="no such member"):
                await cache.source_archive(tree, ["a"], refresh=refresh)
        assert await cache.source_archive(tree, ["a"]) is first

    async def test_nobody_gets_what_is_older_than_his_asking(self, tree: Path) -> None:
        cache = ArchiveCache()
        version = 0

        async def ask() -> None:
            while version < 10:
                before = version
                try:
                    archive = await cache.source_archive(tree, refresh="stat")
                except (ArchiveError, SourceChangedError):
                    continue
                content = {m.name: b"".join(c) for m, c in unpacked(archive) if m.isreg()}
                assert int(content["a"]) >= before

        async def change() -> None:
            nonlocal version
            while True:
                await trio.sleep(0.03)
                (tree / "new").write_bytes(b"%d" % (version + 1))
                os.replace(tree / "new", tree / "a")
                version += 1

        (tree / "a").write_bytes(b"0")
        async with trio.open_nursery() as changing:
            changing.start_soon(change)
            async with trio.open_nursery() as asking:
                for _ in range(5):
                    asking.start_soon(ask)
            changing.cancel_scope.cancel()


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
        before = await cache.source_archive(tree)
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "5")
        assert (await cache.source_archive(tree)).digest != before.digest
        assert cache.statistics().builds == 7


class TestBound:
    """What is held stays within it; the least recently used goes first."""

    async def test_one_that_is_larger_is_returned_and_not_held(self, tree: Path) -> None:
        for bound in (0, 500):
            cache = ArchiveCache(bound)
            for _ in range(2):
                assert names(await cache.source_archive(tree)) == ["a", "b", "b/c"]
            told = cache.statistics()
            assert (told.builds, told.held, told.bytes_held) == (2, 0, 0)
            assert cache._keys == {}

    async def test_what_is_let_go_of_leaves_nothing(self, tmp_path: Path) -> None:
        cache = ArchiveCache(2_000)
        for number in range(50):
            root = tmp_path / f"t{number}"
            write_tree(root, {"a": os.urandom(100)})
            await cache.source_archive(root)
            await cache.source_archive(os.path.relpath(root))
            told = cache.statistics()
            assert told.bytes_held <= told.max_bytes
            assert len(cache._keys) <= 2 * told.held
        assert 0 < cache.statistics().held < 10
        assert cache.statistics().evictions == 50 - cache.statistics().held
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
