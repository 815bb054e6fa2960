"""Cancelled at any moment, what was there is there, or what was planned; and nothing else is left.

In a container, where each run takes long, every moment is visited while skills travel packed, and
are merged or replaced; of other installs the first twelve are, and then every seventh.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, Self

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.containers import DEST, Inside
from tests.every_checkpoint import Moment, at_work, descriptors, for_every_checkpoint
from tests.services import Engine
from tests.sources import NOTES, archive_of, in_folder, leftovers, make_small
from tests.trees import SKILL_MD, Content, Tree, make_skill, planned_tree, read_tree, write_tree
from trio_skills import (
    Archive,
    ArchiveCache,
    Event,
    Existing,
    InstallEnded,
    Limits,
    Plan,
    Refresh,
    Report,
    Runtime,
    Strategy,
    TransferStarted,
    TransientError,
    Upload,
    install,
    install_sources,
    open_local,
    plan_skills,
    plan_uploads,
)
from trio_skills._runtime import FileState, PackedResult, RunResult, Traits
from trio_skills.runtimes.docker import DockerRuntime, open_docker
from trio_skills.runtimes.local import LocalRuntime
from trio_skills.testing import (
    Call,
    Fault,
    Latency,
    MemoryFile,
    MemoryRuntime,
    PackingMemoryRuntime,
)

OTHER: Tree = {"other/file": (b"not planned", False)}
"""What nobody may touch."""


class Sandbox(Protocol):
    """A sandbox of some kind, which is looked into from outside."""

    is_virtual: bool
    """Whether time is virtual there."""
    is_near: bool
    """Whether no answer is lost there, so that a report says of all that was done that it was."""

    def reset(self, tree: Tree) -> None:
        """Make what is there this, and nothing else."""

    def read(self) -> Tree:
        """Return what is there, with the notes of source archives."""

    def open(self) -> AbstractAsyncContextManager[Runtime]:
        """Open it."""

    def calls(self) -> list[str]:
        """Return what was called since it was opened."""

    def check(self) -> None:
        """Nothing works there any more, and nothing is left of it."""


class Memory:
    """A dictionary, in which calls take their time."""

    is_virtual = is_near = True

    def __init__(self) -> None:
        self.runtime = PackingMemoryRuntime()

    def fault(self, call: Call) -> Fault | None:
        return None

    def reset(self, tree: Tree) -> None:
        self.runtime = PackingMemoryRuntime(latency=Latency(1.0, 0.5, 1.0), faults=self.fault)
        self.runtime.files = {path: MemoryFile(*entry) for path, entry in tree.items()}

    def read(self) -> Tree:
        return {path: (file.data, file.executable) for path, file in self.runtime.files.items()}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Runtime]:
        yield self.runtime

    def calls(self) -> list[str]:
        return [call.method for call in self.runtime.log]

    def check(self) -> None:
        assert self.runtime.in_flight == self.runtime.bytes_in_flight == 0


class Flaky(Memory):
    """Each call has to be made twice."""

    def fault(self, call: Call) -> Fault | None:
        one_like_it = [(c.method, c.targets, c.argv) for c in self.runtime.log].index(
            (call.method, call.targets, call.argv)
        )
        is_first = self.runtime.log[one_like_it] is call
        return Fault(error=TransientError("429 Too Many Requests")) if is_first else None


class Local:
    """A folder of this machine."""

    is_virtual, is_near = False, True

    def __init__(self, root: Path) -> None:
        self.root = root
        self.watched: Watched | None = None

    def reset(self, tree: Tree) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        write_tree(self.root, tree)

    def read(self) -> Tree:
        return read_tree(self.root)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Runtime]:
        async with open_local(self.root) as runtime:
            self.watched = Watched(runtime)
            yield self.watched

    def calls(self) -> list[str]:
        assert self.watched is not None
        return self.watched.calls

    def check(self) -> None:
        assert leftovers(self.root) == []


class Docker(Local):
    """A folder of a container."""

    is_near = False

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self.name = engine, name
        self.inside = Inside.of(engine, name)
        super().__init__(self.inside.root / DEST.removeprefix("/"))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Runtime]:
        async with open_docker(self.name, DEST, host=self.engine.host) as runtime:
            self.watched = Watched(runtime)
            yield self.watched

    def check(self) -> None:
        deadline = time.monotonic() + 10
        while self.inside.are_there():  # what runs there notices that its client has gone
            assert time.monotonic() < deadline
            time.sleep(0.002)
        for folder in ("root", "tmp"):
            assert leftovers(self.inside.root / folder) == []


@attrs.define
class Watched:
    """A runtime that tells what was called."""

    runtime: LocalRuntime | DockerRuntime
    calls: list[str] = attrs.Factory(list)

    @property
    def traits(self) -> Traits:
        return self.runtime.traits

    async def write(self, target: str, data: bytes) -> None:
        self.calls.append("write")
        await self.runtime.write(target, data)

    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        self.calls.append("run")
        return await self.runtime.run(argv, env)

    async def write_many(
        self, uploads: Sequence[Upload], *, folders: Sequence[str], existing: Existing
    ) -> PackedResult:
        self.calls.append("write_many")
        return await self.runtime.write_many(uploads, folders=folders, existing=existing)

    async def extract(self, archive: Archive, target: str) -> int:
        self.calls.append("extract")
        return await self.runtime.extract(archive, target)

    async def inspect(self, targets: Sequence[str]) -> Mapping[str, FileState]:
        self.calls.append("inspect")
        return await self.runtime.inspect(targets)

    async def set_executable(self, targets: Sequence[str]) -> None:
        self.calls.append("set_executable")
        await self.runtime.set_executable(targets)


@pytest.fixture(scope="module")
def container(docker: Engine) -> Iterator[str]:
    with docker.container("busybox") as name:
        yield name


@pytest.fixture
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> Sandbox:
    match request.param:
        case "memory":
            return Memory()
        case "flaky":
            return Flaky()
        case "local":
            return Local(tmp_path / "root")
    return Docker(request.getfixturevalue("docker"), request.getfixturevalue("container"))


DOCKER = pytest.param("docker", marks=pytest.mark.docker)
in_every_sandbox = pytest.mark.parametrize("sandbox", ["memory", "local", DOCKER], indirect=True)
in_a_flaky_sandbox = pytest.mark.parametrize("sandbox", ["flaky"], indirect=True)


def for_every_checkpoint_in(
    sandbox: Sandbox, once: Callable[[Moment], Awaitable[None]], *, skips: bool = False
) -> None:
    first, then_every = (12, 7) if skips and isinstance(sandbox, Docker) else (10_000, 1)
    count = for_every_checkpoint(
        once, is_virtual=sandbox.is_virtual, each_of_first=first, then_every=then_every
    )
    assert count > 10, "it was over before it could be interrupted"


def is_idle(limits: Limits) -> bool:
    now = limits.statistics()
    return now.in_flight == now.bytes_in_flight == now.tasks_waiting == 0


def in_folders(tree: Tree) -> dict[str, Tree]:
    folders: dict[str, Tree] = {}
    for path, entry in tree.items():
        folders.setdefault(path.split("/")[0], {})[path] = entry
    return folders


def check_folders(tree: Tree, before: Tree, after: Tree) -> None:
    """Each skill folder is entirely as it was, or entirely as planned."""
    there, was, planned = in_folders(tree), in_folders(before), in_folders(after)
    assert there.keys() <= planned.keys()
    for name in planned:
        assert there.get(name) in (was.get(name), planned[name])


def check_files(tree: Tree, before: Tree, after: Tree) -> None:
    """Each file is as it was, or as planned; but it becomes executable in the end."""
    files = {path for path, entry in tree.items() if entry != (b"an empty folder", False)}
    assert files <= after.keys()
    for path, (data, executable) in after.items():
        assert tree.get(path) in (before.get(path), (data, executable), (data, False))


class TestInstall:
    @in_every_sandbox
    @pytest.mark.parametrize(
        ("strategy", "existing"),
        [
            ("packed", "merge"),
            ("packed", "replace"),
            ("packed", "error"),
            ("concurrent", "merge"),
        ],
    )
    def test_what_is_there_is_old_or_new(
        self, sandbox: Sandbox, tmp_path: Path, strategy: Strategy, existing: Existing
    ) -> None:
        once = Install.make(sandbox, tmp_path, strategy, existing)
        for_every_checkpoint_in(
            sandbox, once, skips=strategy == "concurrent" or existing == "error"
        )

    @in_every_sandbox
    def test_also_while_it_looks_and_verifies(self, sandbox: Sandbox, tmp_path: Path) -> None:
        once = Install.make(sandbox, tmp_path, "packed", "merge", looks=True)
        for_every_checkpoint_in(sandbox, once, skips=True)

    @in_a_flaky_sandbox
    @pytest.mark.parametrize(
        ("strategy", "existing"),
        [("packed", "merge"), ("packed", "replace"), ("concurrent", "merge")],
    )
    def test_also_while_it_waits_to_try_again(
        self, sandbox: Sandbox, tmp_path: Path, strategy: Strategy, existing: Existing
    ) -> None:
        for_every_checkpoint_in(sandbox, Install.make(sandbox, tmp_path, strategy, existing))


@attrs.frozen
class Install:
    """An install that is interrupted, and then done once more."""

    sandbox: Sandbox
    plan: Plan
    before: Tree
    after: Tree
    strategy: Strategy
    existing: Existing
    looks: bool
    """Whether it skips what is unchanged, and verifies."""

    @classmethod
    def make(
        cls,
        sandbox: Sandbox,
        folder: Path,
        strategy: Strategy,
        existing: Existing,
        *,
        looks: bool = False,
    ) -> Self:
        """One of a new version of a skill, if that may be there, and of another skill."""
        plan = make_plan(folder, in_memory=sandbox.is_virtual)
        before = OTHER if existing == "error" else OTHER | OLD
        after = (before if existing == "merge" else OTHER) | planned_tree(plan)
        return cls(sandbox, plan, before, after, strategy, existing, looks)

    async def __call__(self, moment: Moment) -> None:
        sandbox, limits = self.sandbox, Limits(max_in_flight=2)
        events: list[Event] = []

        def begun() -> tuple[int, int]:
            return len(sandbox.calls()), sum(isinstance(e, TransferStarted) for e in events)

        then: list[tuple[int, int]] = []
        sandbox.reset(self.before)
        async with sandbox.open() as runtime:
            put = partial(
                install,
                self.plan,
                runtime,
                limits=limits,
                verify=self.looks,
                skip_unchanged=self.looks,
            )
            work = partial(
                put, strategy=self.strategy, existing=self.existing, on_event=events.append
            )
            idle, opened = at_work(), len(descriptors())
            was_cancelled = await moment.interrupts(work, then=lambda: then.append(begun()))
            assert not was_cancelled or then == [begun()]
            assert at_work() == idle
            assert is_idle(limits)
            sandbox.check()
            tree = sandbox.read()
            assert was_cancelled or tree == self.after
            check = check_folders if self.strategy == "packed" else check_files
            check(tree, self.before, self.after)
            assert isinstance(events[-1], InstallEnded)
            report = events[-1].report
            self.check_report(report, tree)
            if not was_cancelled:
                assert report.ok
                assert (report.retries > 0) == isinstance(sandbox, Flaky)
                assert bool(report.unchanged) == self.looks

            existing = "merge" if self.existing == "error" else self.existing
            await put(strategy="packed", existing=existing)
            assert sandbox.read() == self.after
            assert is_idle(limits)
            # Connections are kept for the next requests, but no more than were needed at once.
            assert len(descriptors()) - opened <= (self.strategy == "concurrent")
        sandbox.check()

    def check_report(self, report: Report, tree: Tree) -> None:
        """One outcome for each target, and each is true."""
        assert [o.target for o in report.outcomes] == [u.target for u in self.plan.uploads]
        for outcome in report.outcomes:
            target = outcome.target
            if outcome.state == "not reached":
                assert not self.sandbox.is_near or tree.get(target) == self.before.get(target)
            else:
                assert outcome.state in ("written", "unchanged")
                data, executable = self.after[target]
                is_late = target in report.not_executable
                assert tree[target] == (data, executable and not is_late) or (
                    is_late and not self.sandbox.is_near and tree[target] == (data, True)
                )


OLD: Tree = {
    "pdf/SKILL.md": (SKILL_MD.replace(b"{name}", b"pdf"), False),  # as in the new version
    "pdf/go": (b"old", False),
    "pdf/only old": (b"old", True),
}


def make_plan(folder: Path, *, in_memory: bool) -> Plan:
    # The first piece of an archive ends with the large file: cut there, it would look whole.
    files: dict[str, Content] = {
        "a/large": b"x" * 180 * 512,
        "go": (b"new", True),
        "only new": b"new",
    }
    skills = [
        make_skill(folder / "new" / "pdf", files),
        make_skill(folder / "new" / "xlsx", {"a/b/c": b""}),
    ]
    plan = plan_skills(skills)
    if not in_memory:
        return plan
    read = [attrs.evolve(upload, source=upload.read()) for upload in plan.uploads]
    return attrs.evolve(plan, uploads=tuple(read))


class TestOpening:
    @pytest.mark.parametrize("sandbox", ["local", DOCKER], indirect=True)
    def test_a_sandbox_that_is_opened_leaves_nothing_open(
        self, sandbox: Local, tmp_path: Path
    ) -> None:
        plan = make_plan(tmp_path, in_memory=False)

        async def put() -> None:
            async with sandbox.open() as runtime:
                await install(plan, runtime)

        async def once(moment: Moment) -> None:
            sandbox.reset({})
            sandbox.root.rmdir()
            idle = at_work()
            await moment.interrupts(put)
            assert at_work() == idle
            sandbox.check()
            check_folders(sandbox.read(), {}, planned_tree(plan))
            if isinstance(sandbox, Docker):
                return
            assert sandbox.read() or not sandbox.root.exists()

        for_every_checkpoint_in(sandbox, once, skips=True)


class TestWaitingForLimits:
    def test_who_is_cancelled_no_longer_holds_up_who_came_after_him(self) -> None:
        """He waits for so many bytes that the other one must wait behind him."""
        sizes = {"first": 60_000, "waiting": 60_000, "last": 1}
        plans = {name: plan_uploads([Upload.of(name, b"x" * sizes[name])]) for name in sizes}

        async def once(moment: Moment) -> None:
            limits = Limits(max_bytes=100_000)
            slow = {"first": 1000.0, "waiting": 100.0, "last": 100.0}
            there = {name: MemoryRuntime(latency=Latency(slow[name])) for name in plans}
            ended: dict[str, float] = {}
            then: list[tuple[float, int]] = []

            async def put(name: str, after: float = 0.0) -> None:
                await trio.sleep(after)
                await install(plans[name], there[name], limits=limits)
                ended[name] = trio.current_time()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(put, "first")
                await wait_all_tasks_blocked()
                nursery.start_soon(put, "last", 1.0)
                was_cancelled = await moment.interrupts(
                    partial(put, "waiting"),
                    then=lambda: then.append((trio.current_time(), len(there["waiting"].log))),
                )
                assert there["waiting"].in_flight == 0
            assert is_idle(limits)
            if was_cancelled:
                [(when, begun)] = then
                assert len(there["waiting"].log) == begun
                assert (ended["last"] < ended["first"]) == (when < ended["first"])
            else:
                assert ended["first"] < ended["waiting"]
                assert ended["first"] < ended["last"]
            await put("waiting")
            assert all(there[name].files for name in plans)

        assert for_every_checkpoint(once, is_virtual=True) > 10


class TestInstallSources:
    @in_every_sandbox
    def test_what_is_there_is_old_or_new(self, sandbox: Sandbox, tmp_path: Path) -> None:
        for_every_checkpoint_in(sandbox, Sources.make(sandbox, tmp_path), skips=True)

    @in_a_flaky_sandbox
    def test_also_while_it_waits_to_try_again(self, sandbox: Sandbox, tmp_path: Path) -> None:
        for_every_checkpoint_in(sandbox, Sources.make(sandbox, tmp_path))


@attrs.frozen
class Sources:
    """Source archives that are installed, which is interrupted, and then done once more."""

    sandbox: Sandbox
    archives: list[Archive]
    before: Tree
    after: Tree

    @classmethod
    def make(cls, sandbox: Sandbox, folder: Path) -> Self:
        """One of a new version of what is there, and another one."""
        versions = [make_small(folder / version / "pkg", version, 3) for version in ("old", "new")]
        other = make_small(folder / "xyz", "other", 1)
        old, *new = (trio.run(archive_of, root) for root in (*versions, other))
        return cls(
            sandbox,
            new,
            OTHER | with_note(old, versions[0]),
            OTHER | with_note(new[0], versions[1]) | with_note(new[1], other),
        )

    async def __call__(self, moment: Moment) -> None:
        sandbox, limits = self.sandbox, Limits(max_in_flight=1)
        begun: list[int] = []
        sandbox.reset(self.before)
        async with sandbox.open() as runtime:
            put = partial(install_sources, runtime, self.archives, limits=limits)
            idle = at_work()
            was_cancelled = await moment.interrupts(
                put, then=lambda: begun.append(len(sandbox.calls()))
            )
            assert at_work() == idle
            assert is_idle(limits)
            assert not was_cancelled or begun == [len(sandbox.calls())]
            sandbox.check()
            tree = sandbox.read()
            assert was_cancelled or tree == self.after
            folders, was, planned = (in_folders(t) for t in (tree, self.before, self.after))
            notes = folders.pop(NOTES, {})
            for name in ("other", "pkg", "xyz"):
                there, note = folders.pop(name, None), notes.pop(f"{NOTES}/{name}", None)
                [version] = [v for v in (was, planned) if v.get(name) == there][:1]
                assert note in (None, version.get(NOTES, {}).get(f"{NOTES}/{name}"))
            assert not folders
            assert notes in ({}, {NOTES: (b"an empty folder", False)})

            await put()
            assert sandbox.read() == self.after
            assert is_idle(limits)
        sandbox.check()


def with_note(archive: Archive, root: Path) -> Tree:
    """Return what is there when an archive is installed."""
    note = f"{archive.digest}\n".encode()
    return in_folder(archive.name, read_tree(root)) | {f"{NOTES}/{archive.name}": (note, False)}


both_or_one = pytest.mark.parametrize("cancelled", ["both", "one of them"])


class TestArchiveCache:
    @both_or_one
    @pytest.mark.parametrize("held", ["nothing", "the same", "an older one"])
    def test_the_other_one_who_asks_and_the_next_one_get_a_whole_archive(
        self, tmp_path: Path, held: str, cancelled: str
    ) -> None:
        root = make_small(tmp_path / "pkg", "pkg", 2)
        numbers = itertools.count()

        async def once(moment: Moment) -> None:
            cache = ArchiveCache(max_bytes=100_000)
            refresh: Refresh = "never" if held == "nothing" else "stat"
            ask = partial(cache.source_archive, root, refresh=refresh)
            if held != "nothing":
                await ask()
            if held == "an older one":
                (root / "same").write_text(f"by now: {next(numbers)}")
            wanted = await archive_of(root)
            before = cache.statistics().builds
            got: list[Archive] = []

            async def asks() -> None:
                got.append(await ask())

            completed = await at_once(moment, asks, asks, cancelled)
            assert len(got) >= completed
            check_cache(cache)
            builds = cache.statistics().builds
            assert completed < 2 or builds - before == (held != "the same")
            is_held = bool(got) or held == "the same"
            await asks()
            assert all(archive == wanted for archive in got)
            assert cache.statistics().builds == builds or not is_held

        assert for_every_checkpoint(once) > 5

    @both_or_one
    def test_installs_that_share_what_was_read(self, tmp_path: Path, cancelled: str) -> None:
        plan = make_plan(tmp_path, in_memory=False)
        after = planned_tree(plan)

        async def once(moment: Moment) -> None:
            cache, limits = ArchiveCache(max_bytes=200_000), Limits()
            sandboxes = [Memory(), Memory(), Memory()]
            one, two, next_one = [
                partial(install, plan, sandbox.runtime, limits=limits, archives=cache)
                for sandbox in sandboxes
            ]
            completed = await at_once(moment, one, two, cancelled)
            check_cache(cache)
            assert is_idle(limits)
            trees = [sandbox.read() for sandbox in sandboxes]
            assert all(tree in ({}, after) for tree in trees)
            assert trees.count(after) >= completed
            await next_one()
            assert sandboxes[2].read() == after
            assert completed < 2 or cache.statistics().builds == 1

        assert for_every_checkpoint(once) > 5


async def at_once(
    moment: Moment,
    one: Callable[[], Awaitable[object]],
    two: Callable[[], Awaitable[object]],
    cancelled: str,
) -> int:
    """Do both at once, the one of them or both interrupted. Returns how many surely completed."""
    if cancelled == "both":

        async def both() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one)
                nursery.start_soon(two)

        idle = at_work()
        was_cancelled = await moment.interrupts(both)
        assert at_work() == idle
        return 0 if was_cancelled else 2
    async with trio.open_nursery() as nursery:
        nursery.start_soon(two)
        was_cancelled = await moment.interrupts(one)
    return 1 if was_cancelled else 2


def check_cache(cache: ArchiveCache) -> None:
    """Nothing is built, nobody waits for it, and what is held is within its bound."""
    now = cache.statistics()
    assert "0 being built" in repr(cache)
    assert now.tasks_waiting == 0
    assert now.bytes_held <= now.max_bytes
    assert (now.held == 0) == (now.bytes_held == 0)
