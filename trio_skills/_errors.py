"""The errors, one class for each thing that a caller would handle differently.

`InstallError` is in `_report.py`, because it carries a report.
"""

from __future__ import annotations

import dis
import traceback
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

import attrs

from trio_skills._printable import printable


class TrioSkillsError(Exception):
    """The base of every error that this library raises."""


@attrs.frozen
class Problem:
    """One thing that is wrong with a skill or a plan; a warning, or part of a `PlanError`."""

    kind: str
    """A short name, the same for every problem of this kind, as `name-mismatch`: to group by."""
    path: str
    """Where it is: a path on this machine."""
    message: str = attrs.field(converter=printable)
    """What is wrong and what to do, for a person. Safe to print."""

    def __str__(self) -> str:
        return f"{printable(self.path)}: {self.message}"


class PlanError(TrioSkillsError):
    """The plan was refused before anything was written; it names every problem at once."""

    problems: tuple[Problem, ...]
    """What is wrong, in the order of the sources and then of the paths."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        lines = [f"{len(self.problems)} problems:", *(f"  {p}" for p in self.problems)]
        return "\n".join(lines)


class RuntimeOpenError(TrioSkillsError):
    """A sandbox could not be opened: an unknown URL, no such place, no permission."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(url, reason)

    def __str__(self) -> str:
        return f"cannot open {printable(self.url) or repr('')}: {printable(self.reason)}"


class DestinationError(PlanError):
    """The sandbox was opened, but what is there does not agree with the plan; nothing was written.

    Its problems name paths in the sandbox.
    """


class ArchiveError(PlanError):
    """A source tree was refused: a member is missing, a link leads out of it, a FIFO is in it."""


class UploadError(TrioSkillsError):
    """One planned file is not in the sandbox as planned; `__cause__` says why, pickled too."""

    def __init__(self, target: str, cause: BaseException) -> None:
        self.target = target
        self.reason = describe(cause)
        super().__init__(target, cause)
        self.__cause__ = cause

    def __str__(self) -> str:
        return f"{printable(self.target)}: {self.reason}"

    def __repr__(self) -> str:
        # Not the cause's own, which may hold content: a `UnicodeDecodeError`'s does.
        return f"{type(self).__name__}({self.target!r}, {self.reason!r})"


class SourceChangedError(TrioSkillsError):
    """A file is not what it was when the plan was made, or when its archive was begun; do it again.

    The message names the file.
    """


class VerifyError(TrioSkillsError):
    """What is in the sandbox is not what was sent."""


class CommandError(TrioSkillsError):
    """A command in the sandbox failed; the message has its exit code and what it complained of."""


class TransientError(TrioSkillsError):
    """What failed may go well the next time: a runtime raises it, and it is tried again.

    For a connection that was reset, an answer that was lost, and HTTP's 408, 409, 429 and 5xx. What
    was called may have been done all the same: only what can be done twice is tried again.
    """

    retry_after: float | None = None
    """Seconds after which the sandbox wants to be asked again, where it says so."""


class LostAnswerError(CommandError, TransientError):
    """The connection, or the command, ended before its answer was whole."""


def describe(error: BaseException) -> str:
    """Return one line that says what went wrong, never an empty one.

    Some libraries raise errors without a text when a connection drops; then the class's name and
    the cause's text stand for it.
    """
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror is not None:
        # "[Errno 28] No space left on device: 'x'" names our temporary file, which helps nobody.
        text = error.strerror
    if not text:
        text = type(error).__name__
        if error.__cause__ is not None:
            text += f": {describe(error.__cause__)}"
    return printable(text)


def forget_locals(error: BaseException | None) -> None:
    """Let go of what tracebacks' frames hold: contents, else kept as long as the error is."""
    waiting, seen = [error], set[int]()
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in seen:  # an error may be its own cause
            continue
        seen.add(id(error))
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if not _is_suspended(frame):
                with suppress(RuntimeError):  # it is still executing
                    frame.clear()
        waiting += (error.__cause__, error.__context__)
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions


def _is_suspended(frame: FrameType) -> bool:
    """Whether it is that of a task that waits, to which the same error was raised before.

    Until Python 3.13 clearing one ends it there and then; since, it is refused.
    """
    return frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == _YIELD


_YIELD = dis.opmap["YIELD_VALUE"]
