"""Hostile input ends: in a bounded time and memory, with findings that are safe to print.

Each input of the tables is planned, planned strictly, and validated by the command line; the bounds
are about ten times what was measured (processor time, so that a busy machine fails none of them).
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings

from property_tests.fuzz import INPUTS, main, run
from property_tests.fuzz_targets import TARGETS
from trio_skills import ArchiveError, PlanError, Problem, find_skills, plan_skills, write_archive

SECONDS = 2
"""The slowest of the small ones takes 0.14 of them, the huge ones take 0.1."""
KIBIBYTES = 128 * 1024
"""A process that validates one small skill takes 40 MiB."""
MANY = 60_000
"""What just fits into a frontmatter, in bytes."""


def fields(text: bytes, name: bytes = b"pdf") -> bytes:
    return b"---\nname: " + name + b"\ndescription: d\n" + text + b"\n---\nBody\n"


def metadata(text: bytes) -> bytes:
    return fields(b"metadata: {x: " + text + b"}")


def bomb(item: bytes) -> bytes:
    """Return lists that each have nine times what the one before has."""
    lists = (b"%c: &%c [%s]" % (c, c, b",".join([item % (c - 1)] * 9)) for c in b"bcdefghij")
    return b"\n".join([b"a: &a [x,x,x,x,x,x,x,x,x]", *lists])


NONE: tuple[str, ...] = ()
INVALID, ALIAS, TAG = ("frontmatter-invalid",), ("frontmatter-alias",), ("frontmatter-tag",)
DEEP, LARGE, TWICE = (
    ("frontmatter-too-deep",),
    ("frontmatter-too-large",),
    ("frontmatter-duplicate",),
)
MISSING, UNCLOSED, NO_MAP = (
    ("frontmatter-missing",),
    ("frontmatter-unclosed",),
    ("frontmatter-not-a-map",),
)
UNKNOWN = ("unknown-field",)
LONG_NAME = ("name-too-long", "name-characters", "name-mismatch")

HOSTILE: Mapping[str, tuple[bytes, Sequence[str]]] = {
    "empty": (b"", MISSING),
    "colon in a value": (fields(b"license: a: b"), INVALID),
    "open quote": (fields(b"license: 'a"), INVALID),
    "open list": (fields(b"license: ["), INVALID),
    "tab as indent": (fields(b"metadata:\n\ta: b"), INVALID),
    "a list for a key": (fields(b"? [a]\n: b"), INVALID),
    "a second document": (fields(b"...\nx: y"), INVALID),
    "directives": (b"---\n%YAML 1." + b"9" * MANY + b"\n---\n", INVALID),
    "quotes": (fields(b'"' * MANY), INVALID),
    "reserved signs": (fields(b"license: `@%"), INVALID),
    "an anchor": (fields(b"license: &a MIT"), ALIAS),
    "billion laughs": (fields(bomb(b"*%c")), ALIAS),
    "lists of aliases": (fields(bomb(b"[*%c]")), ALIAS),
    "merged maps": (fields(bomb(b"{<<: *%c}")), ALIAS),
    "an alias to itself": (fields(b"metadata: &a {x: *a}"), ALIAS),
    "a merge of text": (fields(b"<<: x"), UNKNOWN),
    "merges": (metadata(b"{<<: {a: {<<: {b: c}}}}"), NONE),
    "python/object": (fields(b"metadata: !!python/object/apply:os.system [id]"), TAG),
    "binary": (fields(b"license: !!binary =="), TAG),
    "deep lists": (fields(b"x: " + b"[" * 900), DEEP),
    "deeper lists": (fields(b"x: " + b"[" * MANY), INVALID),
    "deep dashes": (fields(b"x:\n" + b"- " * (MANY // 2)), DEEP),
    "deep maps": (metadata(b"{a: " * (MANY // 4)), DEEP),
    "deep keys": (metadata(b"? " * (MANY // 2)), INVALID),
    "100,000 lists": (fields(b"[" * 100_000), LARGE),
    "10,000 keys": (fields(b"\n".join(b"%d:" % n for n in range(10_000))), UNKNOWN),
    "1,000,000 keys": (fields(b"\n".join(b"%d:" % n for n in range(10**6))), LARGE),
    "a key twice": (fields(b"name: pdf"), TWICE),
    "a key 10,000 times": (fields(b"a:\n" * 10_000), TWICE),
    "a key of 60 kB": (fields(b"x" * MANY + b": y"), INVALID),
    "a complex key of 60 kB": (fields(b"? " + b"x" * MANY + b"\n: y"), UNKNOWN),
    "a key of 1 MB": (fields(b"? " + b"x" * 10**6 + b"\n: y"), LARGE),
    "many items": (metadata(b"[" + b"x," * (MANY // 2) + b"]"), NONE),
    "a huge number": (metadata(b"9" * MANY), NONE),
    "a huge hexadecimal number": (metadata(b"0x" + b"f" * MANY), NONE),
    "a huge exponent": (metadata(b"1e999999"), NONE),
    "sexagesimal numbers": (metadata(b"[1:2:3, " + b"59:" * 9_000 + b"59.9]"), NONE),
    "times out of range": (
        metadata(b"[9999-99-99, 0000-00-00 99:99:99, 2001-01-01T0:0:0+99:99]"),
        NONE,
    ),
    "a number for a name": (fields(b"", b"1e999999"), ("name-mismatch",)),
    "NUL": (fields(b"license: \0"), INVALID),
    "NUL in the body": (fields(b"") + b"\0", NONE),
    "an escaped NUL": (fields(b'license: "\\0"'), NONE),
    "half a surrogate pair": (fields(b'license: "\\ud83d"'), INVALID),
    "no character": (fields(b'license: "\\UFFFFFFFF"'), INVALID),
    "bare CR": (fields(b"").replace(b"\n", b"\r"), NONE),
    "CRLF": (fields(b"").replace(b"\n", b"\r\n"), NONE),
    "UTF-8 with a BOM": (b"\xef\xbb\xbf" + fields(b""), NONE),
    "two BOMs": (b"\xef\xbb\xbf" * 2 + fields(b""), MISSING),
    "UTF-16": (fields(b"").decode().encode("utf-16"), ("not-utf8", *MISSING)),
    "UTF-16 without a BOM": (fields(b"").decode().encode("utf-16-le"), MISSING),
    "UTF-32": (fields(b"").decode().encode("utf-32"), ("not-utf8", *MISSING)),
    "Latin-1": (fields(b"license: caf\xe9"), ("not-utf8",)),
    "an encoded surrogate": (fields(b"license: \xed\xa0\x80"), ("not-utf8",)),
    "escape sequences": (
        fields(b"", b'"\\e]0;x\\a\\e[31m\\u202e"'),
        ("name-characters", "name-mismatch"),
    ),
    "no closing line": (b"---\nname: pdf\ndescription: d\n", UNCLOSED),
    "60 kB without a closing line": (b"---\n" + b"a\n" * (MANY // 2), UNCLOSED),
    "nearly closing lines": (b"---\n" + (b"---" + b" " * 1000 + b"x\n") * (MANY // 1004), UNCLOSED),
    "hyphens": (fields(b"", b"-" * MANY), ("name-too-long", "name-hyphens", "name-mismatch")),
    "marks in the wrong order": (fields(b"", b"a" + "\u0300\u0327".encode() * 30_000), LONG_NAME),
    "marks that are taken apart": (fields(b"", b"a" + "\u0344\u0316".encode() * 30_000), LONG_NAME),
    "letters of eighteen": (fields(b"", "\ufdfa".encode() * 60_000), LONG_NAME),
    "no closing line where it is cut off": (
        fields(b"#".ljust(2**16 - 33, b"x") + b"\n---x"),
        LARGE,
    ),
}


SIZE = 10**8
HUGE: Mapping[str, tuple[bytes, bytes, bytes, Sequence[str]]] = {
    "one line": (b"", b"x", b"", MISSING),
    "one line of dashes": (b"", b"-", b"", MISSING),
    "one line after the frontmatter": (fields(b""), b"x", b"", NONE),
    "one line in the frontmatter": (b"---\nname: ", b"x", b"\n---\n", LARGE),
    "100 MB of fields": (b"---\n", b"a: b\n", b"---\n", LARGE),
    "100 MB of lists": (b"---\n", b"[", b"\n---\n", LARGE),
    "100 MB of CR": (b"---", b"\r", b"---\n", LARGE),
    "100 MB of NUL": (b"---\n", b"\0", b"\n---\n", LARGE),
    "100 MB that are not UTF-8": (b"", b"\xff", b"", ("not-utf8", *MISSING)),
}
"""What they begin with, what is repeated, what they end with."""

VALIDATE = """
import contextlib, io, json, sys, time
from trio_skills.cli import main

for folder in sys.argv[1:]:
    printed = io.StringIO()
    begun = time.process_time()
    try:
        with contextlib.redirect_stdout(printed):
            main(["validate", "--strict", folder])
    except SystemExit as exc:
        print(json.dumps([exc.code, time.process_time() - begun, printed.getvalue()]))
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM:")))
"""


@attrs.frozen
class Validation:
    """What the command line made of one skill."""

    code: int
    seconds: float
    printed: str

    def check(self, kinds: Sequence[str]) -> None:
        assert self.seconds < SECONDS
        *findings, verdict = self.printed.splitlines()
        assert [f.split(" (")[0] for f in findings if not f.startswith("  ")] == [*kinds]
        assert verdict.startswith("1 skill")
        assert self.code == (2 if kinds else 0)
        assert all(line.isprintable() for line in findings)


def validate(folders: Sequence[Path]) -> list[Validation]:
    """Validate each in one process, which must not grow."""
    done = subprocess.run(
        [sys.executable, "-c", VALIDATE, *folders],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    *lines, peak = done.stdout.splitlines()
    assert int(peak) < KIBIBYTES
    return [Validation(*json.loads(line)) for line in lines]


def plan_both_ways(folder: Path, kinds: Sequence[str]) -> None:
    begun = time.process_time()
    problems = plan_skills([folder]).warnings
    assert time.process_time() - begun < SECONDS
    assert [problem.kind for problem in problems] == [*kinds]
    assert all(problem.message.isprintable() for problem in problems)
    begun = time.process_time()
    refused: tuple[Problem, ...] = ()
    try:
        plan_skills([folder], strict=True)
    except PlanError as exc:
        refused = exc.problems
    assert time.process_time() - begun < SECONDS
    assert refused == problems


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Path, Validation]]:
    """Every small one, with its folder and what the command line makes of it."""
    folders = []
    for data, _ in HOSTILE.values():
        folder = tmp_path_factory.mktemp("hostile") / "pdf"
        folder.mkdir()
        (folder / "SKILL.md").write_bytes(data)
        folders.append(folder)
    return dict(zip(HOSTILE, zip(folders, validate(folders), strict=True), strict=True))


class TestTargets:
    """`HYPOTHESIS_PROFILE=fuzz` searches longer; `python -m property_tests.fuzz` as you like."""

    @pytest.mark.parametrize("name", TARGETS)
    def test_no_input_breaks_a_law(self, name: str) -> None:
        @settings(max_examples=3 * settings().max_examples)
        @given(INPUTS[name])
        def check(data: bytes) -> None:
            run(TARGETS[name], data)

        check()

    def test_an_input_that_does_is_kept_to_be_given_again(self, tmp_path: Path) -> None:
        def target(data: bytes) -> None:
            assert data != b"bad"

        kept = tmp_path / "kept"
        run(target, b"good", kept)
        assert not kept.exists()
        with pytest.raises(AssertionError) as caught:
            run(target, b"bad", kept)
        assert kept.read_bytes() == b"bad"
        assert caught.value.__notes__[-1].endswith(f"fuzz target --replay {kept}")

    def test_a_file_can_be_given_to_a_target(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "input").write_bytes(b"---\n")
        main(["parse_skill", "--replay", str(tmp_path / "input")])
        assert capsys.readouterr().out == "no law is broken\n"


class TestHostileSkills:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_of_little_size_take_little_time(
        self, name: str, hostile: Mapping[str, tuple[Path, Validation]]
    ) -> None:
        kinds = HOSTILE[name][1]
        folder, validation = hostile[name]
        plan_both_ways(folder, kinds)
        validation.check(kinds)

    @pytest.mark.parametrize("name", HUGE)
    def test_of_great_size_take_little_time_and_memory(self, name: str, tmp_path: Path) -> None:
        beginning, piece, end, kinds = HUGE[name]
        folder = tmp_path / "pdf"
        folder.mkdir()
        with open(folder / "SKILL.md", "w+b") as file:
            file.write(beginning)
            file.writelines(piece * (2**20 // len(piece)) for _ in range(SIZE // 2**20 + 1))
            file.write(end)
            file.flush()
            plan_both_ways(folder, kinds)
            (validation,) = validate([folder])
            file.truncate(0)  # pytest keeps the folder
        validation.check(kinds)


class TestChainsOfLinks:
    """Python resolves a link in as many steps as there are links, the kernel gives up after 40."""

    def test_in_a_skill_are_refused_in_little_time(self, tmp_path: Path) -> None:
        folder = tmp_path / "pdf"
        folder.mkdir()
        (folder / "SKILL.md").write_bytes(fields(b""))
        chain(folder, 2_000)
        begun = time.process_time()
        with pytest.raises(PlanError) as caught:
            plan_skills([folder])
        assert time.process_time() - begun < SECONDS
        assert {problem.kind for problem in caught.value.problems} == {"link-loop"}

    def test_to_a_source_are_refused(self, tmp_path: Path) -> None:
        last = chain(tmp_path, 1_100)
        for refused in (partial(plan_skills, [last]), partial(find_skills, last)):
            with pytest.raises(PlanError) as caught:
                refused()
            assert [problem.kind for problem in caught.value.problems] == ["source-unreadable"]

    async def test_to_the_root_of_an_archive_are_refused(self, tmp_path: Path) -> None:
        last = chain(tmp_path, 1_100)
        with pytest.raises(ArchiveError):
            await write_archive(last, io.BytesIO())


class TestLongPaths:
    def test_what_is_planned_can_be_read(self, tmp_path: Path) -> None:
        """Planning opens folder after folder; a path over 4,096 bytes can be opened by nobody."""
        folder = tmp_path / ("r" * 250) / ("r" * 250) / "pdf"
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_bytes(fields(b""))
        with contextlib.chdir(folder):
            deep = Path(*["d" * 250] * 15)
            deep.mkdir(parents=True)
            (deep / "file").write_bytes(b"")
        with pytest.raises(PlanError) as caught:
            plan_skills([folder])
        assert {problem.kind for problem in caught.value.problems} == {"path-too-long"}


def chain(folder: Path, length: int) -> Path:
    """Make links, each to the one before, and return the last."""
    goal = "SKILL.md"
    for number in range(length):
        (folder / f"l{number}").symlink_to(goal)
        goal = f"l{number}"
    return folder / goal
