"""Built once for all who ask, held within a bound, and never a wrong one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.trees import write_tree
from trio_skills import (
    Archive,
    ArchiveCache,
    ArchiveError,
    Refresh,
    SourceChangedError,
    _threads,
)
from trio_skills._archive import build_in_memory, unpacked

BUILD = "trio_skills._archive_cache.build_in_memory"

REFRESHES: tuple[Refresh, ...] = get_args(Refresh)
every_refresh = pytest.mark.parametrize("refresh", REFRESHES)


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
    return sparse(tmp_path / "large", 2**31)


def sparse(root: Path, size: int) -> Path:
    """Make a tree of two files of zeros, which take no space, or change their sizes."""
    root.mkdir(exist_ok=True)
    for name in ("x", "y"):
        with open(root / name, "wb") as file:
            file.truncate(size)
    return root


def is_idle(cache: ArchiveCache) -> bool:
    """Whether nothing is under way, not even in a thread, and nobody waits."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    builds = [t for n in root.child_nurseries for t in n.child_tasks if "ArchiveCache" in t.name]
    threads = _threads._limiter.get(trio.CapacityLimiter(1)).borrowed_tokens
    return not (cache._builds or cache.statistics().tasks_waiting or builds or threads)


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(10):
        while not is_so():
            await trio.sleep(0.005)


@attrs.frozen
class Gate:
    """Holds the first build at its end, when nobody can end it any more."""

    done: threading.Event = attrs.Factory(threading.Event)
    go_on: threading.Event = attrs.Factory(threading.Event)

    def build(self, *args: Any) -> Any:
        made = build_in_memory(*args)
        if not self.done.is_set():
            self.done.set()
            assert self.go_on.wait(10)
        return made

    async def open_when(self, is_so: Callable[[], bool]) -> None:
        await until(is_so)
        self.go_on.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(BUILD, gate.build)
    return gate


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
        sparse(large, 100 * 2**20)
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
        assert cache.statistics().held == 0
        # Whatever was let go of is made anew, and another one, too.
        assert names(await cache.source_archive(tree)) == ["a", "b", "b/c"]
        sparse(large, 0)
        assert names(await cache.source_archive(large)) == ["x", "y"]
        assert cache.statistics().builds == 3

    async def test_who_asks_while_a_build_is_being_ended_gets_a_new_one(self, large: Path) -> None:
        cache = ArchiveCache()
        sparse(large, 50 * 2**20)
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

    @every_refresh
    @pytest.mark.parametrize("held", ["nothing", "the-archive", "an-older-one"])
    async def test_cancelled_at_every_step_of_the_scheduler(
        self, tree: Path, refresh: Refresh, held: str
    ) -> None:
        for step in range(100):  # 0: before anything begins
            cache = ArchiveCache()
            if held != "nothing":
                await cache.source_archive(tree)
            if held == "an-older-one":
                (tree / "a").write_bytes(b"%d" % step)
            instrument = _CancelAt(step)
            if step == 0:
                instrument.scope.cancel()
            with instrument.scope:
                trio.lowlevel.add_instrument(instrument)
                try:
                    await cache.source_archive(tree, refresh=refresh)
                finally:
                    trio.lowlevel.remove_instrument(instrument)
            assert is_idle(cache)
            assert step > 0 or cache.statistics().builds == (held != "nothing")
            later = await cache.source_archive(tree, refresh=refresh)
            assert names(later) == ["a", "b", "b/c"]
            assert await cache.source_archive(tree, refresh=refresh) is later
            if not instrument.scope.cancelled_caught:
                break
        else:
            pytest.fail("it never came to its end")
        assert step > (1 if refresh == "never" and held != "nothing" else 3)

    @pytest.mark.parametrize("is_newer_held", [False, True])
    async def test_a_build_that_was_given_up_is_not_held_though_it_comes_to_its_end(
        self, tree: Path, gate: Gate, *, is_newer_held: bool
    ) -> None:
        """Nor does it take the place of a newer one: the next would get an older archive."""
        cache = ArchiveCache()
        scope = trio.CancelScope()

        async def ask() -> None:
            with scope:
                await cache.source_archive(tree)

        newer: list[Archive] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(gate.done.is_set)
            scope.cancel()
            await wait_all_tasks_blocked()
            if is_newer_held:
                (tree / "a").write_bytes(b"newer")
                newer.append(await cache.source_archive(tree))
            gate.go_on.set()
        assert scope.cancelled_caught
        assert is_idle(cache)
        assert [held.value.digest for held in cache._held.values()] == [n.digest for n in newer]
        for archive in newer:
            assert await cache.source_archive(tree) is archive


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


class TestFailure:
    """Told to each who asked, and not held."""

    @every_refresh
    async def test_each_gets_an_error_of_his_own(self, tree: Path, refresh: Refresh) -> None:
        (tree / "out").symlink_to("/etc")
        cache = ArchiveCache()
        errors = await self.failed(cache, tree, ArchiveError, refresh)
        assert f"{tree}/out: the link is absolute" in str(errors[0])
        assert cache.statistics().builds == 1 or refresh != "never"
        (tree / "out").unlink()
        assert names(await cache.source_archive(tree)) == ["a", "b", "b/c"]

    @pytest.mark.parametrize("error", [SourceChangedError("changed"), OSError(28, "full", "/x")])
    async def test_other_errors_are_copied_whole(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        def fail(*args: object) -> None:
            raise error

        cache = ArchiveCache()
        with monkeypatch.context() as patch:
            patch.setattr(BUILD, fail)
            errors = await self.failed(cache, tree, type(error))
        assert {repr(e) for e in errors} == {repr(error)}
        assert names(await cache.source_archive(tree)) == ["a", "b", "b/c"]

    async def test_in_a_group_each_has_its_own_traceback(self, tree: Path) -> None:
        (tree / "out").symlink_to("/etc")
        cache = ArchiveCache()
        with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012  # a nursery is one
            async with trio.open_nursery() as nursery:
                for _ in range(100):
                    nursery.start_soon(cache.source_archive, tree)
        errors = caught.value.exceptions
        assert len({id(error) for error in errors}) == 100
        assert len({id(error.__traceback__) for error in errors}) == 100

    async def failed(
        self, cache: ArchiveCache, tree: Path, kind: type[Exception], refresh: Refresh = "never"
    ) -> list[Exception]:
        """Return the errors of a hundred who ask at once, which are alike, and not the same."""
        errors: list[Exception] = []

        async def ask() -> None:
            with pytest.raises(kind) as caught:
                await cache.source_archive(tree, refresh=refresh)
            caught.value.add_note("mine")
            errors.append(caught.value)

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(ask)
        assert len({id(error) for error in errors}) == 100
        assert {(type(error), str(error)) for error in errors} == {(kind, str(errors[0]))}
        assert all(error.__notes__ == ["mine"] for error in errors)
        assert cache.statistics().held == 0
        assert is_idle(cache)
        return errors


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
        for refresh in REFRESHES:
            assert await cache.source_archive(tree, refresh=refresh) is first
        CHANGES[change](tree)
        assert await cache.source_archive(tree) is first
        assert (cache.statistics().hits, cache.statistics().builds) == (4, 1)
        expected = await ArchiveCache().source_archive(tree)
        assert expected.digest != first.digest
        for refresh in REFRESHES[1:]:
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

    @pytest.mark.parametrize("refresh", REFRESHES[1:])
    async def test_all_who_see_the_same_change_come_to_one_build(
        self, tree: Path, refresh: Refresh
    ) -> None:
        cache = ArchiveCache()
        await cache.source_archive(tree)
        (tree / "a").write_bytes(b"other")
        got: list[Archive] = []

        async def ask() -> None:
            got.append(await cache.source_archive(tree, refresh=refresh))

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(ask)
        assert len({id(archive) for archive in got}) == 1
        assert got[0].digest == (await ArchiveCache().source_archive(tree)).digest
        assert cache.statistics().builds == 2

    async def test_a_tree_that_has_become_wrong_is_an_error_for_who_looks(self, tree: Path) -> None:
        cache = ArchiveCache()
        first = await cache.source_archive(tree, ["a"])
        (tree / "a").unlink()
        for refresh in REFRESHES[1:]:
            with pytest.raises(ArchiveError, match="no such member"):
                await cache.source_archive(tree, ["a"], refresh=refresh)
        assert await cache.source_archive(tree, ["a"]) is first

    async def test_who_looks_does_not_get_what_a_build_had_seen_before(
        self, tree: Path, gate: Gate
    ) -> None:
        cache = ArchiveCache()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cache.source_archive, tree)
            await until(gate.done.is_set)
            (tree / "a").write_bytes(b"newer")
            nursery.start_soon(gate.open_when, lambda: cache.statistics().tasks_waiting == 2)
            newer = await cache.source_archive(tree, refresh="stat")
        assert newer.digest == (await ArchiveCache().source_archive(tree)).digest
        assert await cache.source_archive(tree) is newer

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
