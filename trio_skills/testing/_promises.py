"""What a runtime promises: each a small function, whose docstring is the law.

A promise is looked at in a sandbox of its own, through nothing but the runtime: what is there
afterwards is known by its SHA-256 and its execute bit, as `install` sees it. What is no promise of
every runtime raises `NotPromised` where it is none.

`noqa: ASYNC910`: `Check` has a checkpoint for each of them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self, TypeAlias

import attrs
import trio

from trio_skills import _commands
from trio_skills._archive import Archive
from trio_skills._calls import Calls
from trio_skills._compress import Compression
from trio_skills._errors import DestinationError, describe
from trio_skills._inspection import inspect
from trio_skills._install import install
from trio_skills._limits import Limits
from trio_skills._plan import Plan, plan_uploads
from trio_skills._runtime import (
    Existing,
    FileState,
    PackedResult,
    RunResult,
    Runtime,
    SetsExecutable,
    Traits,
    WritesMany,
)
from trio_skills._sources import Extracts, install_sources
from trio_skills._transfers import Strategy
from trio_skills._upload import Upload
from trio_skills.runtimes.packing import Packing
from trio_skills.testing._archives import archive_of

Content: TypeAlias = tuple[bytes, bool]
"""What a file holds, and whether it may be executed."""

Expected: TypeAlias = bytes | Content | None
"""A file, not executable if it does not say so; None: nothing is there."""


class NotPromised(Exception):  # noqa: N818  # no error
    """The runtime does not promise this."""


@attrs.frozen
class Sandbox:
    """A sandbox that was opened to look at one promise."""

    runtime: Runtime
    calls: Calls

    @classmethod
    def of(cls, runtime: Runtime) -> Self:
        return cls(runtime, Calls.to(runtime, None, retries=3))

    async def write(self, target: str, data: bytes) -> None:
        await self.calls.ask(partial(self.runtime.write, target, data))

    async def write_all(self, files: Mapping[str, bytes]) -> None:
        await trio.lowlevel.checkpoint()
        for target, data in files.items():
            await self.write(target, data)

    async def run(self, *argv: str, env: Mapping[str, str] | None = None) -> RunResult:
        return await self.calls.ask(partial(self.runtime.run, argv, env or {}))

    async def shell(
        self, script: str, *words: str, env: Mapping[str, str] | None = None
    ) -> RunResult:
        return await self.run("sh", "-c", script, "sh", *words, env=env)

    async def states(self, targets: Sequence[str]) -> dict[str, FileState]:
        return await inspect(self.runtime, targets, self.calls)

    async def expect(self, expected: Mapping[str, Expected]) -> None:
        """Raise `AssertionError` where something else is there."""
        found = await self.states(list(expected))
        wrong = [
            f"at {target!r} there is {_shown(found[target])}, not {_shown(_state(content))}"
            for target, content in expected.items()
            if not _is(found[target], content)
        ]
        expect(not wrong, "; ".join(wrong[:3]) + f", and {len(wrong) - 3} more" * (len(wrong) > 3))

    async def needs(self, *programs: str) -> None:
        """Raise `NotPromised` where the sandbox has no shell, or not these programs."""
        script = 'for program do command -v "$program" >/dev/null || exit 127; done'
        try:
            ended = await self.shell(script, *programs)
        except Exception as exc:
            raise NotPromised from exc
        if ended.exit_code in (126, 127):
            raise NotPromised


Promise: TypeAlias = Callable[[Sandbox], Awaitable[None]]


def expect(holds: bool, seen: str) -> None:
    if not holds:  # not an `assert`: this is no test that may be optimised away
        raise AssertionError(seen)


def _state(content: Expected) -> FileState:
    if content is None:
        return FileState("missing")
    data, executable = content if isinstance(content, tuple) else (content, False)
    return FileState("file", hashlib.sha256(data).hexdigest(), executable)


def _is(found: FileState, content: Expected) -> bool:
    state = _state(content)
    known = (found.kind, found.digest, found.executable)
    return known == (state.kind, state.digest, state.executable)


def _shown(state: FileState) -> str:
    if state.kind != "file":
        return {"missing": "nothing", "folder": "a folder"}.get(state.kind, state.kind)
    bit = "executable" if state.executable else "not executable"
    return f"a file ({bit}, SHA-256 {str(state.digest)[:12]})"


# What is called a name here was lost, changed or taken for something else, somewhere.
_NAMES = (
    *("a b", "a  b", " x", "x ", "-rf", "--", "-", "$(x)", "`x`", "a;b", "'", '"', "\\", "\\n"),
    *("*", "?", "~", "#", "%00", "{}", "!", "a=b", "&", "|", "<", "new\nline", "newline", "\n"),
    *("carriage\rreturn", "tab\t", "\x01\x1b[31m", "\x7f", "..a", ".hidden", "...", "nul"),
    *("é", "ß", "日本", "\u202e", "\U0001f980", "n" * 255),
)
_ALIKE = ("new\nline", "newline", "new line", "x", " x", "x ")
"""Names that are one name for who loses or changes something in them."""

_WORDS = ("", *_NAMES)

_OLD = b"old\r\n" * 60_000
_NEW = b"new\n" * 100_000

_SKILLS: tuple[dict[str, Content], ...] = (
    {
        "pdf/SKILL.md": (b"---\nname: pdf\n---\n", False),
        "pdf/bin/go": (b"#!/bin/sh\n", True),
        "pdf/it's $(x)\n": (b"1", False),
        "pdf/same": (b"same", False),
        "xlsx/SKILL.md": (b"---\nname: xlsx\n---\n", False),
        "xlsx/empty": (b"", True),
        "xlsx/x/y/z": (b"\0\r\n" * 30_000, False),
    },
    {
        "pdf/SKILL.md": (b"", True),
        "pdf/bin/go": (b"#!/bin/sh\n:\n", False),
        "pdf/it's $(x)\n": (b"22", True),
        "pdf/same": (b"same", True),
        "xlsx/SKILL.md": (b"---\nname: other\n---\n", False),
        "xlsx/empty": (b"no more", False),
        "xlsx/x/y/z": (b"", True),
    },
)
"""Two skills, and the same two when every file has another content or another execute bit."""


def _below(dest: str, files: Mapping[str, Content]) -> dict[str, Content]:
    return {f"{dest}/{path}": content for path, content in files.items()}


def _uploads(files: Mapping[str, Content]) -> list[Upload]:
    return [Upload.of(target, data, executable=x) for target, (data, x) in sorted(files.items())]


def _plan(dest: str, number: int = 0) -> Plan:
    plan = plan_uploads(_uploads(_below(dest, _SKILLS[number])))
    return attrs.evolve(plan, dest=dest, folders=(f"{dest}/pdf", f"{dest}/xlsx"))


def _ways(sandbox: Sandbox) -> Iterator[Strategy]:
    """Yield the strategies that differ in what they call."""
    yield "concurrent"
    if isinstance(sandbox.runtime, WritesMany):
        yield "packed"


# -- write


async def a_file_arrives_byte_for_byte(sandbox: Sandbox) -> None:
    """What is written is there, every byte of it and no other."""
    contents = {
        "empty": b"",
        "nul": b"a\0b\0",
        "crlf": b"one\r\ntwo\rthree\n",
        "newlines": b"\n\n",
        "no newline": b"the end",
        "no text": bytes(range(256)),
        "large": bytes(range(256)) * 4096,
    }
    await sandbox.write_all(contents)
    await sandbox.expect(contents)


async def folders_above_a_file_are_made(sandbox: Sandbox) -> None:
    """A file's folders are made where they are missing, and what is in them stays."""
    files = {"a/b/c/d": b"1", "a/b/e": b"2", "a/b/f": b"3", "g/h": b"4"}
    await sandbox.write_all(files)
    await sandbox.expect(files)


async def any_name_is_possible(sandbox: Sandbox) -> None:
    """A file arrives under its very name, whatever a shell or a protocol would make of that."""
    paths = ["/".join(_NAMES[start : start + 3]) for start in range(0, len(_NAMES), 3)]
    paths += [f"alike/{name}" for name in _ALIKE]
    files = {path: path.encode() for path in paths}
    await sandbox.write_all(files)
    await sandbox.expect(files)


async def a_write_replaces_a_file(sandbox: Sandbox) -> None:
    """What is written takes the place of a file: nothing of the old one is left, nor its bit."""
    await sandbox.write("shorter", _NEW)
    await sandbox.write("executable", b"old")
    await _make_executable(sandbox, ["executable"])
    for target in ("shorter", "executable"):
        await sandbox.write(target, b"new")
    await sandbox.expect({"shorter": b"new", "executable": b"new"})


async def a_write_where_no_file_can_be_fails(sandbox: Sandbox) -> None:
    """A write beneath a file, or in the place of a folder, raises and leaves what is there."""
    files = {"file": b"kept", "folder/file": b"kept, too"}
    await sandbox.write_all(files)
    for target in ("file/below", "folder"):
        try:
            await sandbox.write(target, b"lost")
        except Exception:  # noqa: BLE001, S112  # any error will do
            continue
        raise AssertionError(f"writing {target!r} raised nothing")
    await sandbox.expect(files)


async def a_cancelled_write_leaves_the_old_file_or_the_new_one(sandbox: Sandbox) -> None:
    """Cancelled at whatever moment, a file is whole or as it was, and the next write goes well."""
    afterwards: dict[str, bytes] = {}

    def target(number: int) -> str:
        return f"{number}/file"

    async def prepare(number: int) -> None:  # noqa: ASYNC910
        if number % 2:
            await sandbox.write(target(number), _OLD)

    async def look(number: int, has_ended: bool) -> None:
        (state,) = (await sandbox.states([target(number)])).values()
        before = _OLD if number % 2 else None
        possible = [_NEW] if has_ended else [before, _NEW]
        when = "it returned" if has_ended else "it was cancelled"
        expect(any(_is(state, data) for data in possible), f"{when}; there is {_shown(state)}")
        afterwards[target(number)] = b"next"
        await sandbox.write(target(number), b"next")

    await _cancelled_at_many_moments(
        prepare, lambda number: sandbox.runtime.write(target(number), _NEW), look
    )
    await sandbox.expect(afterwards)  # what was cancelled did not come later


async def many_writes_at_once_all_arrive(sandbox: Sandbox) -> None:
    """A hundred writes at once, or as many as `traits.max_in_flight` says, all arrive."""
    files = {f"new/{n % 10}/{n}": (b"%d\n" % n * 1000, False) for n in range(100)}
    plan = plan_uploads(_uploads(files))
    await install(plan, sandbox.runtime, strategy="concurrent", limits=Limits(100))
    await sandbox.expect(files)


async def of_writes_of_one_file_at_once_one_is_there(sandbox: Sandbox) -> None:
    """Where several write one file at once, what one of them wrote is there, whole."""
    contents = [b"%d\n" % n * 40_000 for n in range(8)]
    async with trio.open_nursery() as nursery:
        for data in contents:
            nursery.start_soon(sandbox.write, "a/file", data)
    (state,) = (await sandbox.states(["a/file"])).values()
    expect(any(_is(state, data) for data in contents), f"there is {_shown(state)}")


# -- run


async def a_command_says_how_it_ended(sandbox: Sandbox) -> None:
    """The exit code arrives, and standard output and standard error, apart and byte for byte."""
    await sandbox.needs()
    script = r"printf '\377\000\r\n\n out \n\n'; printf '\000\376\n err' >&2; exit 3"
    ended = await sandbox.shell(script)
    expect(ended.exit_code == 3, f"exit code {ended.exit_code}, not 3")
    expect(ended.stdout == b"\xff\0\r\n\n out \n\n", f"standard output {ended.stdout!r}")
    expect(ended.stderr == b"\0\xfe\n err", f"standard error {ended.stderr!r}")
    ended = await sandbox.shell("exit 0")
    expect(ended == RunResult(0), f"exit 0 is {ended}")
    ended = await sandbox.shell("kill -9 $$")
    expect(ended.exit_code != 0, "a command that a signal ended has exit code 0")


async def arguments_arrive_unchanged(sandbox: Sandbox) -> None:
    """A command is an argument list: no word of it is split, expanded or dropped."""
    await sandbox.needs()
    ended = await sandbox.shell(r'for word do printf "%s\0" "$word"; done', *_WORDS)
    found = ended.stdout.decode("utf-8", "replace").split("\0")[:-1]
    expect(found == list(_WORDS), _first_difference(found, _WORDS))


async def the_environment_arrives_unchanged(sandbox: Sandbox) -> None:
    """A command has the variables of `env`, as they are."""
    await sandbox.needs()
    env = {f"VALUE_{n}": word for n, word in enumerate(_WORDS)}
    script = 'for n do eval "printf %s.\\\\\\\\0 \\"\\${VALUE_$n-unset}\\""; done'
    ended = await sandbox.shell(script, *map(str, range(len(env))), env=env)
    found = ended.stdout.decode("utf-8", "replace").split(".\0")[:-1]
    expect(found == list(_WORDS), _first_difference(found, _WORDS))


async def a_command_runs_in_the_folder_of_relative_targets(sandbox: Sandbox) -> None:
    """A command finds a file under the relative target that it was written to."""
    await sandbox.needs()
    await sandbox.write("a b/file", b"1")
    ended = await sandbox.run("test", "-f", "a b/file")
    expect(ended.exit_code == 0, f"`test -f` with that target ends with {ended.exit_code}")


async def a_program_that_is_missing_is_no_success(sandbox: Sandbox) -> None:  # noqa: ASYNC910
    """A command whose program is missing has an exit code that is not 0, or raises."""
    is_success = False
    with suppress(Exception):
        ended = await sandbox.run("no-such-program-anywhere")
        is_success = ended.exit_code == 0
    expect(not is_success, "it ended with exit code 0")


async def a_cancelled_command_is_gone(sandbox: Sandbox) -> None:
    """A cancelled command is ended, and gone when `run` returns: it writes nothing any more."""
    await sandbox.needs()
    await sandbox.write("here/beat", b"")
    for seconds in (0.25, 1, 4, 16):
        await sandbox.shell("rm here/beat")
        with trio.move_on_after(seconds) as scope:
            script = "cd here && while : >> beat; do sleep 0.05; done"
            ended = await sandbox.runtime.run(["sh", "-c", script], {})
            expect(False, f"cancelled, or before that, it returned {ended}")
        expect(scope.cancelled_caught, "it did not pass Cancelled on")
        if (await sandbox.shell("rm here/beat")).exit_code == 0:  # it had begun
            ended = await sandbox.shell("sleep 0.3; test -e here/beat")
            expect(ended.exit_code != 0, "it still runs")
            return
    raise AssertionError("a command had not begun after 16 seconds")


# -- what is looked at, and execute bits


async def what_is_there_is_told(sandbox: Sandbox) -> None:
    """It is told whether a file, a folder or nothing is there, a file's digest and its bit."""
    await sandbox.write("folder/file", b"1")
    await sandbox.write("folder/executable", b"22")
    await _make_executable(sandbox, ["folder/executable"])
    states = await sandbox.states(["folder", "no", "no/such", "folder/file", "folder/executable"])
    kinds = [state.kind for state in states.values()]
    expected = ["folder", "missing", "missing", "file", "file"]
    expect(kinds == expected, f"{', '.join(states)} are {kinds}")
    await sandbox.expect({"folder/file": b"1", "folder/executable": (b"22", True)})
    await sandbox.write("folder/file", b"2")
    await sandbox.expect({"folder/file": b"2"})


async def a_link_is_neither_file_nor_folder(sandbox: Sandbox) -> None:
    """Of a link it is not told that a file, a folder or nothing is there."""
    await sandbox.needs("ln")
    await sandbox.write("folder/file", b"1")
    script = "ln -s folder to-folder && ln -s folder/file to-file && ln -s no/where to-nothing"
    made = await sandbox.shell(script)
    if made.exit_code != 0:
        raise NotPromised
    states = await sandbox.states(["to-folder", "to-file", "to-nothing"])
    expect({s.kind for s in states.values()} == {"other"}, f"they are told to be {states}")


async def execute_bits_are_set(sandbox: Sandbox) -> None:
    """Execute bits are set of those files that were named alone, whatever their names."""
    files = {f"a/{name}": name.encode() for name in ("go", "it's\n", "-rf", "$(x)", "kept")}
    await sandbox.write_all(files)
    await _make_executable(sandbox, list(files)[:-1])
    expected = {target: (data, target != "a/kept") for target, data in files.items()}
    await sandbox.expect(expected)


async def an_execute_bit_that_cannot_be_set_is_an_error(sandbox: Sandbox) -> None:
    """Where a file is missing its execute bit is an error, also among others that are there."""
    await sandbox.write("a/file", b"1")
    for targets in (["a/missing"], ["a/file", "a/missing"]):
        try:
            await _make_executable(sandbox, targets)
        except Exception:  # noqa: BLE001, S112  # any error will do
            continue
        raise AssertionError(f"setting the bits of {targets} was called a success")


async def _make_executable(sandbox: Sandbox, targets: Sequence[str]) -> None:  # noqa: ASYNC910
    """Do it as `install` does."""
    if isinstance(sandbox.runtime, SetsExecutable):
        await sandbox.calls.ask(partial(sandbox.runtime.set_executable, targets))
        return
    for argv, _ in _commands.make_executable(targets):
        ended = await sandbox.run(*argv, env=_commands.ENVIRONMENT)
        expect(ended.exit_code == 0, f"chmod ended with {ended.exit_code}: {ended.stderr!r}")


async def what_it_says_of_itself_makes_sense(sandbox: Sandbox) -> None:
    """`traits`, where it is there, is a `Traits` whose bounds are at least 1."""
    traits = getattr(sandbox.runtime, "traits", None)
    await trio.lowlevel.checkpoint()
    if traits is None:
        raise NotPromised
    expect(isinstance(traits, Traits), f"it is a {type(traits).__name__}, which install ignores")
    for bound in (traits.max_in_flight, traits.max_batch_files):
        expect(bound is None or bound >= 1, f"a bound is {bound}")


# -- install


async def a_plan_arrives(sandbox: Sandbox) -> None:  # noqa: ASYNC910
    """A plan arrives with its execute bits, by every strategy that the runtime allows."""
    others: tuple[Strategy, ...] = ("sequential", "batched")
    for strategy in (*others, *_ways(sandbox)):
        dest = f"its $(x)\n'{strategy}'"
        await install(_plan(dest), sandbox.runtime, strategy=strategy, verify=True)
        await sandbox.expect(_below(dest, _SKILLS[0]))


async def a_plan_arrives_over_another(sandbox: Sandbox) -> None:  # noqa: ASYNC910
    """A plan with other bytes and other execute bits takes the place of what was installed."""
    for strategy in _ways(sandbox):
        for number in (0, 1):
            await install(_plan(strategy, number), sandbox.runtime, strategy=strategy)
        await sandbox.expect(_below(strategy, _SKILLS[1]))


async def what_is_there_is_not_sent_again(sandbox: Sandbox) -> None:  # noqa: ASYNC910
    """With `skip_unchanged` only what differs is sent: a changed file, or a changed bit."""
    for strategy in _ways(sandbox):
        put = partial(install, runtime=sandbox.runtime, strategy=strategy, skip_unchanged=True)
        await put(_plan(strategy))
        again = await put(_plan(strategy))
        expect(again.written == (), f"{strategy}: {len(again.written)} files were sent again")
        changed = await put(_plan(strategy, 1))
        expect(changed.unchanged == (), f"{strategy}: called unchanged: {changed.unchanged[:1]}")


async def merging_keeps_other_files(sandbox: Sandbox) -> None:  # noqa: ASYNC910
    """With `existing="merge"` the other files of a skill folder stay."""
    for strategy in _ways(sandbox):
        kept = {f"{strategy}/{path}": b"mine" for path in ("pdf/mine", "pdf/x/mine", "mine")}
        await sandbox.write_all(kept)
        await install(_plan(strategy), sandbox.runtime, strategy=strategy, existing="merge")
        await sandbox.expect({**kept, **_below(strategy, _SKILLS[0])})


async def replacing_leaves_the_plan_alone(sandbox: Sandbox) -> None:
    """With `existing="replace"` a skill folder is the plan's, and what is beside it stays."""
    _promised(sandbox, WritesMany)
    for target in ("skills/pdf/mine", "skills/pdf/bin/mine", "skills/mine/too"):
        await sandbox.write(target, b"mine")
    await install(_plan("skills"), sandbox.runtime, existing="replace")
    gone = {"skills/pdf/mine": None, "skills/pdf/bin/mine": None}
    await sandbox.expect({**gone, "skills/mine/too": b"mine", **_below("skills", _SKILLS[0])})


async def a_folder_that_is_there_is_refused(sandbox: Sandbox) -> None:  # noqa: ASYNC910
    """With `existing="error"` a skill folder that is there is refused, and nothing is written."""
    for strategy in _ways(sandbox):
        await sandbox.write(f"{strategy}/pdf/mine", b"mine")
        try:
            await install(_plan(strategy), sandbox.runtime, strategy=strategy, existing="error")
        except DestinationError:
            pass
        else:
            raise AssertionError(f"{strategy}: it was not refused")
        nothing = dict.fromkeys(_below(strategy, _SKILLS[0]))
        await sandbox.expect({**nothing, f"{strategy}/pdf/mine": b"mine"})


# -- write_many


def _promised(sandbox: Sandbox, protocol: type) -> None:
    if not isinstance(sandbox.runtime, protocol):
        raise NotPromised


async def _write_many(
    sandbox: Sandbox, uploads: Sequence[Upload], folders: Sequence[str], existing: Existing
) -> PackedResult:
    if not isinstance(sandbox.runtime, WritesMany):
        raise NotPromised
    # Not in turn: it is alone here, and cancelled at no moment but its own.
    result = await sandbox.runtime.write_many(uploads, folders=folders, existing=existing)
    count = len(result.errors)
    expect(count == len(uploads), f"{count} outcomes for {len(uploads)} uploads")
    return result


def _changed(target: str) -> Upload:
    """Return an upload whose source is no longer what was planned."""
    return Upload(target, Path(__file__), size=1, digest=hashlib.sha256(b"1").hexdigest())


def _expect_blamed(uploads: Sequence[Upload], result: PackedResult, blamed: set[str]) -> None:
    found = {u.target for u, e in zip(uploads, result.errors, strict=True) if e is not None}
    expect(found == blamed, f"{sorted(found)} have an error, not {sorted(blamed)}")


async def of_many_only_what_fails_is_blamed(sandbox: Sandbox) -> None:
    """`write_many` has one outcome for each upload, in their order; the others arrive."""
    good: dict[str, Content] = {
        "loose/b": (b"1", True),
        "loose/c": (b"2", False),
        **_below("skills", _SKILLS[0]),
    }
    missing = Upload("skills/pdf/x", Path("/no/such/file"), 1, digest="0" * 64)
    bad = [_changed("loose/a"), _changed("skills/pdf/a"), missing]
    uploads = sorted([*_uploads(good), *bad], key=lambda upload: upload.target)
    result = await _write_many(sandbox, uploads, ["skills/pdf", "skills/xlsx"], "merge")
    _expect_blamed(uploads, result, {upload.target for upload in bad})
    await sandbox.expect({**good, **{upload.target: None for upload in bad}})


async def a_folder_of_which_a_file_fails_stays_as_it_was(sandbox: Sandbox) -> None:
    """With `"replace"` and `"error"` a folder is swapped whole, or stays as it was, or missing."""
    _promised(sandbox, WritesMany)
    for existing in ("replace", "error"):
        old = {f"{existing}/pdf/old": b"kept"} if existing == "replace" else {}
        await sandbox.write_all(old)
        files = _below(existing, _SKILLS[0])
        bad = _changed(f"{existing}/pdf/a")
        uploads = sorted([*_uploads(files), bad], key=lambda upload: upload.target)
        folders = [f"{existing}/pdf", f"{existing}/xlsx"]
        result = await _write_many(sandbox, uploads, folders, existing)
        pdf = {u.target for u in uploads if u.target.startswith(folders[0])}
        _expect_blamed(uploads, result, pdf)
        there = {t: content for t, content in files.items() if t not in pdf}
        await sandbox.expect({**dict.fromkeys(pdf), **old, **there})


async def of_many_a_folder_that_is_there_is_refused_alone(sandbox: Sandbox) -> None:
    """With `"error"` the uploads of a folder that is there fail; another folder arrives."""
    _promised(sandbox, WritesMany)
    await sandbox.write("skills/pdf/mine", b"mine")
    files = _below("skills", _SKILLS[0])
    uploads = _uploads(files)
    result = await _write_many(sandbox, uploads, ["skills/pdf", "skills/xlsx"], "error")
    pdf = {target for target in files if target.startswith("skills/pdf/")}
    _expect_blamed(uploads, result, pdf)
    there = {target: content for target, content in files.items() if target not in pdf}
    await sandbox.expect({**dict.fromkeys(pdf), "skills/pdf/mine": b"mine", **there})


async def cancelled_many_leave_a_folder_as_it_was_or_as_planned(sandbox: Sandbox) -> None:
    """Cancelled at whatever moment, a folder is old or new, or each file that is merged into it."""
    _promised(sandbox, WritesMany)
    ways: tuple[Existing, ...] = ("merge", "replace")
    old_files: dict[str, Content] = {"pdf/big": (_OLD, True), "pdf/file": (b"old", False)}
    new_files: dict[str, Content] = {"pdf/big": (_NEW, False), "pdf/file": (b"new", True)}
    afterwards: dict[str, Content] = {}

    def is_new(number: int) -> bool:
        return number % 3 == 2

    async def put(number: int, files: Mapping[str, Content], existing: Existing) -> None:
        uploads = _uploads(_below(str(number), files))
        result = await _write_many(sandbox, uploads, [f"{number}/pdf"], existing)
        _expect_blamed(uploads, result, set())

    async def prepare(number: int) -> None:  # noqa: ASYNC910
        if not is_new(number):
            await put(number, old_files, "merge")

    async def call(number: int) -> None:
        await put(number, new_files, "merge" if is_new(number) else ways[number % 3])

    async def look(number: int, has_ended: bool) -> None:
        new = _below(str(number), new_files)
        old: Mapping[str, Expected] = (
            dict.fromkeys(new) if is_new(number) else _below(str(number), old_files)
        )
        found = await sandbox.states(list(new))
        are_new = [_is(found[target], content) for target, content in new.items()]
        are_old = [_is(found[target], content) for target, content in old.items()]
        when = "it returned" if has_ended else "it was cancelled"
        seen = f"{when}; there is {', '.join(map(_shown, found.values()))}"
        if has_ended:
            expect(all(are_new), seen)
        elif number % 3 == 0:  # merged into
            expect(all(map(max, are_old, are_new)), seen)
        else:
            expect(all(are_old) or all(are_new), seen)
        await put(number, old_files, "merge")
        afterwards.update(_below(str(number), old_files))

    await _cancelled_at_many_moments(prepare, call, look, ways=3)
    await sandbox.expect(afterwards)


# -- install_sources


_LINKS = {"to-folder": "bin", "bin/up": "../it's", "to-nothing": "no/where"}


def _source(number: int) -> tuple[Archive, dict[str, Expected]]:
    """Return an archive, and what is there where it, and not the other one, was unpacked."""
    files: dict[str, Content] = {
        "bin/go": (b"#!/bin/sh\n" * (number + 1), True),
        "it's": (b"%d" % number, False),
        "-rf\n": (b"\0" * 2**17, number == 1),
        f"only in {number}": (b"", False),
        "n" * 120: (b"1", False),
    }
    compressions: tuple[Compression, ...] = ("gzip", "zstd")
    archive = archive_of("src", files, ["empty"], _LINKS, compressions[number])
    return archive, {**_below("src", files), f"src/only in {1 - number}": None}


async def _needs_sources(sandbox: Sandbox) -> None:  # noqa: ASYNC910
    if not isinstance(sandbox.runtime, Extracts):
        await sandbox.needs("tar", "mkdir", "mv", "rm", "sha256sum")


async def a_source_archive_becomes_a_folder(sandbox: Sandbox) -> None:
    """`install_sources` makes a folder an archive's tree: its files, empty folders and links."""
    await _needs_sources(sandbox)
    for number in (0, 1):
        archive, expected = _source(number)
        report = await install_sources(sandbox.runtime, [archive])
        expect(len(report.written) == 1, f"the report says: {report.summary()}")
        await sandbox.expect(expected)
        kinds = {t: s.kind for t, s in (await sandbox.states([f"src/{p}" for p in _LINKS])).items()}
        expect(set(kinds.values()) == {"other"}, f"what should be links is {kinds}")


async def a_source_archive_that_is_there_is_left_alone(sandbox: Sandbox) -> None:
    """A second `install_sources` sends nothing, and leaves what was done there since."""
    await _needs_sources(sandbox)
    archive, expected = _source(0)
    await install_sources(sandbox.runtime, [archive])
    await sandbox.write("src/made since", b"kept")
    report = await install_sources(sandbox.runtime, [archive])
    expect(report.written == (), "it was sent again")
    await sandbox.expect({**expected, "src/made since": b"kept"})


async def a_cancelled_source_archive_leaves_the_old_folder_or_the_new_one(
    sandbox: Sandbox,
) -> None:
    """Cancelled at whatever moment, a source folder is as it was or as planned."""
    await _needs_sources(sandbox)
    (old, old_files), (new, new_files) = _source(0), _source(1)
    runtime = sandbox.runtime
    extractor = runtime if isinstance(runtime, Extracts) else Packing(runtime)
    afterwards: dict[str, Expected] = {}

    async def put(number: int, archive: Archive) -> None:
        await extractor.extract(archive, f"{number}/src")

    async def prepare(number: int) -> None:  # noqa: ASYNC910
        if number % 2:
            await put(number, old)

    async def look(number: int, has_ended: bool) -> None:
        before = old_files if number % 2 else dict.fromkeys(new_files)
        found = await sandbox.states([f"{number}/{path}" for path in new_files | before])
        possible = [new_files] if has_ended else [before, new_files]
        is_one = any(
            all(_is(found[f"{number}/{path}"], content) for path, content in files.items())
            for files in possible
        )
        when = "it returned" if has_ended else "it was cancelled"
        expect(is_one, f"{when}; there is {', '.join(map(_shown, found.values()))}")
        await put(number, new)
        afterwards.update({f"{number}/{path}": content for path, content in new_files.items()})

    await _cancelled_at_many_moments(prepare, lambda number: put(number, new), look)
    await sandbox.expect(afterwards)


# -- cancelling


@attrs.define(eq=False)
class _Steps(trio.abc.Instrument):
    """Counts the steps of all tasks, and cancels a scope at one of them."""

    scope: trio.CancelScope
    at: int
    count: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1
        if self.count == self.at:
            self.scope.cancel()


@contextmanager
def _cancelled(step: int, seconds: float) -> Iterator[_Steps]:
    with trio.CancelScope(deadline=trio.current_time() + seconds) as scope:
        steps = _Steps(scope, step)
        trio.lowlevel.add_instrument(steps)
        try:
            yield steps
        finally:
            trio.lowlevel.remove_instrument(steps)


_QUICK = 0.02
"""Seconds. What takes less is cancelled at more moments, and in each way at each of them."""


async def _cancelled_at_many_moments(
    prepare: Callable[[int], Awaitable[None]],
    call: Callable[[int], Awaitable[None]],
    look: Callable[[int, bool], Awaitable[None]],
    ways: int = 2,
) -> None:
    """Call, again and again, cancelled each time at another moment, and look what that left.

    By steps, so that what takes no time is cancelled in the middle; and by time, so that what waits
    for something else is cancelled meanwhile. All three functions get a number, another each time:
    the folder to use, and which of so many ways. `look` is told whether the call ended by itself.
    """
    await prepare(0)
    began = trio.current_time()
    with _cancelled(0, math.inf) as steps:
        await call(0)
    seconds = trio.current_time() - began
    await look(0, True)
    is_quick = seconds < _QUICK
    stride = 1 + steps.count // (30 if is_quick else 4)
    moments = [(step, math.inf) for step in range(1, steps.count + 1, stride)]
    moments += [(0, seconds * part / 4) for part in range(4)]
    if is_quick:
        moments = [moment for moment in moments for _ in range(ways)]
    for number, moment in enumerate(moments, 1):
        await prepare(number)
        has_ended = False
        try:
            with _cancelled(*moment) as steps:
                await call(number)
                has_ended = True
        except Exception as exc:
            if not steps.scope.cancel_called:
                raise
            raise AssertionError(f"cancelled, it raised {describe(exc)}") from exc
        await look(number, has_ended)


def _first_difference(found: Sequence[str], expected: Sequence[str]) -> str:
    for one, other in zip(found, expected, strict=False):
        if one != other:
            return f"{one!r} arrived, not {other!r}"
    return f"{len(found)} arrived, not {len(expected)}"


PROMISES: tuple[Promise, ...] = (
    a_file_arrives_byte_for_byte,
    folders_above_a_file_are_made,
    any_name_is_possible,
    a_write_replaces_a_file,
    a_write_where_no_file_can_be_fails,
    a_cancelled_write_leaves_the_old_file_or_the_new_one,
    many_writes_at_once_all_arrive,
    of_writes_of_one_file_at_once_one_is_there,
    a_command_says_how_it_ended,
    arguments_arrive_unchanged,
    the_environment_arrives_unchanged,
    a_command_runs_in_the_folder_of_relative_targets,
    a_program_that_is_missing_is_no_success,
    a_cancelled_command_is_gone,
    what_is_there_is_told,
    a_link_is_neither_file_nor_folder,
    execute_bits_are_set,
    an_execute_bit_that_cannot_be_set_is_an_error,
    what_it_says_of_itself_makes_sense,
    a_plan_arrives,
    a_plan_arrives_over_another,
    what_is_there_is_not_sent_again,
    merging_keeps_other_files,
    replacing_leaves_the_plan_alone,
    a_folder_that_is_there_is_refused,
    of_many_only_what_fails_is_blamed,
    a_folder_of_which_a_file_fails_stays_as_it_was,
    of_many_a_folder_that_is_there_is_refused_alone,
    cancelled_many_leave_a_folder_as_it_was_or_as_planned,
    a_source_archive_becomes_a_folder,
    a_source_archive_that_is_there_is_left_alone,
    a_cancelled_source_archive_leaves_the_old_folder_or_the_new_one,
)
