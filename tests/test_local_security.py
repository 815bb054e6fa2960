"""Links, hostile archives and whoever swaps folders meanwhile: nothing outside is read or written.

What an attacker would want stands in a folder outside. After each test it is what it was: its
bytes, its modes, and when it was read last.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import pytest

from tests.sources import archive_of, hand_made, member
from tests.trees import make_skill, read_tree, write_tree
from tests.ways import every_strategy
from trio_skills import (
    Archive,
    ArchiveCache,
    ArchiveError,
    ExecRuntime,
    InstallError,
    LocalRuntime,
    Plan,
    PlanError,
    SourceChangedError,
    Strategy,
    find_skills,
    install,
    install_sources,
    open_local,
    plan_skills,
    write_archive,
)
from trio_skills.runtimes._staging import TEMPORARY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="swaps names by renameat2")

CANARY = b"what is outside\n"
LARGE = 3 * 2**20
"""Bytes: more than are held of one file before it is sent on."""
SECONDS = 2.0
"""How long the sources are raced."""


@attrs.frozen
class Outside:
    """A folder that nothing may be written to, and of whose files none may be read."""

    path: Path

    @classmethod
    def make(cls, path: Path, names: Sequence[str]) -> Outside:
        write_tree(path, dict.fromkeys(names, CANARY))
        for file in path.rglob("*"):
            file.chmod(0o755 if file.is_dir() else 0o644)
            os.utime(file, (0, 1))  # so the next time that it is read is noted
        return cls(path)

    def state(self) -> dict[str, tuple[int, ...] | bytes]:
        """Return the modes, the times and the contents of all that is there."""
        state: dict[str, tuple[int, ...] | bytes] = {}
        for path in [self.path, *self.path.rglob("*")]:
            status = path.lstat()
            when_read = 0 if path.is_dir() else status.st_atime_ns
            state[str(path)] = (status.st_mode, status.st_ino, status.st_mtime_ns, when_read)
            if path.is_file():
                file = os.open(path, os.O_RDONLY | os.O_NOATIME)
                state[f"{path} content"] = os.read(file, 2**20)
                os.close(file)
        return state


@contextmanager
def untouched(outside: Outside) -> Iterator[None]:
    before = outside.state()
    yield
    assert outside.state() == before


# Exchanges names, each of them with a link that leads outside, until its input ends. A name with
# a `*` is whatever is called so at that moment. A kind is a link or a hard link.
_SWAPPER = """
import ctypes, glob, os, random, shutil, sys, threading, time
renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
def exchange(one, other):
    return renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2) == 0
def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        try: os.unlink(path)
        except OSError: pass
def pause():
    # Else a busy machine runs it for a while, and then the other one for a while. Who wakes up
    # interrupts the other one, wherever that is.
    if random.random() < 0.7:
        time.sleep(random.random() / 2_000)
def end():
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=end).start()
arguments = sys.argv[1:]
print("ready", flush=True)
while True:
    for kind, place, bait, goal in zip(*[iter(arguments)] * 4):
        for path in glob.glob(place) if "*" in place else [place]:
            make = os.symlink if kind == "link" else os.link
            try:
                remove(bait)
                make(goal, bait)
            except OSError:
                continue
            if exchange(path, bait):
                pause()
                exchange(path, bait)
    pause()
"""


@contextmanager
def swapped(
    places: Mapping[Path, Path], bait: Path, hard: Mapping[Path, Path] = MappingProxyType({})
) -> Iterator[None]:
    """Let another process exchange each place with a link to a goal, and back, all the time."""
    arguments: list[str] = []
    for number, (kind, place, goal) in enumerate(
        [("link", *pair) for pair in places.items()] + [("hard", *pair) for pair in hard.items()]
    ):
        arguments += [kind, str(place), str(bait / str(number)), str(goal)]
    bait.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", _SWAPPER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield
            assert process.poll() is None
        finally:
            process.stdin.close()


FILES = ("SKILL.md", "bin/go", "deep/er/x", *(f"f{number}" for number in range(22)))
SKILLS = ("s0", "s1", "s2", "s3")
CLEAR = (
    "a link is in the way, and links are not followed",
    "Not a directory",
    "No such file or directory",
    "Is a directory",
    "Too many levels of symbolic links",
    "Directory not empty",
    "File exists",
    "the destination is not a folder (a link is none), or cannot be entered",
    "not put there, because other files of its skill failed",
)


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    """A folder with everything that an install would find if it followed a link there."""
    names = [f"{skill}/{name}" for skill in SKILLS for name in FILES]
    sources = ["src/bin/go", "src/x", ".trio-skills.sources/src", "aside/s1/SKILL.md"]
    return Outside.make(tmp_path / "outside", [*names, *sources, "file", "go"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Four skills of 25 files, for the folder `dest`."""
    contents = {name: (f"planned {name}\n".encode(), name == "bin/go") for name in FILES[1:]}
    return plan_skills([make_skill(tmp_path / "skills" / s, contents) for s in SKILLS], "dest")


class TestTenThousandWrites:
    """While every place of the destination is exchanged with a link, as fast as can be."""

    @pytest.fixture
    def places(self, root: Path, outside: Outside) -> dict[Path, Path]:
        at, to = root / "dest", outside.path
        names = ("s0", "s0/deep", "s1/bin", "s2/SKILL.md", "s2/deep/er", "src")
        return {
            at: to,
            **{at / name: to / name for name in (*names, ".trio-skills.sources")},
            at / f"{TEMPORARY}*" / "new": to,
            at / f"{TEMPORARY}*" / "aside": to,
        }

    async def test_never_leave_the_root(
        self, tmp_path: Path, root: Path, plan: Plan, outside: Outside, places: dict[Path, Path]
    ) -> None:
        source = tmp_path / "src"
        write_tree(source, {"bin/go": (b"from the archive", True), "x": b"from the archive"})
        race = Race(plan, await archive_of(source))
        with untouched(outside):
            async with open_local(root) as runtime:
                await race.install(runtime)
                with swapped(places, tmp_path / "bait"):
                    await race.run(runtime, 10_000)
        assert race.was_one
        assert race.unclear == set()

    async def test_never_change_a_file_with_another_name_outside(
        self, tmp_path: Path, root: Path, plan: Plan, outside: Outside
    ) -> None:
        """A name of the destination is exchanged with a hard link, before its bit is set, too."""
        goal = outside.path / "go"
        goal.write_bytes(b"1")
        before = (goal.stat().st_mode, goal.stat().st_mtime_ns)
        race = Race(plan, None)
        async with open_local(root) as runtime:
            await race.install(runtime)
            hard = {root / "dest" / skill / "bin" / "go": goal for skill in SKILLS}
            with swapped({}, tmp_path / "bait", hard):
                while race.ended["written"] < 3_000:
                    await race.round(runtime)
                    await race.try_to_set(runtime, 10)
        assert (goal.stat().st_mode, goal.stat().st_mtime_ns) == before


@attrs.define
class Race:
    """Installs, one after another, in all their ways, and how each file ended."""

    plan: Plan
    archive: Archive | None
    strategies: Iterator[Strategy] = attrs.Factory(
        lambda: itertools.cycle(["sequential", "batched", "concurrent"])
    )
    ended: Counter[str] = attrs.Factory(Counter)
    unclear: set[str] = attrs.Factory(set)
    """What was said of a failure that does not tell what it was."""

    @property
    def was_one(self) -> bool:
        """Whether every way of writing went well at times, and failed for a link at times."""
        ways = ["install", "write", "extract", "set_executable", "inspect"]
        return all(self.ended[f"{way} {end}"] for way in ways for end in ("well", "link"))

    async def run(self, runtime: LocalRuntime, written: int) -> None:
        """Until so many files were written; a few times as many, where nothing was raced."""
        while self.ended["written"] < (written if self.was_one else 6 * written):
            await self.round(runtime)
            await self.try_to_set(runtime, 10)

    async def try_to_set(self, runtime: LocalRuntime, times: int) -> None:
        for name in ["s2/SKILL.md", *(f"{skill}/bin/go" for skill in SKILLS)] * times:
            set_executable = runtime.set_executable
            await self.attempt("set_executable", set_executable, [f"dest/{name}"])

    async def round(self, runtime: LocalRuntime) -> None:
        targets = [upload.target for upload in self.plan.uploads]
        for existing in ("merge", "replace"):
            for _ in range(3):
                await self.install(runtime, existing=existing)
        await self.install(runtime, strategy=next(self.strategies))
        for target in targets[::25]:
            await self.attempt("write", runtime.write, target, b"written")
        if self.archive is not None:
            await self.attempt("extract", runtime.extract, self.archive, "dest/src")
        states = (await runtime.inspect(targets)).values()
        assert hashlib.sha256(CANARY).hexdigest() not in {state.digest for state in states}
        self.ended["inspect link"] += any(state.kind == "other" for state in states)
        self.ended["inspect well"] += any(state.kind == "file" for state in states)

    async def install(self, runtime: LocalRuntime, **options: Any) -> None:  # Any: of `install`
        try:
            report = await install(self.plan, runtime, **options)
        except InstallError as exc:
            report = exc.report
            for error in exc.exceptions:
                self.note("install", str(error).partition(": ")[2])
        except PlanError as exc:
            self.note("install", exc.problems[0].message)
            return
        self.ended["install well"] += report.ok
        self.ended["written"] += len(report.written)

    async def attempt(self, way: str, function: Callable[..., Any], *arguments: object) -> None:
        try:
            await function(*arguments)
        except OSError as exc:
            self.note(way, str(exc.strerror))
        else:
            self.ended[f"{way} well"] += 1

    def note(self, way: str, reason: str) -> None:
        self.ended[f"{way} link"] += "link" in reason
        self.unclear |= {reason} - {*CLEAR}


class TestPlacedLinks:
    """A link, or a hard link, that was there before: it is replaced or refused, never followed."""

    @pytest.mark.parametrize(
        "place",
        ["", "s0", "s0/bin", "s0/deep/er", "s0/bin/go", "s1/SKILL.md", ".trio-skills.sources"],
    )
    @every_strategy
    async def test_in_the_destination(
        self, root: Path, plan: Plan, outside: Outside, strategy: Strategy, place: str
    ) -> None:
        (root / "dest" / place).parent.mkdir(parents=True, exist_ok=True)
        (root / "dest" / place).symlink_to(outside.path / place)
        targets = [upload.target for upload in plan.uploads]

        async def look(runtime: LocalRuntime) -> None:
            states = (await runtime.inspect(targets)).values()
            assert hashlib.sha256(CANARY).hexdigest() not in {state.digest for state in states}
            for target in targets:
                with suppress(OSError):
                    await runtime.set_executable([target])

        with untouched(outside):
            async with open_local(root) as runtime:
                await look(runtime)
                for existing in ("merge", "replace") if strategy == "packed" else ("merge",):
                    with suppress(InstallError, PlanError):
                        await install(plan, runtime, strategy=strategy, existing=existing)
                await look(runtime)

    @every_strategy
    async def test_hard_links_to_a_file_outside_are_replaced(
        self, root: Path, plan: Plan, outside: Outside, strategy: Strategy
    ) -> None:
        for upload in plan.uploads:
            place = root / upload.target
            place.parent.mkdir(parents=True, exist_ok=True)
            place.hardlink_to(outside.path / "go")
        with untouched(outside):
            async with open_local(root) as runtime:
                await install(plan, runtime, strategy=strategy)
        assert (root / "dest/s0/bin/go").stat().st_nlink == 1

    async def test_a_file_with_another_name_outside_is_not_made_executable(
        self, root: Path, outside: Outside
    ) -> None:
        (root / "x").hardlink_to(outside.path / "go")
        with untouched(outside):
            async with open_local(root) as runtime:
                with suppress(OSError):
                    await runtime.set_executable(["x"])

    @pytest.mark.parametrize("inside", ["", "aside", "new", "aside/s1", "0"])
    async def test_in_what_looks_like_a_killed_installs_workspace(
        self, root: Path, plan: Plan, outside: Outside, inside: str
    ) -> None:
        """Which is put back and removed: the link goes, or moves, and what it leads to stays."""
        place = root / "dest" / f"{TEMPORARY}0123456789abcdef" / inside
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(outside.path)
        with untouched(outside):
            async with open_local(root) as runtime:
                with suppress(InstallError):
                    await install(plan, runtime)
                await install(plan, runtime, existing="replace")

    @pytest.mark.parametrize("place", ["src", ".trio-skills.sources", ".trio-skills.sources/src"])
    async def test_where_an_archive_is_unpacked(
        self, tmp_path: Path, root: Path, outside: Outside, place: str
    ) -> None:
        """And a note that a link leads to is none: it would be believed."""
        write_tree(tmp_path / "src", {"x": b"new"})
        archive = await archive_of(tmp_path / "src")
        (outside.path / ".trio-skills.sources" / "src").write_text(f"{archive.digest}\n")
        (root / place).parent.mkdir(exist_ok=True)
        (root / place).symlink_to(outside.path / place)
        with untouched(outside):
            async with open_local(root) as runtime:
                with suppress(InstallError):
                    report = await install_sources(runtime, [archive])
                    assert len(report.written) == 1
                    assert (root / "src" / "x").read_bytes() == b"new"

    async def test_above_a_root_that_is_removed_in_the_end(self, tmp_path: Path) -> None:
        """An empty folder of that name, where the link leads to, is not ours."""
        (tmp_path / "outside" / "root").mkdir(parents=True)
        async with open_local(tmp_path / "made" / "root"):
            (tmp_path / "made").rename(tmp_path / "elsewhere")
            (tmp_path / "made").symlink_to(tmp_path / "outside")
        assert (tmp_path / "outside" / "root").is_dir()

    @pytest.mark.parametrize("target", ["../x", "a/../../x", "/../x", "a/..", "..", "a\0b"])
    async def test_a_target_that_leads_out_is_refused(
        self, tmp_path: Path, root: Path, target: str
    ) -> None:
        """Also by the runtime itself, whoever calls it."""
        async with open_local(root) as runtime:
            with pytest.raises(ValueError, match="beneath a root"):
                await runtime.write(target, b"")
            with pytest.raises(ValueError, match="beneath a root"):
                await runtime.inspect([target])
            with pytest.raises(ValueError, match="beneath a root"):
                await runtime.set_executable([target])
        assert not (tmp_path / "x").exists()


HOSTILE_ARCHIVES = {
    "a name that leads up": [member("../x")],
    "a name that leads up later": [member("a/../../x")],
    "an absolute name": [member("/tmp/x")],
    "a file through a link": [member("a", tarfile.SYMTYPE, "../../outside"), member("a/file")],
    "a file through an absolute link": [member("a", tarfile.SYMTYPE, "/"), member("a/x")],
    "a file through a link to the root itself": [
        member("a", tarfile.SYMTYPE, "."),
        member("a/x"),
    ],
    "a file in place of a link": [member("a", tarfile.SYMTYPE, "b"), member("a")],
    "a link that leads up after a name": [member("b/a", tarfile.SYMTYPE, "c/../../../outside")],
    "a link that leads up through a link": [
        member("d/e", tarfile.SYMTYPE, ".."),
        member("d/f", tarfile.SYMTYPE, "e/../../outside/file"),
    ],
    "a hard link": [member("a", tarfile.LNKTYPE, "../outside/file")],
    "a hard link within": [member("b"), member("a", tarfile.LNKTYPE, "b")],
    "a device": [member("a", tarfile.CHRTYPE)],
    "a FIFO": [member("a", tarfile.FIFOTYPE)],
    "a file twice": [member("a"), member("a")],
    "a file where a folder is": [member("a/b"), member("a")],
    "a folder where a file is": [member("a"), member("a/b")],
    "a folder where a link is": [member("a", tarfile.SYMTYPE, "b"), member("a", tarfile.DIRTYPE)],
    "a name of nothing": [member("./")],
    "a name that is too long": [member("n" * 256)],
}


class TestHostileArchives:
    """Whatever is in it: the folder appears whole and within the root, or not at all."""

    @pytest.mark.parametrize("what", HOSTILE_ARCHIVES)
    async def test_are_refused_and_leave_nothing(
        self, root: Path, outside: Outside, what: str
    ) -> None:
        evil = hand_made("src", HOSTILE_ARCHIVES[what])
        write_tree(root, {"src/mine": b"kept"})
        with untouched(outside):
            async with open_local(root) as runtime:
                with pytest.raises(InstallError):
                    await install_sources(runtime, [evil])
        assert {path.split("/")[0] for path in read_tree(root)} == {"src"}
        assert read_tree(root / "src") == {"mine": (b"kept", False)}
        assert sorted(os.listdir(root.parent)) == ["outside", "root"]
        assert not os.path.lexists("/tmp/x")

    @pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/", ".trio-skills.sources", "a\0"])
    async def test_a_name_that_leads_elsewhere_is_refused(
        self, tmp_path: Path, root: Path, name: str
    ) -> None:
        archive = attrs.evolve(hand_made("src", [member("x")]), name=name)
        async with open_local(root) as runtime:
            with pytest.raises(PlanError):
                await install_sources(runtime, [archive])
            with pytest.raises(PlanError):
                await install_sources(runtime, {name: archive})
        assert os.listdir(tmp_path) in (["root"], [])

    async def test_links_that_stay_inside_are_never_followed_afterwards(
        self, root: Path, plan: Plan
    ) -> None:
        """An archive lays a link within its own tree: nothing is installed through it."""
        link = hand_made("dest", [member("s0", tarfile.SYMTYPE, "real"), member("real/x")])
        async with open_local(root) as runtime:
            await install_sources(runtime, [link])
            with pytest.raises(InstallError, match="links are not followed"):
                await install(plan, runtime)
        assert os.listdir(root / "dest" / "real") == ["x"]


class TestSources:
    """Of the sources, what a link leads to outside is neither read nor looked at."""

    @pytest.fixture
    def skill(self, tmp_path: Path) -> Path:
        """A skill whose files are as long as those outside, so that only content tells."""
        names = [f"docs/{number}" for number in range(5)]
        return make_skill(tmp_path / "skill", dict.fromkeys(names, b"x" * len(CANARY)))

    @pytest.fixture
    def docs(self, tmp_path: Path) -> Outside:
        return Outside.make(tmp_path / "docs", [f"{number}" for number in range(5)])

    @every_strategy
    @pytest.mark.parametrize("kind", ["local", "exec"])
    async def test_a_folder_that_became_a_link_after_planning_is_not_read(
        self, root: Path, skill: Path, docs: Outside, strategy: Strategy, kind: str
    ) -> None:
        plan = plan_skills([skill])
        (skill / "docs").rename(skill / "before")
        (skill / "docs").symlink_to(docs.path)
        (root / "exec").mkdir()
        async with open_local(root / "local") as local:
            by_command = ExecRuntime(("env",), str(root / "exec"))
            runtime = local if kind == "local" else by_command
            with untouched(docs), pytest.raises(InstallError) as caught:
                await install(plan, runtime, strategy=strategy)
        assert len(caught.value.exceptions) == 5
        written = set(read_tree(root / kind))
        assert written <= {"skill/SKILL.md", "skill/docs"}  # that one is empty

    async def test_nor_sent_piece_by_piece_where_it_is_large(
        self, tmp_path: Path, root: Path
    ) -> None:
        """Else the sandbox would have it, and learn only afterwards that it was wrong."""
        skill = make_skill(tmp_path / "skill", {"docs/x": b"x" * LARGE})
        write_tree(tmp_path / "docs", {"x": CANARY * (LARGE // len(CANARY))})
        plan = plan_skills([skill])
        (skill / "docs").rename(skill / "before")
        (skill / "docs").symlink_to(tmp_path / "docs")
        heard = tmp_path / "heard"
        listening = ("sh", "-c", f'tee -a {heard} | "$@"', "sh")
        with pytest.raises(InstallError):
            await install(plan, ExecRuntime(listening, str(root)))
        assert b"name: skill" in heard.read_bytes()
        assert CANARY not in heard.read_bytes()

    def test_a_skill_whose_folder_is_exchanged_while_it_is_planned_and_read(
        self, tmp_path: Path, skill: Path, docs: Outside
    ) -> None:
        expected = {hashlib.sha256(b"x" * len(CANARY)).hexdigest()}
        ended: Counter[str] = Counter()
        read: list[bytes] = []
        places = {skill / "docs": docs.path, skill / "docs" / "3": docs.path / "3"}
        with untouched(docs), swapped(places, tmp_path / "bait"):
            for _ in while_raced(ended, "planned", "refused", "read", "unread"):
                try:
                    plan = plan_skills([skill])
                except PlanError:
                    ended["refused"] += 1
                    continue
                ended["planned"] += 1
                uploads = [upload for upload in plan.uploads if "/docs/" in upload.target]
                assert {upload.digest for upload in uploads} <= expected
                for upload in uploads:
                    try:
                        with closing(upload.chunks()) as chunks:
                            read.extend(chunks)
                        read.append(upload.read())
                        ended["read"] += 1
                    except (OSError, SourceChangedError):
                        ended["unread"] += 1
        assert set(read) == {b"x" * len(CANARY)}

    async def test_a_tree_whose_folder_is_exchanged_while_it_is_archived(
        self, tmp_path: Path, skill: Path, docs: Outside
    ) -> None:
        cache = ArchiveCache()
        ended: Counter[str] = Counter()
        file = tmp_path / "archive"
        places = {skill / "docs": docs.path}
        with untouched(docs), swapped(places, tmp_path / "bait"):
            for number in while_raced(ended, "made", "refused"):
                try:
                    if number % 2:
                        await write_archive(skill, file, compression="none")
                        data = file.read_bytes()
                    else:
                        archive = await cache.source_archive(
                            skill, compression="none", refresh="content"
                        )
                        data = archive.data
                except (ArchiveError, SourceChangedError):
                    ended["refused"] += 1
                    continue
                ended["made"] += 1
                assert CANARY not in data

    async def test_a_skill_whose_folder_is_exchanged_while_it_is_installed(
        self, tmp_path: Path, root: Path, skill: Path, docs: Outside
    ) -> None:
        """By a command, whose input another one hears: what was sent before an error counts."""
        plan = plan_skills([skill])
        heard = tmp_path / "heard"
        listening = ExecRuntime(("sh", "-c", f'tee -a {heard} | "$@"', "sh"), str(root / "exec"))
        (root / "exec").mkdir()
        ended: Counter[str] = Counter()
        with untouched(docs), swapped({skill / "docs": docs.path}, tmp_path / "bait"):
            async with open_local(root / "local") as local:
                for number in while_raced(ended, "well", "failed"):
                    try:
                        await install(plan, local if number % 4 else listening)
                        ended["well"] += 1
                    except InstallError:
                        ended["failed"] += 1
                    for path, (data, _) in read_tree(root).items():
                        assert data != CANARY, path
        assert CANARY not in heard.read_bytes()

    @pytest.mark.parametrize("name", ["SKILL.md", "x", "docs"])
    def test_links_out_of_a_skill_are_refused_unread(
        self, skill: Path, docs: Outside, name: str
    ) -> None:
        with suppress(OSError):
            (skill / name).unlink()
        (skill / ("more" if name == "docs" else name)).symlink_to(
            docs.path if name == "docs" else docs.path / "0"
        )
        with untouched(docs), pytest.raises(PlanError, match="leaves the skill"):
            plan_skills([skill])

    def test_a_collection_does_not_lead_to_a_skill_outside(
        self, tmp_path: Path, skill: Path
    ) -> None:
        (tmp_path / "collection").mkdir()
        (tmp_path / "collection" / "skill").symlink_to(skill)
        with pytest.raises(PlanError, match="link leaves"):
            find_skills(tmp_path / "collection")


def while_raced(ended: Counter[str], *ends: str) -> Iterator[int]:
    """Count, for some time at least, and until things have ended in every way."""
    until = time.monotonic() + SECONDS
    for number in itertools.count():
        yield number
        if time.monotonic() >= until and all(ended[end] for end in ends):
            return
