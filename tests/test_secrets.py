"""What is in files and in the environment is in no log, no error and no report."""

from __future__ import annotations

import errno
import io
import logging
import signal
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import attrs
import pytest
import trio
from trio.testing import MockClock

from tests.programs import run
from tests.sources import hand_made, member
from tests.test_packing import Folder
from tests.trees import make_skill, write_tree
from tests.ways import every_strategy
from trio_skills import (
    ArchiveCache,
    ArchiveError,
    CommandError,
    Event,
    ExecRuntime,
    InstallError,
    Packing,
    Plan,
    PlanError,
    Report,
    RunResult,
    Runtime,
    SourceChangedError,
    Strategy,
    TransientError,
    Upload,
    install,
    install_sources,
    open_local,
    plan_skills,
    plan_uploads,
    write_archive,
)
from trio_skills.testing import Call, Fault, MemoryFile, MemoryRuntime, PackingMemoryRuntime

CANARY = "canary"
SECRET = f"{CANARY} of a file\n".encode() * 20 + b"\xff"
"""What files hold: of the last byte some runtimes complain."""


@pytest.fixture(autouse=True)
def nothing_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """In every test here the environment has a secret; no logger's record has any, at any level."""
    monkeypatch.setenv("TOKEN", f"{CANARY} of the environment")
    caplog.set_level(logging.DEBUG)
    yield
    for record in caplog.records:
        assert CANARY not in f"{record.getMessage()}{vars(record)!r}"
    assert CANARY not in caplog.text


def keeps_it_to_itself(*things: object) -> None:
    """Check everything that can be shown of some things, also by who shows a traceback's locals."""
    for thing in things:
        for text in shown(thing):
            assert CANARY not in text


def shown(thing: object) -> Iterator[str]:
    yield from (str(thing), repr(thing), f"{thing}", ascii(thing))
    if isinstance(thing, BaseException):
        yield "".join(traceback.format_exception(thing))
    if isinstance(thing, InstallError):
        yield with_locals(thing)
        yield from shown(thing.report)
    if isinstance(thing, Report):
        yield from (thing.summary(), thing.to_json(), thing.chrome_trace(), repr(thing.to_dict()))
        for outcome in thing.outcomes:
            if outcome.error is not None:
                yield from shown(outcome.error)
                yield str(outcome.error.__cause__)  # its repr is the runtime's own affair
                yield with_locals(outcome.error)


def with_locals(error: BaseException) -> str:
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Two skills with a secret in each file, its `SKILL.md` too."""
    for name in ("pdf", "xlsx"):
        folder = make_skill(tmp_path / "skills" / name, {"bin/go": (SECRET, True), "x": SECRET})
        with open(folder / "SKILL.md", "ab") as file:
            file.write(SECRET)
    return plan_skills([tmp_path / "skills" / "pdf", tmp_path / "skills" / "xlsx"])


@pytest.fixture
def held(plan: Plan) -> Plan:
    """The same, in memory."""
    return attrs.evolve(plan, uploads=tuple(attrs.evolve(u, source=u.read()) for u in plan.uploads))


async def fails(plan: Plan, runtime: Runtime, **options: Any) -> InstallError:  # Any: of `install`
    """Install what cannot be, and check all that is told of it."""
    told: list[Event] = []
    with pytest.raises(InstallError) as caught:
        await install(plan, runtime, on_event=told.append, **options)
    keeps_it_to_itself(runtime, plan, *told, caught.value)
    return caught.value


class TestRepr:
    """What ends up in a log first."""

    def test_of_what_holds_contents(self, plan: Plan, held: Plan) -> None:
        assert CANARY.encode() in held.uploads[0].read()
        archive = hand_made("source", [member("x")], SECRET)
        keeps_it_to_itself(plan, held, *plan.uploads, *held.uploads, *plan.skills, archive)
        keeps_it_to_itself(Upload.of("x", SECRET), Upload("x", SECRET, 1), MemoryFile(SECRET))

    async def test_of_what_is_sent(self, held: Plan, tmp_path: Path) -> None:
        cache = ArchiveCache()
        runtime = PackingMemoryRuntime()
        await install(held, runtime, archives=cache)
        keeps_it_to_itself(
            cache, runtime, runtime.files, runtime.log, await cache.packed(held.uploads)
        )
        keeps_it_to_itself(
            Packing(runtime), ExecRuntime(("env",), str(tmp_path)), cache.statistics()
        )
        async with open_local(tmp_path / "root") as local:
            report = await install(held, local, archives=cache)
            keeps_it_to_itself(local, report)


class TestRuntimesInMemory:
    """Every fault that they know."""

    FAULTS: ClassVar = {
        "an error": Fault(error=OSError(errno.EIO, "broken")),
        "an error afterwards": Fault(error=OSError(errno.EIO, "broken"), after=True),
        "a short write": Fault(stored=0.5),
        "what is retried": Fault(error=TransientError("busy")),
        "a command": Fault(exit_code=1),
    }

    @pytest.mark.parametrize("what", FAULTS)
    @every_strategy
    async def test_fail(
        self, held: Plan, strategy: Strategy, what: str, autojump_clock: MockClock
    ) -> None:
        def faults(call: Call) -> Fault | None:
            is_command = call.method == "run"
            return self.FAULTS[what] if is_command == (what == "a command") else None

        runtime = PackingMemoryRuntime(faults=faults)
        await fails(held, runtime, strategy=strategy, verify=True)


class Another:
    """A runtime of somebody else's, whose `write` fails in a way of its own."""

    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        await trio.lowlevel.checkpoint()
        return RunResult(0)


class Nursing(Another):
    async def write(self, target: str, data: bytes) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send, data)
            nursery.start_soon(self._send, data)

    async def _send(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        raise ConnectionResetError("the sandbox is gone")


class NursingInNurseries(Another):
    async def write(self, target: str, data: bytes) -> None:
        try:
            await Nursing().write(target, data)
        except* ConnectionResetError as group:
            raise CommandError("it is gone") from group


class Decoding(Another):
    """It takes text alone, as many sandboxes' interfaces do."""

    async def write(self, target: str, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        data.decode("ascii")


class Handling(Another):
    """An error while another one is handled."""

    async def write(self, target: str, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        try:
            self._parse(data)
        except ValueError:
            raise KeyError(target)  # noqa: B904

    def _parse(self, data: bytes) -> None:
        raise ValueError("wrong")


class Replacing(Another):
    """An error in place of the one that is handled, of which it says the cause to be another."""

    async def write(self, target: str, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        try:
            Handling._parse(Handling(), data)
        except ValueError as exc:
            try:
                Handling._parse(Handling(), data)
            except ValueError:
                raise CommandError("wrong") from exc


class Threading(Another):
    async def write(self, target: str, data: bytes) -> None:
        await trio.to_thread.run_sync(partial(self._send, data=data))

    def _send(self, data: bytes) -> NoReturn:
        raise TimeoutError


class Retried(Another):
    async def write(self, target: str, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        raise TransientError("busy") from OSError(errno.EIO, "reset")


class WritingMany(Another):
    """It fails as a whole, and file by file."""

    async def write(self, target: str, data: bytes) -> None:
        await Nursing().write(target, data)

    async def write_many(self, uploads: Sequence[Upload], **_: object) -> NoReturn:
        contents = [upload.read() for upload in uploads]
        await Nursing().write("", contents[0])
        raise AssertionError


OTHERS = [Nursing, NursingInNurseries, Decoding, Handling, Replacing, Threading, Retried]


class TestOtherRuntimes:
    """What their errors carry along is let go of, and never shown."""

    async def test_fail_alike_in_many_tasks(self, held: Plan, autojump_clock: MockClock) -> None:
        """One error for all: when one task is done with it, others still wait to try again."""
        error = TransientError("busy")
        runtime = MemoryRuntime(faults=lambda call: Fault(error=error))
        failure = await fails(held, runtime)
        assert {outcome.retries for outcome in failure.report.outcomes} == {3}

    @pytest.mark.parametrize("kind", [*OTHERS, WritingMany])
    async def test_fail(self, held: Plan, kind: type[Nursing], autojump_clock: MockClock) -> None:
        error = await fails(held, kind())
        assert len(error.exceptions) >= 3  # of a transfer that fails as a whole, no more are tried

    async def test_fail_a_whole_transfer(self, held: Plan) -> None:
        await fails(held, WritingMany(), existing="replace")

    async def test_fail_with_an_error_that_is_its_own_cause(self, held: Plan) -> None:
        """Then what it carries along is let go of once, not for ever."""

        class Circular(Another):
            async def write(self, target: str, data: bytes) -> None:
                await trio.lowlevel.checkpoint()
                error = OSError(errno.EIO, "broken")
                raise error from error

        with ended_after(5):
            await fails(held, Circular())


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Raise where a block never gives Trio the chance to end it."""

    def end(*_: object) -> NoReturn:
        raise AssertionError("it does not come to an end")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def make_wrong(plan: Plan, root: Path) -> None:
    """Let every file of one skill fail: one was changed, and folders are in the others' places."""
    for upload in plan.uploads[1:3]:
        (root / upload.target / "in the way").mkdir(parents=True)
    source = plan.uploads[0].source
    assert isinstance(source, Path)
    source.write_bytes(SECRET[::-1] + SECRET)


PREFIXES: dict[str, Sequence[str]] = {
    "goes well": ("env",),
    "hears nothing": ("sh", "-c", "exit 3"),
    "says what it runs": ("sh", "-xc", '"$@"; exit 1', "sh"),
    "says what it was told to": ("sh", "-c", 'echo "$@" >&2; exit 1', "sh"),
    "is not there": ("no-such-program",),
    "has no shell": ("env", "PATH=/nowhere"),
}
CUTTING = {
    "hears all in vain": ("sh", "-c", "cat >/dev/null; exit 3"),
    "hears a part": ("sh", "-c", 'head -c 900 | "$@"', "sh"),
}


class TestDirectories:
    """This machine's, by every way there is to one."""

    @every_strategy
    async def test_fail(self, tmp_path: Path, plan: Plan, strategy: Strategy) -> None:
        make_wrong(plan, tmp_path / "root")
        async with open_local(tmp_path / "root") as runtime:
            await fails(plan, runtime, strategy=strategy)

    async def test_fail_when_it_is_gone(self, tmp_path: Path, held: Plan) -> None:
        async with open_local(tmp_path / "root") as runtime:
            (tmp_path / "root").rmdir()
            await fails(held, runtime)
            await fails(held, runtime, strategy="concurrent")

    @pytest.mark.parametrize("prefix", [*PREFIXES, *CUTTING])
    @pytest.mark.parametrize("strategy", ["concurrent", "packed"])
    async def test_fail_by_a_command(
        self, tmp_path: Path, plan: Plan, strategy: Strategy, prefix: str
    ) -> None:
        (tmp_path / "root").mkdir()
        make_wrong(plan, tmp_path / "root")
        runtime = ExecRuntime({**PREFIXES, **CUTTING}[prefix], str(tmp_path / "root"))
        await fails(plan, runtime, strategy=strategy, retries=0)

    @pytest.mark.parametrize("keeps", [1.0, 0.5])
    async def test_fail_by_packing(self, tmp_path: Path, plan: Plan, keeps: float) -> None:
        (tmp_path / "root").mkdir()
        make_wrong(plan, tmp_path / "root")
        await fails(plan, Packing(Folder(tmp_path / "root", keeps=keeps)), retries=0)
        await fails(plan, Packing(MemoryRuntime()), retries=0)


class TestSources:
    async def test_fail(self, tmp_path: Path) -> None:
        archive = hand_made("source", [member("../x")], SECRET)
        damaged = attrs.evolve(archive, name="other", compression="gzip")
        (tmp_path / "root").mkdir()
        async with open_local(tmp_path / "root") as local:
            by_command = ExecRuntime(("sh", "-c", "exit 3"), str(tmp_path / "root"))
            for runtime in (local, PackingMemoryRuntime()):
                with pytest.raises(InstallError) as caught:
                    await install_sources(runtime, [damaged])
                keeps_it_to_itself(caught.value)
            with pytest.raises(InstallError) as caught:
                await install_sources(local, [archive, damaged])
            keeps_it_to_itself(caught.value)
            with pytest.raises(CommandError) as lost:
                await install_sources(by_command, [archive], retries=0)
            keeps_it_to_itself(lost.value)

    async def test_are_not_archived(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "source", {"x": SECRET * 100})
        (tmp_path / "source" / "link").symlink_to("/etc")
        with pytest.raises(ArchiveError) as caught:
            await ArchiveCache().source_archive(tmp_path / "source")
        keeps_it_to_itself(caught.value)
        (tmp_path / "source" / "link").unlink()

        class Full(io.BytesIO):
            def write(self, data: object) -> int:
                raise OSError(errno.ENOSPC, "full")

        with pytest.raises(OSError, match="full") as full:
            await write_archive(tmp_path / "source", Full(), compression="none")
        keeps_it_to_itself(full.value)


class TestPlanning:
    FRONTMATTERS: ClassVar = {
        "unknown": "token: {0}",
        "not YAML": "name: [{0}",
        "not YAML either": 'name: "\\q {0}',
        "an alias": "name: *x\ndescription: {0}",
        "a tag": "name: !x {0}",
        "a character that cannot begin anything": "name: @{0}",
        "not closed": "name: x\n{0}",
        "text": "{0}",
        "twice": "name: x\nname: {0}",
        "deep": f"name: {'[' * 50}{{0}}",
        "long": "description: " + "{0} " * 500,
        "a map": "description: {{a: {0}}}",
        "control": "name: x\ndescription: {0}\x01",
    }

    @pytest.mark.parametrize("what", FRONTMATTERS)
    def test_does_not_tell_what_else_is_in_a_skill_md(self, tmp_path: Path, what: str) -> None:
        """Its name and its fields' names are told: who wrote them must find them."""
        text = f"---\n{self.FRONTMATTERS[what]}\n---\n{{0}}\n".format(CANARY)
        write_tree(tmp_path / "pdf", {"SKILL.md": text.encode()})
        with pytest.raises(PlanError) as caught:
            plan_skills([tmp_path / "pdf"], strict=True)
        keeps_it_to_itself(caught.value, *caught.value.problems)

    def test_refuses_without_the_contents(self, tmp_path: Path, plan: Plan) -> None:
        """Also for who shows a traceback's locals, as some programs always do."""
        (tmp_path / "skills" / "pdf" / "link").symlink_to("/etc")
        with pytest.raises(PlanError) as caught:
            plan_skills([tmp_path / "skills" / "pdf"], "..")
        keeps_it_to_itself(caught.value, with_locals(caught.value))

    def test_refuses_uploads_without_the_contents(self) -> None:
        wrong = ["", ".", "a\0b", "../x", "\udc80", "n" * 256, "a", "a", "a/b"]
        with pytest.raises(PlanError) as caught:
            plan_uploads(Upload(target, SECRET, 1) for target in wrong)
        assert len(caught.value.problems) == len(wrong)
        keeps_it_to_itself(caught.value, *caught.value.problems)

    def test_a_change_is_told_without_what_it_was(self, plan: Plan) -> None:
        source = plan.uploads[0].source
        assert isinstance(source, Path)
        source.write_bytes(SECRET[::-1])
        with pytest.raises(SourceChangedError) as caught:
            plan.uploads[0].read()
        keeps_it_to_itself(caught.value)


class TestEnvironment:
    """What a command gets beside its arguments."""

    ENVIRONMENTS: ClassVar[dict[str, dict[str, str]]] = {
        "a token": {"TOKEN": CANARY},
        "NUL": {"TOKEN": f"{CANARY}\0"},
        "what is no character": {"TOKEN": f"{CANARY}\ud800"},
        "a name that is none": {"TO=KEN": CANARY},
        "no name": {"": CANARY},
        "too much": {"TOKEN": CANARY * 2**20},
    }
    COMMANDS: ClassVar[dict[str, list[str]]] = {
        "goes well": ["true"],
        "fails": ["false"],
        "is not there": ["no-such-program"],
        "is a folder": ["/"],
        "is below a file": ["/etc/passwd/x"],
        "is killed": ["sh", "-c", "kill -9 $$"],
        "is none": [""],
    }

    @pytest.mark.parametrize("env", ENVIRONMENTS)
    async def test_of_a_command(self, tmp_path: Path, env: str) -> None:
        async with open_local(tmp_path / "root") as local:
            ways: list[tuple[Runtime, list[str]]] = [
                (local, command) for command in self.COMMANDS.values()
            ]
            for prefix in PREFIXES.values():
                ways += [(ExecRuntime(prefix), self.COMMANDS[c]) for c in ("fails", "is not there")]
            for runtime, command in ways:
                try:
                    ended = await runtime.run(command, self.ENVIRONMENTS[env])
                except Exception as exc:  # noqa: BLE001  # whatever it is
                    keeps_it_to_itself(exc, exc.__cause__, exc.__context__)
                else:
                    keeps_it_to_itself(ended)

    async def test_that_a_command_tells_when_its_answer_is_lost(self) -> None:
        """What the connection complains of is shown, and not what the command did."""
        deaf = ExecRuntime(("sh", "-c", 'echo no tty >&2; "$@" >/dev/null', "sh"))
        with pytest.raises(CommandError, match="no tty") as caught:
            await deaf.run(["sh", "-c", 'echo "$TOKEN" >&2'], {"TOKEN": CANARY})
        keeps_it_to_itself(caught.value)


class TestCommandLine:
    """Both of its streams, with and without `--json`."""

    @pytest.mark.parametrize("json", [[], ["--json"]])
    def test_tells_no_content(self, tmp_path: Path, plan: Plan, json: list[str]) -> None:
        skills, root = tmp_path / "skills", tmp_path / "root"
        make_wrong(plan, root)
        archive = ["--output", tmp_path / "x.tar"]
        for code, arguments in [
            (0, ["plan", skills]),
            (1, ["install", skills, "--to", root, "--strategy", "concurrent"]),
            (2, ["install", skills, "--to", "exec:sh -xc 'env >/dev/null; exit 3'"]),
            (2, ["plan", skills, skills / "x", "--strict"]),
            (0, ["archive", skills, *archive]),
            (2, ["install", skills, "--to", root, "--no-such-option"]),
        ]:
            ended = run(*arguments, *json)  # type: ignore[arg-type]
            assert ended.returncode == code, arguments
            assert CANARY not in ended.stdout + ended.stderr
