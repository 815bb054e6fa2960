"""What holds in every cell, whatever went wrong there."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import trio

from tests.faults.cells import Cell
from tests.trees import Tree
from trio_skills import (
    Event,
    InstallEnded,
    InstallError,
    Limits,
    Plan,
    Report,
    Runtime,
    Strategy,
    Upload,
    install,
)
from trio_skills._printable import printable

Letter = Literal["W", "F", "C", "K"]
"""How an install ended: all was written in spite of it, it failed, its deadline cancelled it, or
its own process was killed."""

CANARY = "s3cret-canary"
"""What every file holds, and no error, log or report may."""


def _content(version: str, size: int = 0) -> bytes:
    return f"{version} {CANARY}\n".encode() + version[:1].encode() * size


OLD: Tree = {
    "pdf/SKILL.md": (_content("old"), False),
    "pdf/go": (_content("old"), False),
    "pdf/only old": (_content("old"), False),
    "xlsx/large": (_content("old", 60_000), True),
}
NEW: Tree = {
    "pdf/SKILL.md": (_content("new"), False),
    "pdf/go": (_content("new"), True),
    "pdf/-n $(x)\n'": (_content("new"), False),
    "xlsx/empty": (b"", False),
    "xlsx/large": (_content("new", 70_000), False),
    "zip/made": (_content("new"), True),
}
PLAN = Plan(
    tuple(Upload.of(path, data, executable=bit) for path, (data, bit) in sorted(NEW.items())),
    folders=("pdf", "xlsx", "zip"),
)
MERGED = {**OLD, **NEW}


class Sandbox(Protocol):
    """A sandbox of some kind, in which things go wrong."""

    def reset(self, tree: Tree) -> None:
        """Make what is there this, and nothing else."""

    def read(self) -> Tree:
        """Return what is there."""

    def faulty(self, cell: Cell) -> AbstractAsyncContextManager[Runtime]:
        """Open it with a fault."""

    def has_struck(self, cell: Cell) -> bool:
        """Whether the fault has come about since `reset`."""

    def cause(self, cell: Cell) -> Sequence[str]:
        """Return texts of which an error that comes of the fault has one."""

    def sound(self) -> AbstractAsyncContextManager[Runtime]:
        """Open it without one."""

    async def settle(self, cell: Cell) -> None:
        """Wait until nothing of the faulty install is at work there; fail if it does not end."""

    def litter(self) -> Sequence[Path]:
        """Return what installs made for themselves and left, anywhere in it."""


@runtime_checkable
class Killable(Protocol):
    """A sandbox for which the installing process can be killed in a phase."""

    async def killed(self, cell: Cell, strategy: Strategy) -> None:
        """Install in a process of its own, which is killed."""


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(f"{self.format(record)}{vars(record)!r}")


@contextmanager
def _hearing() -> Iterator[list[str]]:
    """Hear what anybody logs, while the environment has a secret, too."""
    heard, root = _Heard(), logging.getLogger()
    level = root.level
    root.addHandler(heard)
    root.setLevel(logging.DEBUG)
    os.environ["TRIO_SKILLS_TOKEN"] = CANARY
    try:
        yield heard.records
    finally:
        del os.environ["TRIO_SKILLS_TOKEN"]
        root.setLevel(level)
        root.removeHandler(heard)


async def check(cell: Cell, sandbox: Sandbox) -> Letter:
    """Install with a fault, look at what became of it, and install once more without one."""
    [letter, *_] = [await _check(cell, sandbox, strategy) for strategy in _strategies(cell)]
    return letter


def _strategies(cell: Cell) -> Sequence[Strategy]:
    if cell.phase == "chmod":  # only single writes leave the execute bits to another call
        return ["concurrent"]
    if cell.kind == "local" and cell.phase in ("before", "during", "after"):
        return ["packed", "concurrent"]  # elsewhere one that fails packed is tried singly
    return ["packed"]


async def _check(cell: Cell, sandbox: Sandbox, strategy: Strategy) -> Letter:
    sandbox.reset(OLD)
    if isinstance(sandbox, Killable) and cell.fault == "killed":
        await sandbox.killed(cell, strategy)
        check_tree(None, without_litter(sandbox.read()))
        letter: Letter = "K"
    else:
        letter = await _check_install(cell, sandbox, strategy)
    async with sandbox.sound() as runtime:
        await install(PLAN, runtime, verify=True)
    assert sandbox.read() == MERGED
    assert sandbox.litter() == []
    return letter


async def _check_install(cell: Cell, sandbox: Sandbox, strategy: Strategy) -> Letter:
    limits = Limits()
    events: list[Event] = []
    descriptors = len(os.listdir("/proc/self/fd"))
    with _hearing() as heard:
        async with sandbox.faulty(cell) as runtime:
            error, is_cancelled = await _install(cell, sandbox, runtime, limits, events, strategy)
    assert is_cancelled == (cell.fault == "hung")
    assert len(os.listdir("/proc/self/fd")) == descriptors
    statistics = limits.statistics()
    assert (statistics.in_flight, statistics.bytes_in_flight, statistics.tasks_waiting) == (0, 0, 0)
    assert isinstance(events[-1], InstallEnded)
    report = events[-1].report
    check_report(report, error, sandbox.cause(cell), cancelled=is_cancelled)
    await sandbox.settle(cell)
    assert sandbox.has_struck(cell), "nothing went wrong"
    there = sandbox.read()
    if cell.kind == "memory" and cell.fault == "short write":
        for outcome in report.failed:  # that is what it is told to store
            there[outcome.target] = NEW[outcome.target]
    check_tree(report, without_litter(there))
    if not _may_leave_litter(cell):
        assert litter(there) == []
    check_secrets([*heard, *map(repr, events), *_texts(report, error)])
    if is_cancelled:
        return "C"
    return "W" if report.ok else "F"


async def _install(
    cell: Cell,
    sandbox: Sandbox,
    runtime: Runtime,
    limits: Limits,
    events: list[Event],
    strategy: Strategy,
) -> tuple[InstallError | None, bool]:
    """Install, until what hangs hangs. Return what was raised, and whether it was cancelled."""
    error: InstallError | None = None
    scope = trio.CancelScope()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            if cell.fault == "hung":
                nursery.start_soon(_cancel_once_struck, cell, sandbox, scope)
            with scope:
                try:
                    await install(
                        PLAN,
                        runtime,
                        strategy=strategy,
                        limits=limits,
                        on_event=events.append,
                        **options(cell),
                    )
                except InstallError as exc:
                    error = exc
            nursery.cancel_scope.cancel()
    return error, scope.cancelled_caught


async def _cancel_once_struck(cell: Cell, sandbox: Sandbox, scope: trio.CancelScope) -> None:
    while not sandbox.has_struck(cell):
        await trio.sleep(0.005)
    await trio.sleep(0.05)  # it has said that it will hang
    scope.cancel()


def options(cell: Cell) -> dict[str, Any]:  # Any: of install
    return {
        # Else each file would be tried by itself, and clean up by itself.
        "existing": "replace" if cell.phase == "clean-up" else "merge",
        # A sandbox that lies is found out by looking.
        "verify": cell.phase == "verify" or cell.fault == "short write",
        "retries": 1 if cell.fault == "cut" else 0,
    }


def _may_leave_litter(cell: Cell) -> bool:
    """Whether nobody could have removed it: the next install does."""
    return cell.phase == "clean-up" or cell.fault in ("killed", "cut", "hung")


def check_report(
    report: Report, error: InstallError | None, causes: Sequence[str], *, cancelled: bool
) -> None:
    """Every target has one outcome, and what failed says of what and why."""
    assert [outcome.target for outcome in report.outcomes] == [u.target for u in PLAN.uploads]
    if error is not None:
        assert error.report == report
        assert list(error.exceptions) == [outcome.error for outcome in report.failed]
    assert cancelled or report.ok == (error is None)
    for outcome in report.failed:
        assert outcome.error is not None
        assert str(outcome.error) == f"{printable(outcome.target)}: {outcome.error.reason}"
        assert any(text in outcome.error.reason for text in causes), outcome.error
        cause = outcome.error.__cause__
        assert outcome.error.reason.rstrip(": ") == outcome.error.reason != ""
        assert outcome.error.reason != type(cause).__name__ or str(cause) == ""


def check_tree(report: Report | None, there: Tree) -> None:
    """What is there is old or new, and new where the report says so."""
    for path, (data, executable) in there.items():
        if path in PLAN.folders and data == b"an empty folder":
            continue  # every file of a new skill failed
        versions = [tree[path] for tree in (OLD, NEW) if path in tree]
        if path in NEW:  # by a single write, after which its bit was not set
            versions.append((NEW[path][0], False))
        assert (data, executable) in versions, f"torn, or nobody's: {path!r}"
    assert there.keys() >= OLD.keys(), "something that was there is gone"
    for outcome in report.written if report else ():
        assert there[outcome.target][0] == NEW[outcome.target][0]
        if report and outcome.target not in report.not_executable:
            assert there[outcome.target] == NEW[outcome.target]


def litter(there: Tree) -> list[str]:
    return [path for path in there if any(_is_ours(part) for part in path.split("/"))]


def without_litter(there: Tree) -> Tree:
    return {path: there[path] for path in there.keys() - set(litter(there))}


def _is_ours(name: str) -> bool:
    return name.startswith(".trio-skills")


def check_secrets(texts: Iterable[str]) -> None:
    for text in texts:
        assert CANARY not in text


def _texts(report: Report, error: InstallError | None) -> Iterable[str]:
    yield report.to_json()
    yield report.chrome_trace()
    yield repr(report)
    if error is not None:
        yield from (str(error), repr(error))
        for outcome in report.failed:
            yield from (str(outcome.error), repr(outcome.error))
        for with_locals in (False, True):
            shown = traceback.TracebackException.from_exception(error, capture_locals=with_locals)
            yield "".join(shown.format())


async def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait until something is so; fail after ten seconds."""
    with trio.move_on_after(10):
        while not is_so():
            await trio.sleep(0.005)
    assert is_so(), what


def remove_tree(folder: Path) -> None:
    """Empty a folder, links unfollowed."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
            with suppress(FileNotFoundError):
                path.rmdir()
        else:
            path.unlink(missing_ok=True)
