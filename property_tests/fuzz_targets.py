"""Three functions that any fuzzer can call: bytes in, and an exception where a law is broken."""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar, get_args

import attrs
import trio

from property_tests.source_trees import Members, read_members
from trio_skills import (
    ArchiveError,
    Compression,
    OnCollision,
    Plan,
    PlanError,
    Problem,
    Upload,
    _tar,
    plan_skills,
    write_archive,
)
from trio_skills import _skill as skills
from trio_skills._compress import decompressed
from trio_skills._exclude import DEFAULT_EXCLUDED

T = TypeVar("T")

VALID = b"---\nname: pdf\ndescription: Reads PDFs.\n---\n"
NAMES = (
    *(b"a", b"b", b"c", b"A", b"a", b"b", b"c", b"d", b"skill.md", b"SKILL.md", b".git", b"x.pyc"),
    *(b"-rf", b"a b", b"new\nline", b"\x1b[31m", b"\\x", b"c:", b"BZh", b" ", b"\xe2\x80\xae"),
    *(b"\xc3\xa9", b"e\xcc\x81", b"\xc3\xa9" * 60, b"n" * 99, b"n" * 100, b"n" * 101, b"c" * 101),
    b"n" * 255,
)
NOT_UTF8 = (b"\xff", b"\xed\xa0\x80", b"n\xc3")
DESTINATIONS = ("", ".", "/", "dest", "/a//b/", "a/./b", "\u00e9", " ")
NO_DESTINATIONS = ("../x", "a/../..", "a\0b", "\udc80")
SECOND = ("pdf", "link", "pdf", "other/pdf", "pdf", "pdf/a", "missing")
"""Further sources."""
KINDS = (
    *4 * ("file", "folder", "script", "file", "link", "folder", "file", "script", "file"),
    *("link to a folder", "loop", "link away", "any link", "fifo"),
)
SIZES = (0, 1, 2, 511, 512, 513, 10_240, 2**16, 2**20, 2**20 + 1)
DEPTHS = (1, 1, 1, 2, 4)
NUMBERS = (0, 1, 8**7 - 1, 8**7, 2**32 - 2)
TIMES = (0, 315_532_800, 2**31, 2**32, 8**11 - 1, 8**11)


def parse_skill(data: bytes) -> None:
    """Any `SKILL.md` gives the same skill each time, with findings that are safe to print."""
    folder = Path("skills/pdf")
    skill = skills.parse_skill(folder, "pdf", data)
    assert skill == skills.parse_skill(folder, "pdf", bytes(bytearray(data)))
    if skill.description is not None:
        assert skill.description.strip()
        skill.description.encode()  # half a surrogate pair could be sent nowhere
    _check_problems(skill.problems)
    assert len({problem.kind for problem in skill.problems}) == len(skill.problems)
    with _folder() as place:
        source = place / "pdf"
        source.mkdir()
        (source / "SKILL.md").write_bytes(data)
        plan = plan_skills([source])
        assert _findings(plan.warnings) == _findings(skill.problems)
        assert plan.skills[0].description == skill.description
        strictly = _outcome(partial(plan_skills, [source], strict=True))
        refused = () if isinstance(strictly, Plan) else strictly
        assert _findings(refused) == _findings(skill.problems)


def plan(data: bytes) -> None:
    """Any folder gives the same plan, or the same refusal, each time; the plan is the folder's."""
    choices = _Choices(data)
    options = choices.byte()
    dest = choices.one_of(NO_DESTINATIONS if options > 240 else DESTINATIONS)
    with _folder() as place:
        skill_md = choices.skill_md() if options & 1 else VALID
        (place / "link").symlink_to("pdf")
        _write(_Choices(b""), place / "other" / "pdf", VALID)
        planned = partial(
            plan_skills,
            [place / "pdf", place / choices.one_of(SECOND)],
            dest,
            on_collision=choices.one_of(get_args(OnCollision)),
            strict=bool(options & 2),
            shebang=bool(options & 4),
        )
        _write(choices, place / "pdf", skill_md)
        first = _outcome(planned)
        assert first == _outcome(planned)
        if isinstance(first, Plan):
            _check_plan(first, place)
        else:
            _check_problems(first)


def tar(data: bytes) -> None:
    """What is written to an archive is what Python's `tarfile` reads of it."""
    choices = _Choices(data)
    if choices.byte() & 1:
        _check_members(choices)
    else:
        _check_archive(choices)


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "parse_skill": parse_skill,
    "plan": plan,
    "tar": tar,
}


@attrs.define
class _Choices:
    """Choices that bytes make, one after another; zeros when there are no more."""

    data: bytes
    at: int = 0

    @property
    def more(self) -> bool:
        return self.at < len(self.data)

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[self.byte() % len(choices)]

    def some(self) -> bytes:
        """Return bytes as they are, up to 255."""
        size = self.byte()
        self.at += size
        return self.data[self.at - size : self.at]

    def name(self) -> bytes:
        """Return the name of a file: one that broke something, or any other."""
        number = self.byte()
        if number < 224:
            return NAMES[number % len(NAMES)]
        if number < 230:
            return NOT_UTF8[number % len(NOT_UTF8)]
        name = self.some().replace(b"/", b"").replace(b"\0", b"")
        return name if name not in (b"", b".", b"..") else b"a"

    def skill_md(self) -> bytes | None:
        """Return the content of a `SKILL.md`, or None: there is none."""
        beginning = self.one_of((b"---\n", b"", None))
        return None if beginning is None else beginning + self.some()

    def content(self) -> bytes:
        beginning = self.some()
        return beginning.ljust(self.one_of(SIZES), b"x")


def _write(choices: _Choices, root: Path, skill_md: bytes | None) -> None:
    """Make a tree of files, folders, links and FIFOs; what cannot be made is not in it."""
    top = os.fsencode(root)
    folders = [top]
    root.mkdir(parents=True)
    if skill_md is not None:
        (root / "SKILL.md").write_bytes(skill_md)
    while choices.more:
        kind = choices.one_of(KINDS)
        path = os.path.join(choices.one_of(folders), choices.name())
        with suppress(OSError, ValueError):  # a name that is taken, or too long
            match kind:
                case "file" | "script":
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                    file = os.open(path, flags, 0o644 if kind == "file" else 0o755)
                    with open(file, "wb") as output:
                        output.write(choices.content())
                case "folder":
                    os.mkdir(path)
                    folders.append(path)
                case "fifo":
                    os.mkfifo(path)
                case _:
                    os.symlink(_goal(choices, kind, path, folders), path)


def _goal(choices: _Choices, kind: str, path: bytes, folders: Sequence[bytes]) -> bytes:
    """Return what a link says."""
    top = folders[0]
    match kind:
        case "link":
            goal = top + choices.one_of((*3 * (b"/SKILL.md",), b"/a", b"/b/a"))
        case "link to a folder":
            goal = choices.one_of(folders)
        case "loop":
            goal = choices.one_of((path, top))
        case "link away":
            return choices.one_of((b"..", b"/etc", b"a/..", b"../../x"))
        case _:
            return choices.one_of((b"./a", b"a/./b", b"b//", choices.some()))
    return os.path.relpath(goal, os.path.dirname(path))


def _outcome(planned: Callable[[], Plan]) -> Plan | tuple[Problem, ...]:
    try:
        return planned()
    except PlanError as exc:
        return exc.problems


def _check_plan(plan: Plan, place: Path) -> None:
    below = plan.dest.rstrip("/") + "/" if plan.dest != "." else ""
    targets = [upload.target for upload in plan.uploads]
    assert targets == sorted(set(targets))
    for upload in plan.uploads:
        assert upload.target.startswith(below)
        assert not {"", ".", ".."} & set(upload.target.removeprefix(below).split("/"))
        assert isinstance(upload.source, Path)
        assert os.path.realpath(upload.source).startswith(os.path.realpath(place) + "/")
        content = upload.source.read_bytes()
        assert (upload.size, upload.digest) == (len(content), hashlib.sha256(content).hexdigest())
    expected = {posixpath.join(plan.dest, "pdf", path) for path in _files(place / "pdf")}
    assert {posixpath.normpath(path) for path in expected} <= set(targets)
    _check_problems(plan.warnings)


def _files(root: Path) -> Iterator[str]:
    """Yield the files, and links to files, that nothing leaves out."""
    for path in read_members(root):
        left_out = any(
            part in DEFAULT_EXCLUDED or part.endswith(".pyc") for part in path.split("/")
        )
        if (root / path).is_file() and not left_out:
            yield path


def _check_members(choices: _Choices) -> None:
    """Members of any name, one by one as in an archive, and as a packed install sends them."""
    owner = (choices.one_of(NUMBERS), choices.one_of(NUMBERS))
    mtime = choices.one_of(TIMES)
    pieces: list[bytes] = []
    uploads: list[tuple[str, Upload]] = []
    expected: list[tuple[object, ...]] = []
    while choices.more:
        name = "/".join(os.fsdecode(choices.name()) for _ in range(choices.one_of(DEPTHS)))
        match choices.byte() % 4:
            case 0 | 1 as executable:
                content = choices.content()
                upload = Upload.of(name, content, executable=bool(executable))
                before = _tar.header(
                    name, upload.size, executable=upload.executable, owner=owner, mtime=mtime
                )
                pieces += (before, content, _tar.padding(upload.size))
                uploads.append((name, upload))
                expected.append((name, 0o755 if executable else 0o644, content))
            case 2:
                pieces.append(_tar.folder(name, owner, mtime))
                expected.append((name, 0o755, None))
            case _:
                to = os.fsdecode(choices.name())
                pieces.append(_tar.link(name, to, owner, mtime))
                expected.append((name, 0o777, to))
    errors: dict[str, Exception] = {}
    sent = [*_tar.joined(_tar.members(uploads, errors, owner))]
    assert not errors
    one_by_one = [*_unpacked(b"".join([*pieces, _tar.END]))]
    assert [(m.name, m.mode, what) for m, what in one_by_one] == expected
    assert all((m.uid, m.gid, m.mtime) == (*owner, mtime) for m, _ in one_by_one)
    packed = [*_unpacked(b"".join([*sent, _tar.END]))]
    files = [member for member in expected if isinstance(member[2], bytes)]
    assert [(m.name, m.mode, what) for m, what in packed] == files
    assert all((m.uid, m.gid) == owner for m, _ in packed)


def _check_archive(choices: _Choices) -> None:
    """A source archive of a tree, written twice."""
    compression = choices.one_of(get_args(Compression))
    with _folder() as place:
        root = place / "tree"
        _write(choices, root, None)
        file, again = io.BytesIO(), io.BytesIO()
        write = partial(write_archive, root, exclude=["!*"], compression=compression)
        try:
            info = trio.run(write, file)
        except ArchiveError as exc:
            _check_problems(exc.problems)
            return
        trio.run(write, again)
        assert file.getvalue() == again.getvalue()
        content = b"".join(decompressed(file.getvalue(), compression, 2**20))
        assert (info.digest, info.tar_size) == (hashlib.sha256(content).hexdigest(), len(content))
        found: Members = {}
        for member, what in _unpacked(content):
            path = member.name.removeprefix("./")
            assert path not in found
            found[path] = ("folder",)
            if member.isreg():
                found[path] = ("file", what, bool(member.mode & 0o100))
            elif member.issym():
                found[path] = ("link", what)
        assert found == {
            path: ("link", posixpath.normpath(str(rest[0]))) if kind == "link" else (kind, *rest)
            for path, (kind, *rest) in read_members(root).items()
        }


def _unpacked(content: bytes) -> Iterator[tuple[tarfile.TarInfo, bytes | str | None]]:
    """Yield each member, with a file's content or what a link says."""
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:", encoding="utf-8") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            yield member, file.read() if file else member.linkname if member.issym() else None


def _findings(problems: Iterable[Problem]) -> list[tuple[str, str]]:
    return [(problem.kind, problem.message) for problem in problems]


def _check_problems(problems: Iterable[Problem]) -> None:
    """Whatever the names are, a problem is short enough and safe to print."""
    for problem in problems:
        assert problem.kind.replace("-", "").isalnum()
        assert problem.message.isprintable()
        assert 0 < len(problem.message) < 20_000
        assert str(problem).isprintable()


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)
