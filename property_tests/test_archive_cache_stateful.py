"""A cache beside a list of what was asked for last: the same is held, and nothing that is wrong."""

from __future__ import annotations

import os
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.test_archive_cache import is_idle, names
from trio_skills import Archive, ArchiveCache, Refresh
from trio_skills._archive import unpacked
from trio_skills._upload import Upload

NAMES = ("a", "b", "c", "d")
ENTRY = 401
"""What one file with a name of one letter counts, besides its archive."""
PACKED = 2_001
"""What one packed upload with a target of one letter counts, besides its content."""


@attrs.frozen
class _Model:
    value: object
    """An archive, or the uploads that were packed."""
    size: int
    content: bytes = b""
    version: int = 0


class CacheMachine(RuleBasedStateMachine):
    """What a cache holds survives a Trio run, so each rule is a run of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.bound = 25_000
        self.cache = ArchiveCache(self.bound)
        self.held: OrderedDict[str, _Model] = OrderedDict()
        self.contents: dict[str, bytes] = {}
        self.versions = dict.fromkeys(NAMES, 0)
        self.builds = self.asked = self.evictions = 0
        for name in NAMES:
            (self.root / name).mkdir()
            self.change(name, 1_000)

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(name=st.sampled_from(NAMES), size=st.integers(0, 30_000))
    def change(self, name: str, size: int) -> None:
        content = (str(len(self.contents) + size).encode() * (size // 4 + 1))[:size]
        if content != self.contents.get(name):
            self.contents[name] = content
            self.versions[name] += 1
            (self.root / name / "f").write_bytes(content)

    @rule(name=st.sampled_from(NAMES), refresh=st.sampled_from(["never", "stat", "content"]))
    def ask(self, name: str, refresh: Refresh) -> None:
        archive = trio.run(self._ask, name, refresh)
        before = self.held.get(name)
        if before is not None and (
            refresh == "never"
            or (refresh == "stat" and before.version == self.versions[name])
            or (refresh == "content" and before.content == self.contents[name])
        ):
            assert archive is before.value
            self.held.move_to_end(name)
            return
        ((member, content),) = ((m.name, b"".join(c)) for m, c in unpacked(archive))
        assert (member, content) == ("f", self.contents[name])
        self._model_build(name, archive)

    @precondition(lambda self: not self.held.keys() >= set(NAMES))
    @rule(count=st.integers(2, 5), data=st.data())
    def ask_together(self, count: int, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([n for n in NAMES if n not in self.held]))
        archives: list[Archive] = []

        async def ask() -> None:
            archives.append(await self._ask(name, "never"))

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(count):
                    nursery.start_soon(ask)

        trio.run(main)
        assert all(archive is archives[0] for archive in archives)
        self._model_build(name, archives[0])

    async def _ask(self, name: str, refresh: Refresh) -> Archive:
        self.asked += 1
        return await self.cache.source_archive(
            self.root / name, compression="none", refresh=refresh
        )

    @rule(name=st.sampled_from(NAMES), size=st.sampled_from([0, 4_000, 15_000, 22_999, 23_000]))
    def pack(self, name: str, size: int) -> None:
        """The content of uploads is held in the same bound."""
        uploads = [Upload.of(name, bytes(size))]
        packed = trio.run(self.cache.packed, uploads)
        if size + PACKED > self.bound:
            assert packed is uploads
            return
        self.asked += 1
        assert list(packed) == uploads
        key = f"packed {name} {size}"
        if key in self.held:
            assert packed is self.held[key].value
            self.held.move_to_end(key)
        else:
            self._hold(key, _Model(packed, size + PACKED))

    def _model_build(self, name: str, archive: Archive) -> None:
        size = archive.size + ENTRY
        self._hold(name, _Model(archive, size, self.contents[name], self.versions[name]))

    def _hold(self, key: str, model: _Model) -> None:
        self.builds += 1
        self.held.pop(key, None)
        if model.size > self.bound:
            return
        while sum(held.size for held in self.held.values()) + model.size > self.bound:
            self.held.popitem(last=False)
            self.evictions += 1
        self.held[key] = model

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        told = self.cache.statistics()
        assert told.bytes_held == sum(held.size for held in self.held.values())
        assert told.bytes_held <= told.max_bytes
        assert (told.held, told.builds, told.evictions) == (
            len(self.held),
            self.builds,
            self.evictions,
        )
        assert told.hits + told.misses == self.asked
        assert told.tasks_waiting == 0
        names = self.cache._keys  # noqa: SLF001  # there is no other way to see that none is left
        assert {Path(recipe.selection.root).name for recipe in names} == (
            self.held.keys() & set(NAMES)
        )


TestCache = CacheMachine.TestCase


@attrs.frozen
class _Asker:
    what: str
    """What it asks for: a name of the tree, or the packed uploads."""
    refresh: Refresh
    leaves_at: int | None
    """The step of the scheduler at which it is cancelled."""


ASKERS = st.lists(
    st.builds(
        _Asker,
        what=st.sampled_from(["absolute", "relative", "link", "packed"]),
        refresh=st.sampled_from(["never", "stat", "content"]),
        leaves_at=st.none() | st.integers(1, 60),
    ),
    min_size=1,
    max_size=8,
)


@attrs.define(eq=False)
class _CancelAt(trio.abc.Instrument):
    """Cancels each scope before the step that it comes with."""

    leaving: Sequence[tuple[int, trio.CancelScope]]
    steps: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        for step, scope in self.leaving:
            if step == self.steps:
                scope.cancel()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        trio.lowlevel.add_instrument(self)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(self)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all examples: only the first one waits for the file system's clock."""
    root = tmp_path_factory.mktemp("asked") / "tree"
    (root / "b").mkdir(parents=True)
    (root / "a").write_bytes(b"1" * 1_000)
    (root / "b" / "c").write_bytes(b"2")
    root.with_name("link").symlink_to(root)
    return root


@given(askers=ASKERS, is_held=st.booleans(), random=st.random_module())
def test_whoever_leaves_at_whatever_step_the_others_get_what_they_asked_for(
    tree: Path, askers: list[_Asker], is_held: bool, random: Random
) -> None:
    """And the cache is whole: nothing is under way, and no build was begun that need not be."""
    link = tree.with_name("link")
    roots: dict[str, str | Path] = {
        "absolute": tree,
        "relative": os.path.relpath(tree),
        "link": link,
    }
    uploads = [Upload.of(name, tree / name) for name in ("a", "b/c")]
    cache = ArchiveCache()
    scopes = [trio.CancelScope() for _ in askers]
    got: dict[int, object] = {}

    async def ask(number: int) -> None:
        asker = askers[number]
        with scopes[number]:
            if asker.what == "packed":
                got[number] = [u.source for u in await cache.packed(uploads)]
            else:
                root = roots[asker.what]
                got[number] = names(await cache.source_archive(root, refresh=asker.refresh))

    async def main() -> None:
        if is_held:
            await cache.source_archive(tree)
        leaving = [
            (asker.leaves_at, scope)
            for asker, scope in zip(askers, scopes, strict=True)
            if asker.leaves_at is not None
        ]
        with _CancelAt(leaving).at_work():
            async with trio.open_nursery() as nursery:
                for number in range(len(askers)):
                    nursery.start_soon(ask, number)
        assert is_idle(cache)
        builds = cache.statistics().builds
        left = {number for number, scope in enumerate(scopes) if scope.cancelled_caught}
        assert got.keys() | left == set(range(len(askers)))
        for number, what in got.items():
            is_packed = askers[number].what == "packed"
            assert what == ([b"1" * 1_000, b"2"] if is_packed else ["a", "b", "b/c"])
        # What was given up is begun anew, and nothing else is.
        kinds = {asker.what == "packed" for asker in askers} | ({False} if is_held else set())
        assert builds <= len(kinds) + len(left)
        later = await cache.source_archive(tree)
        for root in roots.values():
            for refresh in ("never", "stat", "content"):
                assert await cache.source_archive(root, refresh=refresh) is later
        assert await cache.packed(uploads) is await cache.packed(uploads)

    trio.run(main)
