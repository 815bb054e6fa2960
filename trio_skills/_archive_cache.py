"""Archives that are built once, and held for all who ask.

Who asks waits for a build that is under way, or starts one. A build runs in a worker thread that no
asker owns, so that none takes it with him when he is cancelled; the last one does, and waits until
the thread has ended: so nothing outlives the nurseries of those who asked.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, Literal, TypeAlias, TypeVar, final, get_args

import attrs
import trio

from trio_skills._archive import Archive, Recipe, build_in_memory, digest
from trio_skills._compress import Compression
from trio_skills._errors import forget_locals
from trio_skills._source_tree import Entry
from trio_skills._threads import in_thread
from trio_skills._upload import Packed, Upload, digest_of

T = TypeVar("T")

Refresh: TypeAlias = Literal["never", "stat", "content"]
"""When an archive that is held is built anew: see `ArchiveCache.source_archive`."""

_MAX_NAMES = 100
"""So many ways to ask for one archive are remembered; by another one it is found a little later."""

_ENTRY_SIZE = 400
"""Bytes that what is remembered of one file takes, about: what is held is counted with it."""


@attrs.frozen
class ArchiveCacheStatistics:
    """What an `ArchiveCache` has done, and holds."""

    hits: int
    """How often what was asked for was there, and still right."""
    misses: int
    """How often somebody had to wait for a build, be it one that was under way."""
    builds: int
    """How many builds were begun."""
    evictions: int
    """How many archives were let go of to keep the bound."""
    held: int
    """Archives that are held; one for each packed transfer, too."""
    bytes_held: int
    """Bytes that they take."""
    max_bytes: int
    """The bound of `bytes_held`."""
    tasks_waiting: int
    """Tasks that wait for a build."""


@attrs.frozen(eq=False)
class _Held(Generic[T]):
    """What is in the cache."""

    value: T
    size: int
    """Bytes that it takes."""
    entries: Sequence[Entry] = ()
    """What the tree was when it was built."""
    as_of: float = 0.0
    """When the tree was known to be so, by `time.monotonic`."""
    names: set[Recipe] = attrs.Factory(set)
    """What it was asked for by."""


@attrs.define(eq=False)
class _Build:
    """A build that is under way."""

    run: trio.lowlevel.TrioToken = attrs.Factory(trio.lowlevel.current_trio_token)
    began: float = attrs.Factory(time.monotonic)
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    ended: trio.Event = attrs.Factory(trio.Event)
    askers: int = 0
    is_made: bool = False
    made: Any = None  # Any: whoever asks for it knows what he asks for
    error: Exception | None = None


@final
class ArchiveCache:
    """Makes source archives, each once, and holds them, the least recently used let go of first.

    Make one and share it: all who ask at once wait for one build. Belongs to one Trio run at a
    time; what it holds is there for the next run, too.
    """

    def __init__(self, max_bytes: int = 256 * 2**20) -> None:
        """Hold at most `max_bytes`, with what is remembered of each tree.

        An archive that is larger is made, returned, and not held. Raises `ValueError` for a bound
        under 0.
        """
        if max_bytes < 0:
            raise ValueError("max_bytes is at least 0")
        self._max_bytes = max_bytes
        # Any: under a recipe there is an archive, under a digest a packed transfer.
        self._held: OrderedDict[Hashable, _Held[Any]] = OrderedDict()
        self._keys: dict[Recipe, Recipe] = {}
        """What is held, by what it was asked for: no link needs to be resolved again."""
        self._builds: dict[Hashable, _Build] = {}
        self._bytes_held = self._hits = self._misses = self._begun = self._evictions = 0

    def __repr__(self) -> str:
        return (
            f"<ArchiveCache {len(self._held)} held, {self._bytes_held}/{self._max_bytes} bytes, "
            f"{len(self._builds)} being built>"
        )

    async def source_archive(
        self,
        root: str | os.PathLike[str],
        members: Iterable[str | os.PathLike[str]] | None = None,
        *,
        exclude: Iterable[str] = (),
        compression: Compression = "gzip",
        refresh: Refresh = "never",
        missing_ok: bool = False,
    ) -> Archive:
        """Return the archive of a source tree, made now or before.

        Args:
            root: The folder whose tree it is.
            members: Relative paths of the files and folders that belong to it; all by default.
            exclude: gitignore patterns for what is left out, besides `.git`, `__pycache__`,
                `*.pyc` and `.DS_Store` (`!.git` takes that back in).
            compression: How it is compressed.
            refresh: What is looked at before an archive that is held is returned. `"never"`:
                nothing, so that it is this process's snapshot of the tree. `"stat"`: whether there
                is another member, or one has another size, time, inode or execute bit.
                `"content"`: every byte.
            missing_ok: Whether a member that is not there is left out, rather than refused.

        Links stay links; one that leads out of the tree is refused. Empty folders are kept. The
        time of every member is `SOURCE_DATE_EPOCH` if that is set, else 1980-01-01, the first that
        a zip file can hold.

        Raises:
            ArchiveError: All that is wrong with the tree: a member that is missing, a link that
                leads out of it, a FIFO, a name that is not UTF-8.
            SourceChangedError: A file changed while the archive was made. An archive is what the
                whole tree was at one moment, or is not made. (On a file system that keeps times in
                seconds, a change within the same second goes unnoticed.)
            ValueError: The arguments make no sense.

        **Cancellation:** who is cancelled leaves the others waiting for the same build. When nobody
        waits for it any more it is ended, and the last one waits for that; nothing is held.
        """
        if refresh not in get_args(Refresh):
            raise ValueError(f"refresh is one of {', '.join(get_args(Refresh))}; not {refresh!r}")
        name = Recipe.of(root, members, exclude, compression, missing_ok)
        if refresh == "never":
            key = self._keys.get(name)
            if key is None:  # together, so that all who ask at once come to one build
                key = await self._once(("resolved", name), name.resolved)
            held = await self._get(key, partial(_build, key))
        else:
            key = await in_thread(name.resolved)
            held = await self._refreshed(key, refresh)
        if self._held.get(key) is held:
            self._held.move_to_end(key)
            if len(held.names) < _MAX_NAMES:
                held.names.add(name)
                self._keys[name] = key
        return held.value

    async def packed(self, uploads: Sequence[Upload]) -> Sequence[Upload]:
        """Return the same uploads, read once for all who ask: for the packed transfers of a plan.

        Those that are larger than the bound, or whose digests are not known, come back as they are.
        Raises `OSError` and `SourceChangedError`. **Cancellation:** as for `source_archive`.
        """
        size = sum(upload.size + len(upload.target) + _PACKED_SIZE for upload in uploads)
        if size > self._max_bytes or any(upload.digest is None for upload in uploads):
            await trio.lowlevel.checkpoint()
            return uploads
        key = digest_of(uploads)
        return (await self._get(key, lambda: _Held(_read(uploads), size))).value

    def statistics(self) -> ArchiveCacheStatistics:
        """Return what was done, and what is held."""
        return ArchiveCacheStatistics(
            hits=self._hits,
            misses=self._misses,
            builds=self._begun,
            evictions=self._evictions,
            held=len(self._held),
            bytes_held=self._bytes_held,
            max_bytes=self._max_bytes,
            tasks_waiting=sum(build.askers for build in self._builds.values()),
        )

    async def _refreshed(self, key: Recipe, refresh: Refresh) -> _Held[Archive]:
        """Return an archive of the tree as it is now, or later."""
        asked = time.monotonic()
        while True:
            held: _Held[Archive] | None = self._held.get(key)
            if held is not None:
                if await self._is_unchanged(key, held, refresh, asked):
                    self._hits += 1
                    return held
                if self._held.get(key) is not held:
                    continue  # another one has built it anew in the meantime
            held = await self._built(key, partial(_build, key), asked)
            # A build that was under way may have looked at the tree before this was asked.
            if held.as_of >= asked:
                return held

    async def _is_unchanged(
        self, key: Recipe, held: _Held[Archive], refresh: Refresh, asked: float
    ) -> bool:
        """Look together with whoever asks, but not by a look that began before this was asked."""
        while True:
            look = partial(_look, key, held, refresh)
            began, is_same = await self._once(("look", held, refresh), look, asked)
            if began >= asked:
                return is_same

    async def _get(self, key: Hashable, work: Callable[[], _Held[T]]) -> _Held[T]:
        """Return what is held, or what `work` makes of it."""
        held = self._held.get(key)
        if held is None:
            return await self._built(key, work)
        self._hits += 1
        self._held.move_to_end(key)  # the most recently used
        await trio.lowlevel.checkpoint()
        return held

    async def _built(
        self, key: Hashable, work: Callable[[], _Held[T]], asked: float = -math.inf
    ) -> _Held[T]:
        self._misses += 1
        self._begun += key not in self._builds
        return await self._once(key, work, asked)

    async def _once(self, key: Hashable, work: Callable[[], T], asked: float = -math.inf) -> T:
        """Return what `work` makes in a thread, once for all who ask for the same at the time.

        Raises what it raises, unless that began before `asked`: then what was wrong may be mended.
        """
        build = self._builds.get(key)
        if build is None:
            build = _Build()
            trio.lowlevel.spawn_system_task(self._run, key, build, work)
            self._builds[key] = build  # last: nobody may wait for one that was never begun
        elif build.run != trio.lowlevel.current_trio_token():
            raise RuntimeError("an ArchiveCache belongs to one Trio run at a time")
        build.askers += 1
        try:
            await build.ended.wait()
        finally:
            build.askers -= 1
            if build.askers == 0 and not build.ended.is_set():
                # Who asks from now on must not wait for one that is about to be ended.
                del self._builds[key]
                build.scope.cancel()
                with trio.CancelScope(shield=True):  # as long as reading a piece of a file takes
                    await build.ended.wait()
        if build.error is not None and build.began < asked:
            return await self._once(key, work, asked)
        if build.error is not None:
            # Each asker gets an error of his own: a raised one collects what it went through.
            raise _another(build.error) from build.error
        if not build.is_made:
            raise RuntimeError("the Trio run that the archive was built in has ended")
        made: T = build.made
        return made

    async def _run(  # noqa: ASYNC910  # the thread is one
        self, key: Hashable, build: _Build, work: Callable[[], object]
    ) -> None:
        try:
            with build.scope:
                build.made = await in_thread(work)
                build.is_made = True
        except Exception as exc:  # noqa: BLE001  # it is raised by who asked
            forget_locals(exc)
            build.error = exc
        finally:
            if self._builds.get(key) is build:
                del self._builds[key]
            # Given up, it may still come to its end; by now another one may be newer.
            if isinstance(build.made, _Held) and build.askers:
                self._hold(key, build.made)
            build.ended.set()

    def _hold(self, key: Hashable, held: _Held[Any]) -> None:
        self._forget(key)
        if held.size > self._max_bytes:
            return
        while self._bytes_held + held.size > self._max_bytes:
            self._forget(next(iter(self._held)))
            self._evictions += 1
        self._held[key] = held
        self._bytes_held += held.size

    def _forget(self, key: Hashable) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self._bytes_held -= held.size
            for name in held.names:
                if self._keys.get(name) == key:  # the link that it is may lead elsewhere by now
                    del self._keys[name]


def _build(key: Recipe) -> _Held[Archive]:
    built, archive = build_in_memory(key, trio.from_thread.check_cancelled)
    size = len(archive.data) + sum(_ENTRY_SIZE + len(entry.path) for entry in built.entries)
    return _Held(archive, size, built.entries, built.as_of)


def _another(error: Exception) -> Exception:
    try:
        return copy.copy(error)
    except Exception:  # noqa: BLE001  # a class that cannot be copied: then all share the one
        return error


def _look(key: Recipe, held: _Held[Archive], refresh: Refresh) -> tuple[float, bool]:
    """Return when it was looked, and whether the tree is still what is held."""
    began = time.monotonic()
    check = trio.from_thread.check_cancelled
    if refresh == "stat":
        return began, held.entries == key.selection.read(check)
    return began, held.value.digest == digest(key, check)


_PACKED_SIZE = 2000
"""Bytes that a file of a packed transfer takes besides its content, about."""


def _read(uploads: Sequence[Upload]) -> Packed:
    def read(upload: Upload) -> Upload:
        trio.from_thread.check_cancelled()
        return attrs.evolve(upload, source=upload.read())

    return Packed(map(read, uploads))
