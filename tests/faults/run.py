"""Run one cell, on the clock that its kind of sandbox wants."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from tests.faults.cells import Cell
from tests.faults.check import Letter, Sandbox, check


def run_cell(cell: Cell, sandbox: Sandbox) -> Letter:
    clock = MockClock(autojump_threshold=0) if cell.kind == "memory" else None
    return trio.run(check, cell, sandbox, clock=clock)
