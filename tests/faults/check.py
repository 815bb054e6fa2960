"""What holds in every cell, whatever went wrong there."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
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
    TrioSkillsError,
    Upload,
    install,
)

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

    def sound(self) -> AbstractAsyncContextManager[Runtime]:
        """Open it without one."""

    async def settle(self, cell: Cell) -> None:
        """Wait until nothing of the faulty install is at work there; fail if it does not end."""


@runtime_checkable
class Killable(Protocol):
    """A sandbox for which the installing process can be killed in a phase."""

    async def killed(self, cell: Cell) -> None:
        """Install in a process of its own, which is killed."""


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


async def check(cell: Cell, sandbox: Sandbox) -> Letter:
    """Install with a fault, look at what became of it, and install once more without one."""
    sandbox.reset(OLD)
    if isinstance(sandbox, Killable) and cell.fault == "killed":
        await sandbox.killed(cell)
        check_tree(None, without_litter(sandbox.read()))
        letter: Letter = "K"
    else:
        letter = await _check_install(cell, sandbox)
    async with sandbox.sound() as runtime:
        await install(PLAN, runtime, verify=True)
    assert sandbox.read() == MERGED
    return letter


async def _check_install(cell: Cell, sandbox: Sandbox) -> Letter:
    limits = Limits()
    events: list[Event] = []
    heard = _Heard()
    logging.getLogger().addHandler(heard)
    descriptors = len(os.listdir("/proc/self/fd"))
    error: Exception | None = None
    try:
        async with sandbox.faulty(cell) as runtime:
            with trio.move_on_after(_deadline(cell)) as scope:
                try:
                    await install(
                        PLAN, runtime, limits=limits, on_event=events.append, **options(cell)
                    )
                except TrioSkillsError as exc:
                    error = exc
    finally:
        logging.getLogger().removeHandler(heard)
    assert not scope.cancelled_caught or cell.fault == "hung"
    assert len(os.listdir("/proc/self/fd")) == descriptors
    statistics = limits.statistics()
    assert (statistics.in_flight, statistics.bytes_in_flight, statistics.tasks_waiting) == (0, 0, 0)
    assert isinstance(events[-1], InstallEnded)
    report = events[-1].report
    check_report(report, error, cancelled=scope.cancelled_caught)
    await sandbox.settle(cell)
    there = sandbox.read()
    if cell.kind == "memory" and cell.fault == "short write":
        for outcome in report.failed:  # that is what it is told to store
            there[outcome.target] = NEW[outcome.target]
    check_tree(report, without_litter(there))
    if not _may_leave_litter(cell):
        assert litter(there) == []
    check_secrets([*heard.records, *map(repr, events), *_texts(report, error)])
    if scope.cancelled_caught:
        return "C"
    return "W" if report.ok else "F"


def options(cell: Cell) -> dict[str, Any]:  # Any: of install
    return {
        # Only single writes leave the execute bits to another call.
        "strategy": "concurrent" if cell.phase == "chmod" else "packed",
        # Else each file would be tried by itself, and clean up by itself.
        "existing": "replace" if cell.phase == "clean-up" else "merge",
        # A sandbox that lies is found out by looking.
        "verify": cell.phase == "verify" or cell.fault == "short write",
        "retries": 1 if cell.fault == "cut" else 0,
    }


def _deadline(cell: Cell) -> float:
    return 0.7 if cell.fault == "hung" else 30


def _may_leave_litter(cell: Cell) -> bool:
    """Whether nobody could have removed it: the next install does."""
    return cell.phase == "clean-up" or cell.fault in ("killed", "cut", "hung")


def check_report(report: Report, error: Exception | None, *, cancelled: bool) -> None:
    """Every target has one outcome, and what failed says of what and why."""
    assert [outcome.target for outcome in report.outcomes] == [u.target for u in PLAN.uploads]
    if isinstance(error, InstallError):
        assert error.report == report
        assert list(error.exceptions) == [outcome.error for outcome in report.failed]
    assert cancelled or report.ok == (error is None)
    for outcome in report.failed:
        assert outcome.error is not None
        assert outcome.error.target == outcome.target
        cause = outcome.error.__cause__
        assert outcome.error.reason
        assert outcome.error.reason != type(cause).__name__ or str(cause) == ""


def check_tree(report: Report | None, there: Tree) -> None:
    """What is there is old or new, and new where the report says so."""
    for path, (data, _) in there.items():
        versions = [tree[path][0] for tree in (OLD, NEW) if path in tree]
        if path in PLAN.folders and data == b"an empty folder":
            continue  # every file of a new skill failed
        assert data in versions, f"torn, or nobody's: {path!r}"
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


def _texts(report: Report, error: Exception | None) -> Iterable[str]:
    yield report.to_json()
    yield report.chrome_trace()
    yield repr(report)
    if error is not None:
        yield "".join(traceback.format_exception(error))
        captured = traceback.TracebackException.from_exception(error, capture_locals=False)
        yield "".join(captured.format())


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
