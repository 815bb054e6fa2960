"""The sandbox in memory: a fault is what it is told to do, and time is a clock's that jumps."""

from __future__ import annotations

import errno
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from tests.faults.cells import Cell, Fault
from tests.faults.check import PLAN
from tests.trees import Tree
from trio_skills import CommandError, Runtime, TransientError, _commands
from trio_skills.testing import Call, MemoryFile, PackingMemoryRuntime
from trio_skills.testing import Fault as Asked

_ERRORS: Mapping[Fault, Exception] = {
    "refused": ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    "timed out": TimeoutError(errno.ETIMEDOUT, "Operation timed out"),
    "cut": TransientError(),
    "no text": CommandError(),
    "disk full": OSError(errno.ENOSPC, "No space left on device"),
    "permission": PermissionError(errno.EACCES, "Permission denied"),
    "killed": CommandError("exit code 137"),
}
_CODES: Mapping[Fault, int] = {"exit code": 3, "missing tool": 127, "killed": 137}
_SECONDS: Mapping[Fault, float] = {"slow": 5.0, "hung": math.inf}


@attrs.define
class Memory:
    """A dictionary."""

    files: dict[str, MemoryFile] = attrs.Factory(dict)
    struck: bool = False

    def reset(self, tree: Tree) -> None:
        self.struck = False
        self.files = {path: MemoryFile(*content) for path, content in tree.items()}

    def read(self) -> Tree:
        return {path: (file.data, file.executable) for path, file in self.files.items()}

    @asynccontextmanager
    async def faulty(self, cell: Cell) -> AsyncIterator[Runtime]:
        runtime = PackingMemoryRuntime(
            faults=lambda call: _fault(cell, call) if self._strikes(cell, call) else None,
            latency=lambda call: _SECONDS.get(cell.fault, 0.0) if _is_hit(cell, call) else 0.0,
        )
        runtime.files = self.files
        yield runtime
        assert runtime.in_flight == 0
        await trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def sound(self) -> AsyncIterator[Runtime]:
        runtime = PackingMemoryRuntime()
        runtime.files = self.files
        yield runtime
        await trio.lowlevel.checkpoint()

    async def settle(self, cell: Cell) -> None:
        await trio.lowlevel.checkpoint()

    def has_struck(self, cell: Cell) -> bool:
        return self.struck

    def cause(self, cell: Cell) -> Sequence[str]:
        error = _ERRORS.get(cell.fault)
        return [error.strerror or "" if isinstance(error, OSError) else ""]

    def litter(self) -> Sequence[Path]:
        return []

    def _strikes(self, cell: Cell, call: Call) -> bool:
        strikes = _is_hit(cell, call)
        self.struck = self.struck or strikes
        return strikes


def _is_hit(cell: Cell, call: Call) -> bool:
    match cell.phase:
        case "chmod":
            return call.argv[:1] == ("chmod",)
        case "verify":
            return _commands.INSPECT in call.argv
    return call.method in ("write", "write_many")


def _fault(cell: Cell, call: Call) -> Asked | None:
    if cell.fault in _SECONDS:
        return None
    if cell.fault == "short write":
        return Asked(stored=0.5) if call.method != "run" else Asked(exit_code=1)
    if call.method == "run" and cell.fault in _CODES:
        return Asked(exit_code=_CODES[cell.fault])
    error = _ERRORS[cell.fault]
    if cell.phase == "during" and call.method == "write_many":
        return Asked(errors={upload.target: error for upload in PLAN.uploads[::2]})
    return Asked(error=error, after=cell.phase == "after")
