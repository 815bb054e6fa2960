"""A cache beside a list of what was asked for last: the same is held, and nothing that is wrong."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from pathlib import Path

import attrs
import trio
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trio_skills import Archive, ArchiveCache, Refresh
from trio_skills._archive import unpacked

NAMES = ("a", "b", "c", "d")
ENTRY = 401
"""What one file with a name of one letter counts, besides its archive."""


@attrs.frozen
class _Model:
    archive: Archive
    content: bytes
    version: int


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
            assert archive is before.archive
            self.held.move_to_end(name)
            return
        ((member, content),) = ((m.name, b"".join(c)) for m, c in unpacked(archive))
        assert (member, content) == ("f", self.contents[name])
        self._model_build(name, archive)

    @precondition(lambda self: len(self.held) < len(NAMES))
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

    def _model_build(self, name: str, archive: Archive) -> None:
        self.builds += 1
        self.held.pop(name, None)
        if archive.size + ENTRY > self.bound:
            return
        while sum(held.archive.size + ENTRY for held in self.held.values()) > (
            self.bound - archive.size - ENTRY
        ):
            self.held.popitem(last=False)
            self.evictions += 1
        self.held[name] = _Model(archive, self.contents[name], self.versions[name])

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        told = self.cache.statistics()
        assert told.bytes_held == sum(held.archive.size + ENTRY for held in self.held.values())
        assert told.bytes_held <= told.max_bytes
        assert (told.held, told.builds, told.evictions) == (
            len(self.held),
            self.builds,
            self.evictions,
        )
        assert told.hits + told.misses == self.asked
        assert told.tasks_waiting == 0
        names = self.cache._keys  # noqa: SLF001  # there is no other way to see that none is left
        assert {Path(recipe.selection.root).name for recipe in names} == set(self.held)


TestCache = CacheMachine.TestCase
