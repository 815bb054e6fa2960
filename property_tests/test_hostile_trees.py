"""Whatever a folder holds: a plan stays in its destination, and what is printed is printable."""

from __future__ import annotations

import io
import json
import os
import posixpath
import pty
import re
import signal
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from trio_skills import (
    InstallError,
    PlanError,
    Problem,
    RuntimeOpenError,
    Upload,
    UploadError,
    find_skills,
    install,
    open_local,
    open_runtime,
    plan_skills,
    plan_uploads,
)
from trio_skills.cli import main
from trio_skills.testing import MemoryRuntime
from trio_skills.testing.strategies import SkillTree, file_names, skill_trees

# Each example of some is many commands: a failure is shown as it was found.
few = settings(
    max_examples=settings().max_examples // 2,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
CANARY = b"what is outside"

# Names that a person, a shell, a program or a terminal takes for something else.
EVIL = (
    *(
        "\x1b[5m",
        "\x1b]0;title\x07",
        "\x9b5m",
        "\r",
        "eol\neol",
        "\x08",
        "\x7f",
        "\u202e",
        "\u2066",
    ),
    *("\u2028", "\u200b", "\ufeff", "\ud800", "\udcff", "\U000e0041", "--json", "-rf", "$(id)"),
    *("; id", "[red]", "[/]", ":smile:", "%s", "{0}"),
)
evil_names = st.lists(st.one_of(st.sampled_from(EVIL), file_names()), min_size=1, max_size=3).map(
    lambda parts: "".join(parts)[:60]
)


@attrs.frozen
class HostileTree:
    """A skill folder, and in it links that lead anywhere, FIFOs and names that are not UTF-8."""

    tree: SkillTree
    links: dict[str, str]
    """Names of links, and what they say; `OUT` is a folder outside with a canary."""
    pipes: list[str]
    raw: list[bytes]
    """Names of files that are not UTF-8."""

    def write(self, place: Path) -> Path:
        folder = self.tree.write(place / "skill")
        (place / "outside").mkdir()
        (place / "outside" / "file").write_bytes(CANARY)
        os.utime(place / "outside" / "file", (0, 1))
        for name, to in self.links.items():
            with suppress(FileExistsError):
                (folder / name).symlink_to(to.replace("OUT", str(place / "outside")))
        for name in self.pipes:
            with suppress(FileExistsError):
                os.mkfifo(folder / name)
        for raw in self.raw:
            with suppress(FileExistsError, IsADirectoryError):
                Path(os.fsdecode(os.path.join(os.fsencode(folder), raw))).write_bytes(b"")
        return folder


goals = st.sampled_from(
    [
        *("OUT", "OUT/file", "../outside", "../outside/file", "..", ".", "/", "SKILL.md", "x"),
        *("a/../..", "../skill", "../skill/SKILL.md", "/proc/self/environ", "/dev/zero", "loop"),
    ]
)
hostile_trees = st.builds(
    HostileTree,
    skill_trees(max_files=4),
    st.dictionaries(
        st.one_of(file_names(), st.sampled_from(["a", "loop", "b"])), goals, max_size=4
    ),
    st.lists(file_names(), max_size=1),
    st.lists(st.sampled_from([b"\xff", b"a\x80b", b"\x1b\xfe"]), max_size=1),
)
dests = st.one_of(
    st.sampled_from([".", "", "/", "//x", "a/../..", "..", "a//b/.", "/root/.agents/skills"]),
    st.lists(file_names(), max_size=2).map("/".join),
)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@given(hostile_trees, dests)
def test_every_target_lies_below_the_destination_and_nothing_outside_is_read(
    hostile: HostileTree, dest: str
) -> None:
    with folder() as place:
        source = hostile.write(place)
        try:
            plan = plan_skills([source], dest)
        except PlanError as exc:
            printed_safely(str(exc))
            return
        finally:
            assert (place / "outside" / "file").stat().st_atime_ns == 0
        base = posixpath.join(plan.dest, "skill")
        for upload in plan.uploads:
            assert os.path.commonpath([upload.target, base]) == posixpath.normpath(base)
            assert ".." not in upload.target.split("/")
            assert isinstance(upload.source, Path)
            assert upload.source.is_relative_to(os.path.realpath(source))
            assert stat.S_ISREG(upload.source.lstat().st_mode)
            assert upload.read() != CANARY


@few
@given(hostile_trees, st.random_module())
def test_what_is_found_and_planned_is_installed_below_the_root(
    hostile: HostileTree, schedule: object
) -> None:
    async def put(place: Path) -> None:
        async with open_local(place / "root") as runtime:
            await install(plan_skills(find_skills(place / "skill")), runtime)

    with folder() as place:
        hostile.write(place)
        with suppress(PlanError):
            trio.run(put, place)
        assert set(os.listdir(place)) <= {"skill", "outside", "root"}
        assert (place / "outside" / "file").read_bytes() == CANARY
        for path in place.joinpath("root").rglob("*"):
            assert not path.is_symlink()


def printed_safely(text: str) -> None:
    """Every character shows itself: none moves the cursor, turns the text round, or is none."""
    assert "eol\neol" not in text
    for line in text.split("\n"):
        assert line.isprintable(), ascii(line)


class TestPrinting:
    @given(evil_names, evil_names)
    def test_of_problems_and_errors(self, one: str, other: str) -> None:
        errors: list[Exception] = [
            PlanError([Problem("kind", one, "wrong"), Problem("kind", other, "wrong")]),
            UploadError(one, OSError(other)),
            UploadError(one, OSError(5, other)),
            UploadError(one, ExceptionGroup(other, [ValueError(one)])),
            RuntimeOpenError(one, other),
        ]
        for attempt in (
            lambda: plan_uploads([Upload.of(one, b""), Upload.of(one, b"")]),
            lambda: plan_uploads([Upload.of(one, b""), Upload.of(f"{one}/{other}", b"")]),
            lambda: plan_uploads([Upload(one, Path(other), 1)]),
            lambda: plan_skills([one, other, f"{one}/{other}"], other, exclude=[one]),
            lambda: plan_skills([], f"../{one}"),
            lambda: find_skills(one),
            lambda: open_runtime(f"{one}:{other}"),
            lambda: open_runtime(f"docker://{one}?{other}=1"),
        ):
            try:
                attempt()
            except (PlanError, RuntimeOpenError, ValueError) as exc:
                errors.append(exc)
        for error in errors:
            printed_safely(str(error))
            printed_safely(repr(error))

    @given(evil_names, evil_names)
    @example("\x1b[5m", "a")
    def test_of_collisions_and_links(self, one: str, other: str) -> None:
        """Their messages name other paths than the one that they are about."""
        with folder() as place:
            sources = [place / name / "skill" for name in ("a" + one, "b" + other)]
            for source in sources:
                with suppress(ValueError, OSError):  # no name for this file system
                    source.mkdir(parents=True)
                    (source / "SKILL.md").write_bytes(b"")
                    (source / f"to {other}").symlink_to(f"/{one}")
            collection = place / f"c{one}"
            with suppress(ValueError, OSError):
                collection.mkdir()
                (collection / "link").symlink_to(sources[1])
            for attempt in (
                lambda: plan_skills(sources),
                lambda: plan_uploads(
                    Upload.of(target, path)
                    for target in ("a", "a/b", "a")
                    for path in place.rglob("SKILL.md")
                ),
                lambda: find_skills(collection),
            ):
                try:
                    attempt()
                except PlanError as exc:
                    printed_safely(str(exc))
                    for problem in exc.problems:
                        printed_safely(problem.message)

    @given(evil_names, st.sampled_from(["sequential", "packed"]), st.random_module())
    def test_of_reports(self, name: str, strategy: str, schedule: object) -> None:
        async def main() -> InstallError:
            async def broken(target: str, data: bytes) -> None:
                await trio.lowlevel.checkpoint()
                raise OSError(f"{target}: {name}")

            runtime = MemoryRuntime()
            runtime.write = broken  # type: ignore[method-assign]  # a runtime that says it all
            with pytest.raises(InstallError) as caught:
                await install(plan, runtime)
            return caught.value

        try:
            plan = plan_uploads([Upload.of(f"a{name}", b"")])
        except PlanError:
            return
        error = trio.run(main)
        report = error.report
        for text in (str(error), repr(error), repr(report), report.summary()):
            printed_safely(text)
        for text in (report.to_json(), report.chrome_trace()):
            assert text.isascii()
            printed_safely(text)
            assert json.loads(text)


def printed(arguments: Sequence[str | Path]) -> str:
    """Run a command line, and return what it printed to both streams."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", "strict", write_through=True) for _ in "12"]
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with redirect_stdout(streams[0]), redirect_stderr(streams[1]), suppress(SystemExit):
            main([str(argument) for argument in arguments])
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    text = ""
    for stream in streams:
        stream.seek(0)
        text += stream.read()
    return text


class TestCommandLine:
    """Without a terminal, where no colour hides what comes from outside."""

    @few
    @given(evil_names, evil_names, evil_names, st.booleans())
    def test_prints_names_escaped(self, one: str, two: str, three: str, as_json: bool) -> None:
        with folder() as place:
            skill = place / "skills" / f"s{one}"
            with suppress(ValueError, OSError):  # no name for this file system
                skill.mkdir(parents=True)
                (skill / "SKILL.md").write_text(f"---\nname: {three!r}\n{two!r}: x\n---\n")
                (skill / f"f{two}").write_bytes(b"")
                (skill / f"{three}.pyc").write_bytes(b"")
                (place / "root" / skill.name / f"f{two}" / "in the way").mkdir(parents=True)
            options = ["--json"] if as_json else []
            root = place / f"r{three}"
            for arguments in (
                ["plan", place / "skills", "--exclude", two],
                ["plan", place / "skills", "--dest", one],
                ["plan", skill, place / one, place / two, "--strict"],
                ["validate", place / "skills"],
                ["install", place / "skills", "--to", place / "root", "--verify"],
                ["install", place / "skills", "--to", root, "--strategy", "concurrent"],
                ["install", place / "skills", "--to", f"{one}:{two}"],
                ["install", place / "skills", f"--{two}", three],
                ["archive", place / "skills", "-o", place / f"{two}.tar"],
                ["archive", place / f"x{one}", f"m{two}", "-o", place / "x.tar"],
                ["archive", place / "skills", f"m{two}", "-o", place / "x.tar"],
                [one, two],
            ):
                printed_safely(printed([*arguments, *options]))

    @few
    @given(evil_names, evil_names)
    def test_prints_links_that_lead_away_escaped(self, one: str, two: str) -> None:
        with folder() as place:
            skill = place / "skills" / "s"
            skill.mkdir(parents=True)
            (skill / "SKILL.md").write_bytes(b"")
            with suppress(ValueError, OSError):
                (skill / f"l{one}").symlink_to(f"/{two}")
                (place / f"d{two}").mkdir()
                (skill / f"m{one}").symlink_to(place / f"d{two}")
            commands: list[list[str | Path]] = [
                ["plan", skill],
                ["archive", skill, "-o", place / "x"],
            ]
            for command in commands:
                printed_safely(printed(command))
                printed_safely(printed([*command, "--json"]))


class TestTerminal:
    """What is printed there has colours, but none of them comes from a name."""

    OURS = re.compile(r"\x1b\[(\?25[lh]|2K|1A|[0-9;]*m)|\r")

    def test_gets_names_escaped(self, tmp_path: Path) -> None:
        name = "".join(c for c in EVIL if c not in ("\ud800", "$(id)", "; id")).replace("/", "")
        skill = tmp_path / "skills" / name[:40]
        skill.mkdir(parents=True)
        for number in range(0, len(name), 40):
            (skill / name[number : number + 40]).write_bytes(b"")
        (skill / "SKILL.md").write_bytes(b"")
        (skill / "link").symlink_to(f"{name[:40]}.pyc")
        (skill / f"{name[:40]}.pyc").write_bytes(b"")
        for command in (
            ["plan", str(skill)],
            ["validate", str(skill)],
            ["install", str(skill), "--to", str(tmp_path / name[:30])],
            ["archive", str(skill), "missing\x1b[5m", "-o", str(tmp_path / "x")],
        ):
            text = on_a_terminal(command)
            assert text
            assert "\x1b[5m" not in text
            printed_safely(self.OURS.sub("", text))


def on_a_terminal(arguments: Sequence[str]) -> str:
    child, terminal = pty.fork()
    if child == 0:
        program = [sys.executable, "-m", "trio_skills", *arguments]
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "500"}
        os.execve(sys.executable, program, environment)
    text = b""
    with suppress(OSError):  # EIO: the program has ended
        while piece := os.read(terminal, 2**16):
            text += piece
    os.close(terminal)
    os.waitpid(child, 0)
    return text.decode()
