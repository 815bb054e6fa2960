"""A directory of this machine: a fault is an error of one kind of system call, or this one's end.

Python tells its audit hooks of each of them, in every thread, and what a hook raises is what the
call raises. So nothing of the library is replaced.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from tests.far_sides import litter
from tests.faults.cells import Cell, Fault, Phase
from tests.faults.check import remove_tree
from tests.faults.disk import Disk
from tests.trees import Tree, read_tree, write_tree
from trio_skills import Runtime, Strategy, open_local

_FULL = partial(OSError, errno.ENOSPC, "No space left on device")

_ERRORS: Mapping[Fault, Callable[[], OSError]] = {
    "refused": partial(OSError, errno.EPERM, "Operation not permitted"),
    "timed out": partial(TimeoutError, errno.ETIMEDOUT, "Connection timed out"),  # of a file server
    "cut": partial(OSError, errno.EIO, "Input/output error"),
    "no text": OSError,
    "disk full": _FULL,
    "permission": partial(PermissionError, errno.EACCES, "Permission denied"),
}

_act: Callable[[str, tuple[Any, ...]], None] | None = None
"""What happens at a system call, as long as a cell is under way."""

_struck: set[Cell] = set()
"""The cell that is under way, when its fault has come about: in any thread."""


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _act is not None:
        _act(event, arguments)


_is_hooked = False


@contextmanager
def _acting(act: Callable[[str, tuple[Any, ...]], None]) -> Iterator[None]:
    global _act, _is_hooked  # noqa: PLW0603  # an audit hook is the process's, and stays
    if not _is_hooked:
        sys.addaudithook(_hook)
        _is_hooked = True
    _act = act
    try:
        yield
    finally:
        _act = None


def _is_hit(phase: Phase, event: str, arguments: tuple[Any, ...]) -> bool:
    match phase:
        case "before":
            return event == "os.mkdir"
        case "during":
            return event == "open" and bool(arguments[2] & os.O_CREAT)
        case "after":
            return event == "os.rename"
        case "chmod":
            return event == "os.chmod" and bool(arguments[1] & 0o111)
        case "verify":
            kinds = os.O_ACCMODE | os.O_DIRECTORY | os.O_CREAT
            return event == "open" and arguments[1] is None and not arguments[2] & kinds
        case "clean-up":
            return event in ("os.remove", "os.rmdir") or _is_hit("during", event, arguments)


def _misbehave(cell: Cell, event: str, arguments: tuple[Any, ...]) -> None:
    if not _is_hit(cell.phase, event, arguments):
        return
    if cell.phase == "clean-up" and event == "open":
        raise _FULL()  # noqa: RSE102  # it makes one
    _struck.add(cell)
    if cell.fault == "slow":
        time.sleep(0.05)
    elif cell.fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        error = _ERRORS[cell.fault]()
        raise error


@attrs.define
class Local:
    """A directory."""

    root: Path
    disk: Disk | None = None
    """Where it is; None: on this machine's own."""

    def reset(self, tree: Tree) -> None:
        _struck.clear()
        self.root.mkdir(parents=True, exist_ok=True)
        remove_tree(self.root)
        write_tree(self.root, tree)

    def read(self) -> Tree:
        return read_tree(self.root)

    @asynccontextmanager
    async def faulty(self, cell: Cell) -> AsyncIterator[Runtime]:
        async with open_local(self.root) as runtime:
            disk = self._full_disk(cell)
            with _acting(partial(_misbehave, cell)) if disk is None else disk.nearly_full():
                yield runtime

    @asynccontextmanager
    async def sound(self) -> AsyncIterator[Runtime]:
        async with open_local(self.root) as runtime:
            yield runtime

    async def settle(self, cell: Cell) -> None:
        await trio.lowlevel.checkpoint()

    def has_struck(self, cell: Cell) -> bool:
        return self._full_disk(cell) is not None or cell in _struck

    def cause(self, cell: Cell) -> Sequence[str]:
        error = _FULL() if cell.phase == "clean-up" else _ERRORS.get(cell.fault, OSError)()
        return [error.strerror or ""]

    def litter(self) -> Sequence[Path]:
        return litter(self.root.parent)

    def _full_disk(self, cell: Cell) -> Disk | None:
        return self.disk if (cell.fault, cell.phase) == ("disk full", "during") else None

    async def killed(self, cell: Cell, strategy: Strategy) -> None:
        """Install in another process, which is killed in the phase."""
        command = [sys.executable, "-c", _KILLED, str(self.root), cell.phase, strategy]
        ended = await trio.run_process(command, check=False)
        assert ended.returncode == -signal.SIGKILL


_KILLED = """
import sys, trio
from tests.faults.cells import Cell
from tests.faults.check import PLAN, options
from tests.faults.local import Local
from trio_skills import install
from pathlib import Path

async def main(root, phase, strategy):
    cell = Cell("local", "killed", phase)
    async with Local(Path(root)).faulty(cell) as runtime:
        await install(PLAN, runtime, strategy=strategy, **options(cell))

trio.run(main, *sys.argv[1:])
"""
