"""The conformance suite: our own runtimes pass it, and whatever breaks a promise does not."""

from __future__ import annotations

import copy
import io
import os
import pickle
import re
import secrets
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, get_args

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

import trio_skills.testing
from property_tests.source_trees import SourceTree as TreeOnDisk
from property_tests.source_trees import read_members
from tests.services import Engine, SshServer
from tests.test_packing import Folder
from trio_skills import (
    Archive,
    Compression,
    ExecRuntime,
    Existing,
    FileState,
    PackedResult,
    Packing,
    RunResult,
    Runtime,
    Traits,
    Upload,
    install_sources,
    open_local,
    open_ssh,
)
from trio_skills._archive import Recipe, build_in_memory
from trio_skills._compress import decompressed
from trio_skills.runtimes.docker import open_docker
from trio_skills.testing import (
    CHECKS,
    BrokenPromiseError,
    Call,
    Check,
    ConformanceError,
    Factory,
    Fault,
    MemoryFile,
    MemoryRuntime,
    PackingMemoryRuntime,
    check_runtime,
)
from trio_skills.testing.strategies import SourceTree, archives, source_trees


@attrs.define
class Own(Folder):
    """The folder as its owner would mend it: a write is a new file, whole or not there."""

    async def write(self, target: str, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        path = self.root / target
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(secrets.token_hex(8))
        temporary.write_bytes(data)
        temporary.rename(path)


@asynccontextmanager
async def opened(kind: Callable[[], Runtime]) -> AsyncIterator[Runtime]:
    """Open a sandbox that is an object."""
    await trio.lowlevel.checkpoint()
    yield kind()


@asynccontextmanager
async def in_folder(kind: Callable[[Path], Runtime]) -> AsyncIterator[Runtime]:
    """Open a sandbox that is a folder of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        await trio.lowlevel.checkpoint()
        yield kind(Path(folder))


@asynccontextmanager
async def local() -> AsyncIterator[Runtime]:
    with tempfile.TemporaryDirectory() as folder:
        async with open_local(folder) as runtime:
            yield runtime


OURS: dict[str, Factory] = {
    "memory": partial(opened, MemoryRuntime),
    "packing memory": partial(opened, PackingMemoryRuntime),
    "local": local,
    "packing": partial(in_folder, lambda folder: Packing(Own(folder))),
    "exec": partial(in_folder, lambda folder: ExecRuntime(("env",), str(folder))),
    "two methods": partial(in_folder, Own),
}
PACKED = {
    "replacing_leaves_the_plan_alone",
    "of_many_only_what_fails_is_blamed",
    "a_folder_of_which_a_file_fails_stays_as_it_was",
    "of_many_a_folder_that_is_there_is_refused_alone",
    "cancelled_many_leave_a_folder_as_it_was_or_as_planned",
}
SHELL = {
    "a_command_says_how_it_ended",
    "arguments_arrive_unchanged",
    "the_environment_arrives_unchanged",
    "a_command_runs_in_the_folder_of_relative_targets",
    "a_cancelled_command_is_gone",
    "a_link_is_neither_file_nor_folder",
}
SOURCES = {
    "a_source_archive_becomes_a_folder",
    "a_source_archive_that_is_there_is_left_alone",
    "a_cancelled_source_archive_leaves_the_old_folder_or_the_new_one",
}
NOT_PROMISED = {
    "memory": PACKED | SHELL | SOURCES,
    "packing memory": SHELL,
    "two methods": PACKED | {"what_it_says_of_itself_makes_sense"},
}
BY_NAME = {check.name: check for check in CHECKS}


class TestOurRuntimes:
    @pytest.mark.parametrize("check", CHECKS, ids=str)
    @pytest.mark.parametrize("name", OURS)
    async def test_keep_what_they_promise(self, check: Check, name: str) -> None:
        is_promised = check.name not in NOT_PROMISED.get(name, ())
        assert await check(OURS[name]) is is_promised

    @pytest.mark.ssh
    async def test_ssh(self, ssh: SshServer, tmp_path: Path) -> None:
        """One connection for all: whatever is cancelled over it, the next call goes well."""
        async with open_ssh(f"{ssh.user}@127.0.0.1", port=ssh.port, command=ssh.command) as opened:

            @asynccontextmanager
            async def factory() -> AsyncIterator[Runtime]:
                await trio.lowlevel.checkpoint()
                runtime = copy.copy(opened)
                runtime._path = f"{tmp_path}/{secrets.token_hex(8)}"
                yield runtime

            await check_runtime(factory)

    @pytest.mark.docker
    async def test_docker(self, docker: Engine) -> None:
        with docker.container("busybox") as name:

            @asynccontextmanager
            async def factory() -> AsyncIterator[Runtime]:
                folder = f"/root/{secrets.token_hex(8)}"
                async with open_docker(name, folder, host=docker.host) as runtime:
                    yield runtime

            await check_runtime(factory)


# -- runtimes that break a promise


@attrs.define
class StoresHalf(Own):
    async def write(self, target: str, data: bytes) -> None:
        await super().write(target, data[: len(data) // 2])


@attrs.define
class WritesText(Own):
    async def write(self, target: str, data: bytes) -> None:
        await super().write(target, data.replace(b"\r\n", b"\n"))


@attrs.define
class MakesOneFolder(Own):
    async def write(self, target: str, data: bytes) -> None:
        path = self.root / target
        path.parent.mkdir(exist_ok=True)
        await super().write(target, data)


@attrs.define
class EmptiesFolders(Own):
    async def write(self, target: str, data: bytes) -> None:
        for path in (self.root / target).parent.glob("*"):
            if path.is_file():
                path.unlink()
        await super().write(target, data)


@attrs.define
class LosesNewlines(Own):
    async def write(self, target: str, data: bytes) -> None:
        await super().write(target.replace("\n", ""), data)


@attrs.define
class LongTemporaryNames(Own):
    async def write(self, target: str, data: bytes) -> None:
        await super().write(f"{target}.tmp", data)
        (self.root / f"{target}.tmp").rename(self.root / target)


@attrs.define
class StripsNames(Own):
    """Takes what it writes and what it looks for by the same wrong name."""

    async def write(self, target: str, data: bytes) -> None:
        await super().write(self.wrong(target), data)

    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        return await super().run([self.wrong(word) for word in argv], env)

    async def inspect(self, targets: Sequence[str]) -> Mapping[str, FileState]:
        await trio.lowlevel.checkpoint()
        return {target: look(self.root / self.wrong(target)) for target in targets}

    @staticmethod
    def wrong(target: str) -> str:
        return "/".join(part.strip() or part for part in target.split("/"))


@attrs.define
class WritesOver(Own):
    """Leaves the end of an old file that was longer."""

    async def write(self, target: str, data: bytes) -> None:
        path = self.root / target
        rest = path.read_bytes()[len(data) :] if path.is_file() else b""
        await super().write(target, data + rest)


@attrs.define
class CallsFailuresSuccess(Own):
    async def write(self, target: str, data: bytes) -> None:
        with suppress(OSError):
            await super().write(target, data)


@attrs.define
class MakesRoom(Own):
    """A file that is in the way of a folder goes."""

    async def write(self, target: str, data: bytes) -> None:
        above = (self.root / target).parent
        if above.is_file():
            above.unlink()
        await super().write(target, data)


@attrs.define
class WritesInPieces(Own):
    async def write(self, target: str, data: bytes) -> None:
        path = self.root / target
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for start in range(0, len(data), 100_000):
                await trio.lowlevel.checkpoint()
                file.write(data[start : start + 100_000])


@attrs.define
class SwallowsCancelled(Own):
    async def write(self, target: str, data: bytes) -> None:
        with suppress(trio.Cancelled):
            await super().write(target, data)


@attrs.define
class RenamesCancelled(Own):
    async def write(self, target: str, data: bytes) -> None:
        try:
            await super().write(target, data)
        except trio.Cancelled as exc:
            raise OSError("interrupted") from exc


@attrs.define
class WritesLater(Own):
    """Cancelled, it leaves the server at work, which writes when something else was written."""

    late: dict[str, bytes] = attrs.Factory(dict)

    async def write(self, target: str, data: bytes) -> None:
        if target not in self.late:
            self.late[target] = data
        await super().write(target, data)
        if self.late[target] == data:
            del self.late[target]
        else:
            await super().write(target, self.late.pop(target))


@attrs.define
class TooManyRequests(Own):
    """More than ten at once get a 429, which it takes for a success."""

    at_once: int = 0

    async def write(self, target: str, data: bytes) -> None:
        self.at_once += 1
        try:
            has_too_many = self.at_once > 10
            await trio.testing.wait_all_tasks_blocked()  # its answers come when all have asked
            if not has_too_many:
                await super().write(target, data)
        finally:
            self.at_once -= 1


@attrs.define
class BearsLess(TooManyRequests):
    """Says that it bears twenty at once, and bears ten."""

    traits = Traits(max_in_flight=20)

    async def write(self, target: str, data: bytes) -> None:
        if self.at_once >= 10:
            raise ConnectionRefusedError("too many connections")
        await super().write(target, data)


@attrs.define
class OneTemporaryName(Own):
    async def write(self, target: str, data: bytes) -> None:
        path = self.root / target
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.root / "temporary"
        with temporary.open("ab") as file:
            for start in range(0, len(data), 50_000):
                await trio.lowlevel.checkpoint()
                file.write(data[start : start + 50_000])
                file.flush()
        if temporary.exists():
            temporary.rename(path)


@attrs.define
class ExitCodeZero(Own):
    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        try:
            return attrs.evolve(await super().run(argv, env), exit_code=0)
        except FileNotFoundError:
            return RunResult(0, stderr=b"not found")


@attrs.define
class OneStream(Own):
    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        ended = await super().run(argv, env)
        return RunResult(ended.exit_code, ended.stdout + ended.stderr)


@attrs.define
class StripsOutput(Own):
    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        ended = await super().run(argv, env)
        return RunResult(ended.exit_code, ended.stdout.strip() + b"\n", ended.stderr)


@attrs.define
class JoinsWords(Own):
    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        if argv[:2] == ["sh", "-c"] or tuple(argv[:2]) == ("sh", "-c"):
            argv = [*argv[:4], *" ".join(argv[4:]).split()]
        return await super().run(argv, env)


@attrs.define
class DropsEnvironment(Own):
    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        return await super().run(argv, {})


@attrs.define
class RunsElsewhere(Own):
    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        return await super().run(["env", "-C", "/", *argv], env)


@attrs.define
class LeavesCommands(Own):
    """Ends the client of a command, and not the command."""

    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        script = '"$@" & wait $!'
        return await super().run(["sh", "-c", script, "sh", *argv], env)


@attrs.define
class ReturnsWhenCancelled(Own):
    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        try:
            return await super().run(argv, env)
        except trio.Cancelled:
            return RunResult(1)
        except BaseExceptionGroup:  # what a cancelled `run_process` raises
            return RunResult(1)


def look(path: Path) -> FileState:
    """Return what is at a path, or where a link leads."""
    if path.is_file():
        digest = sha256(path.read_bytes()).hexdigest()
        return FileState("file", digest, bool(path.stat().st_mode & 0o100))
    return FileState("folder" if path.is_dir() else "missing")


@attrs.define
class FollowsLinks(Own):
    async def inspect(self, targets: Sequence[str]) -> Mapping[str, FileState]:
        await trio.lowlevel.checkpoint()
        return {target: look(self.root / target) for target in targets}


@attrs.define
class RemembersWhatItSaw(FollowsLinks):
    seen: dict[str, FileState] = attrs.Factory(dict)

    async def inspect(self, targets: Sequence[str]) -> Mapping[str, FileState]:
        return {t: self.seen.setdefault(t, s) for t, s in (await super().inspect(targets)).items()}


@attrs.define
class SeesNoDigest(FollowsLinks):
    async def inspect(self, targets: Sequence[str]) -> Mapping[str, FileState]:
        found = await super().inspect(targets)
        return {target: attrs.evolve(state, digest=None) for target, state in found.items()}


@attrs.define
class SeesNothing(FollowsLinks):
    async def inspect(self, targets: Sequence[str]) -> Mapping[str, FileState]:
        await trio.lowlevel.checkpoint()
        return dict.fromkeys(targets, FileState("missing"))


@attrs.define
class SetsAllBits(Own):
    async def set_executable(self, targets: Sequence[str]) -> None:
        await trio.lowlevel.checkpoint()
        for target in targets:
            for path in (self.root / target).parent.iterdir():
                path.chmod(0o755)


@attrs.define
class ForgivesMissingFiles(Own):
    async def set_executable(self, targets: Sequence[str]) -> None:
        await trio.lowlevel.checkpoint()
        for target in targets:
            if (self.root / target).exists():
                (self.root / target).chmod(0o755)


@attrs.define
class ForgivesOneMissingFile(ForgivesMissingFiles):
    async def set_executable(self, targets: Sequence[str]) -> None:
        if not any((self.root / target).exists() for target in targets):
            raise FileNotFoundError("none is there")
        await super().set_executable(targets)


@attrs.define
class SetsNoBits(Own):
    async def set_executable(self, targets: Sequence[str]) -> None:
        await trio.lowlevel.checkpoint()


@attrs.define
class TraitsOfItsOwn(Own):
    traits: ClassVar = {"max_in_flight": 8}


@attrs.define
class ImpossibleTraits(Own):
    traits = Traits(max_batch_files=0)


@attrs.define
class TwoFaults(ForgivesMissingFiles):
    traits: ClassVar = "none"


class Altered(PackingMemoryRuntime):
    """Packs with other arguments than it was given, or returns something else."""

    async def write_many(
        self, uploads: Sequence[Upload], *, folders: Sequence[str], existing: Existing
    ) -> PackedResult:
        uploads, existing = self.before(uploads, existing)
        result = await super().write_many(uploads, folders=folders, existing=existing)
        return PackedResult(self.after(list(result.errors)))

    def before(
        self, uploads: Sequence[Upload], existing: Existing
    ) -> tuple[Sequence[Upload], Existing]:
        return uploads, existing

    def after(self, errors: list[Exception | None]) -> Sequence[Exception | None]:
        return errors


class DropsModes(Altered):
    def before(
        self, uploads: Sequence[Upload], existing: Existing
    ) -> tuple[Sequence[Upload], Existing]:
        return [attrs.evolve(upload, executable=False) for upload in uploads], existing


class AlwaysMerges(Altered):
    def before(
        self, uploads: Sequence[Upload], existing: Existing
    ) -> tuple[Sequence[Upload], Existing]:
        return uploads, "merge"


class AlwaysReplaces(Altered):
    def before(
        self, uploads: Sequence[Upload], existing: Existing
    ) -> tuple[Sequence[Upload], Existing]:
        return uploads, "replace"


class OutcomesBackwards(Altered):
    def after(self, errors: list[Exception | None]) -> Sequence[Exception | None]:
        return errors[::-1]


class FewerOutcomes(Altered):
    def after(self, errors: list[Exception | None]) -> Sequence[Exception | None]:
        return [error for error in errors if error is not None]


class BlamesAll(Altered):
    def after(self, errors: list[Exception | None]) -> Sequence[Exception | None]:
        failed = next((error for error in errors if error is not None), None)
        return [failed for _ in errors]


class OldFilesStay(Altered):
    """Keeps what is there, where another file has the same name."""

    def before(
        self, uploads: Sequence[Upload], existing: Existing
    ) -> tuple[Sequence[Upload], Existing]:
        there = {t: MemoryFile(f.data, f.executable) for t, f in self.files.items()}
        kept = [
            Upload.of(u.target, there[u.target].data, executable=there[u.target].executable)
            if u.target in there
            else u
            for u in uploads
        ]
        return kept, existing


class OneByOne(PackingMemoryRuntime):
    """Writes many files one after another, and can be cancelled in between."""

    async def write_many(
        self, uploads: Sequence[Upload], *, folders: Sequence[str], existing: Existing
    ) -> PackedResult:
        for upload in uploads:
            await super().write_many([upload], folders=folders, existing="merge")
        return PackedResult([None for _ in uploads])


class LosesLinks(PackingMemoryRuntime):
    async def extract(self, archive: Archive, target: str) -> int:
        calls = await super().extract(archive, target)
        self.links.clear()
        return calls


class MergesSources(PackingMemoryRuntime):
    async def extract(self, archive: Archive, target: str) -> int:
        before = dict(self.files)
        calls = await super().extract(archive, target)
        self.files = before | self.files
        return calls


class KeepsNoNote(PackingMemoryRuntime):
    async def extract(self, archive: Archive, target: str) -> int:
        calls = await super().extract(archive, target)
        self.files = {path: file for path, file in self.files.items() if ".trio-skills" not in path}
        return calls


class RemovesFirst(PackingMemoryRuntime):
    async def extract(self, archive: Archive, target: str) -> int:
        self.files = {p: file for p, file in self.files.items() if not p.startswith(f"{target}/")}
        await trio.lowlevel.checkpoint()
        return await super().extract(archive, target)


def stores_half(call: Call) -> Fault:
    return Fault(stored=0.5)


BROKEN: list[tuple[str, Callable[..., Any]]] = [
    ("a_file_arrives_byte_for_byte", StoresHalf),
    ("a_file_arrives_byte_for_byte", WritesText),
    ("a_file_arrives_byte_for_byte", partial(MemoryRuntime, faults=stores_half)),
    ("folders_above_a_file_are_made", MakesOneFolder),
    ("folders_above_a_file_are_made", EmptiesFolders),
    ("any_name_is_possible", LosesNewlines),
    ("any_name_is_possible", LongTemporaryNames),
    ("any_name_is_possible", StripsNames),
    ("a_write_replaces_a_file", WritesOver),
    ("a_write_replaces_a_file", Folder),
    ("a_write_where_no_file_can_be_fails", CallsFailuresSuccess),
    ("a_write_where_no_file_can_be_fails", MakesRoom),
    ("a_cancelled_write_leaves_the_old_file_or_the_new_one", WritesInPieces),
    ("a_cancelled_write_leaves_the_old_file_or_the_new_one", SwallowsCancelled),
    ("a_cancelled_write_leaves_the_old_file_or_the_new_one", RenamesCancelled),
    ("a_cancelled_write_leaves_the_old_file_or_the_new_one", WritesLater),
    ("many_writes_at_once_all_arrive", TooManyRequests),
    ("many_writes_at_once_all_arrive", BearsLess),
    ("of_writes_of_one_file_at_once_one_is_there", OneTemporaryName),
    ("a_command_says_how_it_ended", ExitCodeZero),
    ("a_command_says_how_it_ended", OneStream),
    ("a_command_says_how_it_ended", StripsOutput),
    ("arguments_arrive_unchanged", JoinsWords),
    ("the_environment_arrives_unchanged", DropsEnvironment),
    ("a_command_runs_in_the_folder_of_relative_targets", RunsElsewhere),
    ("a_program_that_is_missing_is_no_success", ExitCodeZero),
    ("a_cancelled_command_is_gone", LeavesCommands),
    ("a_cancelled_command_is_gone", ReturnsWhenCancelled),
    ("what_is_there_is_told", RemembersWhatItSaw),
    ("what_is_there_is_told", SeesNothing),
    ("a_link_is_neither_file_nor_folder", FollowsLinks),
    ("execute_bits_are_set", SetsAllBits),
    ("execute_bits_are_set", SetsNoBits),
    ("an_execute_bit_that_cannot_be_set_is_an_error", ForgivesMissingFiles),
    ("an_execute_bit_that_cannot_be_set_is_an_error", ForgivesOneMissingFile),
    ("an_execute_bit_that_cannot_be_set_is_an_error", ExitCodeZero),
    ("what_it_says_of_itself_makes_sense", TraitsOfItsOwn),
    ("what_it_says_of_itself_makes_sense", ImpossibleTraits),
    ("a_plan_arrives", DropsModes),
    ("a_plan_arrives", SetsNoBits),
    ("a_plan_arrives_over_another", OldFilesStay),
    ("a_plan_arrives_over_another", Folder),
    ("what_is_there_is_not_sent_again", SeesNoDigest),
    ("merging_keeps_other_files", AlwaysReplaces),
    ("merging_keeps_other_files", EmptiesFolders),
    ("replacing_leaves_the_plan_alone", AlwaysMerges),
    ("a_folder_that_is_there_is_refused", SeesNothing),
    ("of_many_only_what_fails_is_blamed", OutcomesBackwards),
    ("of_many_only_what_fails_is_blamed", FewerOutcomes),
    ("of_many_only_what_fails_is_blamed", BlamesAll),
    ("a_folder_of_which_a_file_fails_stays_as_it_was", AlwaysMerges),
    ("of_many_a_folder_that_is_there_is_refused_alone", AlwaysMerges),
    ("of_many_a_folder_that_is_there_is_refused_alone", AlwaysReplaces),
    ("cancelled_many_leave_a_folder_as_it_was_or_as_planned", OneByOne),
    ("a_source_archive_becomes_a_folder", LosesLinks),
    ("a_source_archive_becomes_a_folder", MergesSources),
    ("a_source_archive_that_is_there_is_left_alone", KeepsNoNote),
    ("a_cancelled_source_archive_leaves_the_old_folder_or_the_new_one", RemovesFirst),
]


def factory_of(kind: Callable[..., Any]) -> Factory:
    is_folder = isinstance(kind, type) and issubclass(kind, Folder)
    return partial(in_folder if is_folder else opened, kind)


class TestBrokenRuntimes:
    @pytest.mark.parametrize(("name", "kind"), BROKEN)
    async def test_the_promise_that_it_breaks_catches_it(
        self, name: str, kind: Callable[..., Any]
    ) -> None:
        with pytest.raises(BrokenPromiseError) as caught:
            await BY_NAME[name](factory_of(kind))
        assert caught.value.promise == name
        mistakes_of_this_file = TypeError | AttributeError | NameError
        assert not isinstance(caught.value.__cause__, mistakes_of_this_file)

    def test_every_promise_can_be_broken(self) -> None:
        assert {name for name, _ in BROKEN} == set(BY_NAME)


class TestCheckRuntime:
    async def test_names_the_broken_promises_and_no_other_when_all_were_looked_at(self) -> None:
        with pytest.raises(ConformanceError) as caught:
            await check_runtime(factory_of(TwoFaults))
        names = [
            "an_execute_bit_that_cannot_be_set_is_an_error",
            "what_it_says_of_itself_makes_sense",
        ]
        assert [error.promise for error in caught.value.broken] == names
        assert str(caught.value).startswith(f"2 of 32 promises are broken: {', '.join(names)}")
        law_and_seen = (
            "Where a file is missing its execute bit is an error, .* But: setting the bits"
        )
        assert re.search(law_and_seen, str(caught.value.broken[0]))

    async def test_each_check_has_a_sandbox_of_its_own_which_is_closed(self) -> None:
        opened: list[MemoryRuntime] = []
        closed: list[MemoryRuntime] = []

        @asynccontextmanager
        async def factory() -> AsyncIterator[Runtime]:
            await trio.lowlevel.checkpoint()
            opened.append(StoresNothing())
            yield opened[-1]
            closed.append(opened[-1])

        class StoresNothing(MemoryRuntime):
            async def write(self, target: str, data: bytes) -> None:
                await trio.lowlevel.checkpoint()

        with pytest.raises(ConformanceError):
            await check_runtime(factory)
        assert len(set(map(id, opened))) == len(CHECKS)
        assert closed == opened

    async def test_a_factory_with_a_nursery_hides_nothing(self) -> None:
        @asynccontextmanager
        async def factory() -> AsyncIterator[Runtime]:
            async with trio.open_nursery(), in_folder(StoresHalf) as runtime:
                yield runtime

        with pytest.raises(BrokenPromiseError, match="there is a file"):
            await BY_NAME["a_file_arrives_byte_for_byte"](factory)

    @pytest.mark.parametrize("when", ["opening", "closing"])
    async def test_a_sandbox_that_cannot_be_opened_or_closed_breaks_the_promise(
        self, when: str
    ) -> None:
        @asynccontextmanager
        async def factory() -> AsyncIterator[Runtime]:
            await trio.lowlevel.checkpoint()
            if when == "opening":
                raise ConnectionError("no sandbox today")
            yield MemoryRuntime()
            raise ConnectionError("no sandbox today")

        with pytest.raises(BrokenPromiseError, match="ConnectionError: no sandbox today"):
            await CHECKS[0](factory)

    async def test_what_never_ends_breaks_its_promise(self, autojump_clock: trio.abc.Clock) -> None:
        runtime = MemoryRuntime(latency=lambda call: 1e9)
        with pytest.raises(BrokenPromiseError, match="had not ended after 300 seconds"):
            await CHECKS[0](partial(opened, lambda: runtime))
        assert runtime.in_flight == 0

    async def test_cancelled_it_closes_the_sandbox(self, autojump_clock: trio.abc.Clock) -> None:
        is_closed = False

        @asynccontextmanager
        async def factory() -> AsyncIterator[Runtime]:
            nonlocal is_closed
            try:
                yield MemoryRuntime(latency=lambda call: 100)
            finally:
                await trio.lowlevel.cancel_shielded_checkpoint()
                is_closed = True

        with trio.move_on_after(1) as scope:
            await check_runtime(factory)
        assert scope.cancelled_caught
        assert is_closed

    def test_its_errors_keep_what_they_are(self) -> None:
        errors = [BrokenPromiseError(f"p{n}", "A law.", "nothing") for n in range(2)]
        error = ConformanceError("2 of 32", errors)
        part = error.subgroup(lambda e: "p1" in str(e))
        assert isinstance(part, ConformanceError)
        assert [e.promise for e in part.broken] == ["p1"]
        again = pickle.loads(pickle.dumps(error))
        assert isinstance(again, ConformanceError)
        assert list(map(str, again.exceptions)) == list(map(str, errors))

    def test_a_check_is_called_what_it_promises_and_says_it_in_a_sentence(self) -> None:
        assert len(BY_NAME) == len(CHECKS) == 32
        for check in CHECKS:
            assert str(check) == check.name
            assert re.fullmatch(r"[A-Z`].*\.", check.law)


class TestArchives:
    @given(source_trees(), st.sampled_from(get_args(Compression)))
    @settings(max_examples=40)
    def test_an_archive_unpacks_to_its_tree(
        self, tree: SourceTree, compression: Compression
    ) -> None:
        archive = tree.archive("src", compression)
        tar = b"".join(decompressed(archive.data, compression, 2**16))
        assert archive.digest == sha256(tar).hexdigest()
        assert (archive.size, archive.tar_size) == (len(archive.data), len(tar))
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(fileobj=io.BytesIO(tar)) as file:
                assert archive.member_count == len(file.getmembers())
                file.extractall(folder, filter="data")
            expected = TreeOnDisk(tree.files, sorted(tree.folders), tree.links).members
            assert read_members(Path(folder)) == expected

    @given(source_trees())
    @settings(max_examples=15)
    def test_it_is_what_the_library_makes_of_such_a_folder(self, tree: SourceTree) -> None:
        with tempfile.TemporaryDirectory() as folder:
            on_disk = TreeOnDisk(tree.files, sorted(tree.folders), tree.links)
            root = on_disk.write(Path(folder, "src"), mtime=0)
            recipe = Recipe.of(root, None, ("!.git",), "none", False).resolved()
            _, archive = build_in_memory(recipe, lambda: None)
        assert tree.archive("src", "none") == archive

    @given(archives())
    @settings(max_examples=25)
    def test_a_drawn_archive_arrives(self, archive: Archive) -> None:
        async def main() -> None:
            with tempfile.TemporaryDirectory() as folder:
                async with open_local(folder) as runtime:
                    await install_sources(runtime, [archive])
                    again = await install_sources(runtime, [archive])
                    assert len(again.unchanged) == 1
                    there = read_members(Path(folder, archive.name))
                assert len(there) == archive.member_count

        trio.run(main)

    def test_every_compression_is_drawn(self) -> None:
        drawn: set[Compression] = set()

        @given(archives())
        @settings(max_examples=60)
        def draw(archive: Archive) -> None:
            drawn.add(archive.compression)

        draw()
        assert drawn == set(get_args(Compression))


DOCS = Path(__file__).parent.parent / "docs" / "testing.md"
BLOCKS: list[str] = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)


class TestThePage:
    def test_every_block_is_a_test_that_passes(self, tmp_path: Path) -> None:
        assert len(BLOCKS) >= 6
        for number, block in enumerate(BLOCKS):
            (tmp_path / f"test_block_{number}.py").write_text(block)
        (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\nfilterwarnings = error\n")
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "."],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(DOCS.parent.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        passed = set(re.findall(r"test_block_(\d+)\.py::\S+ PASSED", ended.stdout))
        assert passed == {str(number) for number in range(len(BLOCKS))}

    def test_it_names_all_that_is_public(self) -> None:
        page = DOCS.read_text()
        strategies = ["plans", "uploads", "skill_trees", "source_trees", "archives", "file_names"]
        names = {*strategies, *vars(trio_skills.testing)} - {"strategies"}
        assert [n for n in sorted(names) if n[0] != "_" and f"`{n}" not in page] == []

    def test_it_leads_to_the_example(self) -> None:
        example = "examples/test_own_runtime.py"
        assert example in DOCS.read_text()
        assert (DOCS.parent.parent / example).exists()
