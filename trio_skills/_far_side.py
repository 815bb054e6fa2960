"""The program that runs in a sandbox: how it is called, and how its answer is read.

The program itself, with what it promises, is `far_side.sh`. Nothing is run here.
"""

from __future__ import annotations

import posixpath
import re
import secrets
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from importlib.resources import files

import attrs

from trio_skills import _tar
from trio_skills._beneath import can_be_passed, components, folders_above
from trio_skills._commands import as_argument, read_batch
from trio_skills._errors import CommandError, DestinationError, LostAnswerError, Problem
from trio_skills._printable import one_line, printable
from trio_skills._runtime import Existing, FileState, RunResult
from trio_skills._transfers import by_folder
from trio_skills._upload import Packed, Upload


def _without_comments(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("#"))


def _program(name: str) -> str:
    return _without_comments((files("trio_skills") / name).read_text("utf-8"))


PROGRAM = _program("far_side.sh")
RUN_PROGRAM = _program("far_side_run.sh")

_LISTED_AT_ONCE = 100
"""As many as `for_each` in the program takes at a time."""

_CODE = re.compile(rb"\d+\n")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class MissingProgramError(CommandError):
    """The sandbox lacks a program that is needed there; `program` is its name."""

    def __init__(self, program: str) -> None:
        self.program = program
        super().__init__(program)

    def __str__(self) -> str:
        return f"the sandbox has no program {printable(self.program)!r}, which is needed there"


@attrs.frozen
class Call:
    """One call of the program."""

    nonce: str
    """What its answer is recognised by."""
    folder: str
    """Where it works, to be shown."""
    argv: tuple[str, ...]
    """What is run in the sandbox."""

    @property
    def end(self) -> bytes:
        """What the last line of a whole answer begins with, and the end of the line before it."""
        return b"\n" + self.nonce.encode() + b" "

    def body(self, result: RunResult) -> bytes:
        """Return what was answered. Raises as `ended` does."""
        return self.ended(result).stdout

    def ended(self, result: RunResult) -> RunResult:
        """Return how what was called ended: its own output, and its own exit code.

        Raises `MissingProgramError` where there is no shell, and `LostAnswerError` where the answer
        is not whole: then it is not known how far the program came.
        """
        mark = self.nonce.encode()
        _, begun, rest = result.stdout.partition(mark + b"\n")
        body, ended, code = rest.rpartition(self.end)
        if not begun and _has_no_shell(result):
            raise MissingProgramError("sh")
        if not ended or not _CODE.match(code):
            raise LostAnswerError(self._lost(result))
        stderr = result.stderr.partition(mark + b"\n")[2]
        # What a command left running may print later than its end.
        code, _, later = code.partition(b"\n")
        return RunResult(int(code), body + later, stderr)

    def _lost(self, result: RunResult) -> str:
        # What a command that was run itself printed is nobody's business.
        complaint = result.stderr.partition(self.nonce.encode())[0].decode("utf-8", "replace")
        ended = f"exit code {result.exit_code}"
        text = f"the connection, or the command in the sandbox, ended early ({ended})"
        return f"{text}: {one_line(complaint)}".removesuffix(": ")


def _has_no_shell(result: RunResult) -> bool:
    """Whether a container engine says, in its own words, that there is no `sh`."""
    complaint = result.stderr.lower()
    names_it = any(
        name in complaint for name in (b'"sh"', b"'sh'", b"`sh`", b"\xe2\x80\x98sh\xe2\x80\x99")
    )
    says_so = any(words in complaint for words in (b"not found", b"no such file"))
    return result.exit_code in (126, 127) and names_it and says_so


def call(action: str, base: str, rel: str, *arguments: str) -> Call:
    """Return the call of an action in the folder `rel` of `base`; see `far_side.sh`."""
    nonce = secrets.token_hex(8)
    folder = posixpath.join(base, rel) if rel else base
    return Call(nonce, folder, ("sh", "-c", PROGRAM, "sh", nonce, action, base, rel, *arguments))


def run(base: str, argv: Sequence[str], env: Mapping[str, str]) -> Call:
    """Return the call that runs a command. Raises `ValueError` where it, or `env`, cannot be."""
    if not argv or argv[0].startswith("-") or "=" in argv[0]:
        raise ValueError("a command has a program, whose name has no '=' and no '-' at its front")
    for name in env:
        if not _NAME.fullmatch(name):
            raise ValueError(f"no name of an environment variable: {name!r}")
    for text in (*argv, *env.values()):
        if "\0" in text or not can_be_passed(text):
            raise ValueError("an argument, or a value, holds NUL or what is no character")
    pairs = [f"{name}={value}" for name, value in env.items()]
    nonce = secrets.token_hex(8)
    arguments = (nonce, base, str(len(pairs)), *pairs, *argv)
    return Call(nonce, base, ("sh", "-c", RUN_PROGRAM, "sh", *arguments))


def locate(path: str, folder: str) -> tuple[str, str]:
    """Return the base and the path beneath it of a target's folder, in a sandbox opened at `path`.

    Links are followed in what the user named, which is `path`, or an absolute destination.
    """
    parts = "/".join(components(folder))
    return ("/" + parts, "") if folder.startswith("/") else (as_base(path), parts)


def as_base(path: str) -> str:
    """Return the path of the sandbox's own folder as `cd` takes it."""
    if path.startswith(("/", "~/")) or path == "~":
        return path
    return f"./{path}" if path else "."


def listed(targets: Iterable[str]) -> bytes:
    """Return targets as the program reads them from its standard input."""

    def escaped(target: str) -> bytes:
        path = as_argument(target)
        return path.encode().replace(b"\\", b"\\0134").replace(b"\n", b"\\0012") + b"\n"

    return b"".join(map(escaped, targets)) + b"\n"


@attrs.frozen
class Parcel:
    """Uploads for one folder of the sandbox, which travel in one archive."""

    folder: str
    """Where it is unpacked."""
    uploads: tuple[tuple[str, Upload], ...]
    """Each with its path beneath that folder."""
    holds_folders: bool
    """Whether the first part of each path is a skill folder, to appear whole."""
    _made: list[list[bytes]] | None = attrs.field(default=None, eq=False, repr=False)
    """The archive, once it was made, where the uploads are in memory: the same for everybody."""

    def call(self, path: str, existing: Existing, *archive: str) -> Call:
        """Return the call that unpacks it, in a sandbox opened at `path`; see `far_side.sh`."""
        kind = "folders" if self.holds_folders else "files"
        return call("write_many", *locate(path, self.folder), existing, kind, *archive)

    def archive(
        self,
        existing: Existing,
        errors: dict[str, Exception],
        owner: _tar.Owner | None = None,
    ) -> Generator[bytes, None, None]:
        """Yield the archive; `errors` gets, by target, what could not be sent: see `_tar`."""
        if self._made is not None and owner is None:
            if not self._made:  # two threads may make it at once: the first one's is taken
                self._made.append(list(self._pieces(existing, errors, owner)))
            return _tar.joined(piece for piece in self._made[0])
        return _tar.joined(self._pieces(existing, errors, owner))

    def _pieces(
        self, existing: Existing, errors: dict[str, Exception], owner: _tar.Owner | None
    ) -> Generator[bytes, None, None]:
        if owner is not None:  # the Docker engine would make folders that are the host's root's
            folders = {above for path, _ in self.uploads for above in folders_above(path)}
            for folder in sorted(folders):
                yield _tar.folder(f"new/{folder}", owner)
        errors.clear()  # of a transfer that could not begin
        named = ((f"new/{path}", upload) for path, upload in self.uploads)
        with closing(_tar.members(named, errors, owner or _tar.NOBODY_IN_PARTICULAR)) as members:
            yield from members
        if existing != "merge" and self.holds_folders:
            for name in {path.split("/")[0] for path, u in self.uploads if u.target in errors}:
                yield _tar.header(f"drop/{name}", 0)
        yield _tar.header("end", 0) + _tar.END

    def errors(
        self,
        reply: Reply,
        existing: Existing,
        unread: Mapping[str, Exception],
    ) -> dict[str, Exception]:
        """Return, by target, what failed, from what the program answered."""
        failed = dict(unread)
        if existing != "merge" and self.holds_folders:
            partial = {path.split("/")[0] for path, u in self.uploads if u.target in unread}
            for path, upload in self.uploads:
                if path.split("/")[0] in partial and upload.target not in failed:
                    reason = "not put there, because other files of its skill failed"
                    failed[upload.target] = CommandError(reason)
        for path, upload in self.uploads:
            for above in (path, *folders_above(path)):
                if above in reply.failed:
                    failed.setdefault(upload.target, CommandError(reply.failed[above]))
        return failed


def parcels(uploads: Sequence[Upload], folders: Sequence[str]) -> list[Parcel]:
    """Return uploads as parcels: skill folders by where they are, and all other files."""
    if not isinstance(uploads, Packed):
        return _parcels(uploads, folders)
    key = ("parcels", *folders)
    if key not in uploads.made:
        uploads.made[key] = [attrs.evolve(p, made=[]) for p in _parcels(uploads, folders)]
    return list(uploads.made[key])


def _parcels(uploads: Sequence[Upload], folders: Sequence[str]) -> list[Parcel]:
    inside: dict[str, list[tuple[str, Upload]]] = {}
    loose: dict[bool, list[Upload]] = {}
    for folder, members in by_folder(uploads, frozenset(folders)):
        if folder is None:
            loose.setdefault(members[0].target.startswith("/"), []).extend(members)
        else:
            parent = posixpath.dirname(folder)
            skip = len(components(parent))
            inside.setdefault(parent, []).extend(
                ("/".join(components(upload.target)[skip:]), upload) for upload in members
            )
    found = [Parcel(parent, tuple(named), True) for parent, named in inside.items()]
    for is_absolute, members in loose.items():
        parts = [components(upload.target) for upload in members]
        common = posixpath.commonpath(["/".join(["", *p[:-1]]) for p in parts])
        named = tuple(
            ("/".join(p[len(components(common)) :]), upload)
            for p, upload in zip(parts, members, strict=True)
        )
        found.append(Parcel(common if is_absolute else common[1:], named, False))
    return found


def read_workspace(call: Call, output: bytes) -> tuple[str, _tar.Owner] | None:
    """Return where an archive has to be unpacked, and whose it is; None until that was said."""
    _, begun, body = output.partition(call.nonce.encode() + b"\n")
    fields = body.decode("utf-8", "surrogateescape").split("\0")
    if not begun or len(fields) < 4 or fields[0] != "W":
        return None
    uid, _, gid = fields[2].partition(" ")
    return fields[1], (int(uid or 0), int(gid or 0))


@attrs.frozen
class Reply:
    """What a packed write answered."""

    failed: Mapping[str, str]
    """Paths beneath the parcel's folder, and why they, and what is beneath them, failed."""
    in_place: tuple[str, ...]
    """Skill folders that were merged because a file system is mounted there."""


def read_reply(call: Call, result: RunResult) -> Reply:
    """Return what a write answered.

    Raises `MissingProgramError`, `DestinationError` where nothing can be written there at all, and
    `CommandError` where this transfer failed, or the answer makes no sense.
    """
    body = call.body(result)
    failed = {}
    in_place = []
    fields = body.decode("utf-8", "surrogateescape").split("\0")
    if len(fields) % 3 != 1 or fields[-1]:
        raise CommandError("the sandbox gave an answer that makes no sense")
    for kind, path, text in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
        reason = one_line(text) or "no reason was given"
        match kind:
            case "M":
                raise MissingProgramError(text)
            case "D":
                raise DestinationError([Problem("destination", call.folder, reason)])
            case "T":
                raise CommandError(reason)
            case "F":
                failed[path.removeprefix("./")] = reason
            case "P":
                in_place.append(printable(path))
            case "W":
                pass  # it was for whoever unpacks the archive
            case _:
                raise CommandError(f"the sandbox gave an answer that makes no sense: {kind!r}")
    return Reply(failed, tuple(in_place))


def read_states(targets: Sequence[str], call: Call, result: RunResult) -> dict[str, FileState]:
    """Return what an inspection answered, for each target. Raises as `read_reply` does."""
    body = call.body(result)
    if body[1:2] == b"\0":  # a record, in place of what was asked for
        read_reply(call, result)
    states: dict[str, FileState] = {}
    position = 0
    for start in range(0, len(targets), _LISTED_AT_ONCE):
        batch = targets[start : start + _LISTED_AT_ONCE]
        found, position = read_batch(batch, body, position, result.stderr)
        states |= found
    return states
