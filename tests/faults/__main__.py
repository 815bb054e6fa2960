"""Print the fault matrix: `python -m tests.faults [--only KIND,KIND]`."""

from __future__ import annotations

import argparse
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.faults.cells import FAULTS, KINDS, PHASES, Cell, Kind, cells
from tests.faults.check import Sandbox
from tests.faults.run import run_cell
from tests.faults.sandboxes import docker_sandbox, host_sandbox, ssh_sandbox
from tests.services import Unavailable, docker_engine, ssh_server

LEGEND = {
    "W": "all was written in spite of it",
    "F": "it failed, and the report says of which file and why",
    "C": "the caller's deadline cancelled it",
    "K": "the installing process was killed; the next install put it right",
    "-": "it cannot be there",
    "X": "something that has to hold does not",
}

_HEADS = {
    "refused": "re-\nfused",
    "permission": "per-\nmission",
    "missing tool": "miss-\ning\ntool",
}
"""So that the table has room on 80 columns."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", type=_kinds, default=KINDS, metavar="KIND,KIND")
    kinds: tuple[Kind, ...] = parser.parse_args(arguments).only
    console = Console()
    letters: dict[Cell, str] = {}
    for kind in kinds:
        try:
            with _sandbox(kind) as sandbox:
                for cell in cells((kind,)):
                    letters[cell] = "-" if cell.impossible else _letter(cell, sandbox, console)
        except Unavailable as exc:
            console.print(f"no {kind}: {exc}", style="bold red", highlight=False)
    console.print(_table(letters))
    for letter, meaning in LEGEND.items():
        console.print(f"{letter}  {meaning}", highlight=False)
    for reason, left_out in Counter(c.impossible for c in letters if c.impossible).items():
        console.print(f"-  {left_out} cells: {reason}", style="dim", highlight=False)
    console.print()
    for kind in dict.fromkeys(cell.kind for cell in letters):
        console.print(f"{kind:8} {_totals(letters, kind)}", highlight=False)
    counts = Counter(letters.values())
    checked = len(letters) - counts["-"]
    totals = _totals(letters, *KINDS)
    console.print(f"\n{checked} cells checked: {totals}; {counts['X']} broken", style="bold")
    return 1 if counts["X"] else 0


def _kinds(text: str) -> tuple[Kind, ...]:
    kinds = tuple(kind for kind in KINDS if kind in text.split(","))
    if len(kinds) != len(text.split(",")):
        raise argparse.ArgumentTypeError(f"of {', '.join(KINDS)}")
    return kinds


def _totals(letters: Mapping[Cell, str], *kinds: Kind) -> str:
    counts = Counter(letter for cell, letter in letters.items() if cell.kind in kinds)
    return ", ".join(f"{counts[letter]} {letter}" for letter in "WFCK")


def _letter(cell: Cell, sandbox: Sandbox, console: Console) -> str:
    try:
        return run_cell(cell, sandbox)
    except Exception as exc:  # noqa: BLE001  # the other cells are wanted, too
        console.print(f"[bold red]{cell}[/]: {type(exc).__name__}", highlight=False)
        console.print("".join(traceback.format_exception(exc)), style="dim", markup=False)
        return "X"


@contextmanager
def _sandbox(kind: Kind) -> Iterator[Sandbox]:
    with tempfile.TemporaryDirectory(prefix="ts-") as folder, ExitStack() as stack:
        if kind == "docker":
            engine = stack.enter_context(docker_engine())
            yield stack.enter_context(docker_sandbox(engine, Path(folder)))
        elif kind == "ssh":
            server = stack.enter_context(ssh_server())
            yield stack.enter_context(ssh_sandbox(server, Path(folder)))
        else:
            yield stack.enter_context(host_sandbox(kind, Path(folder)))


def _table(letters: dict[Cell, str]) -> Table:
    faults = [_HEADS.get(fault, fault.replace(" ", "\n")) for fault in FAULTS]
    table = Table("", *faults, box=None, padding=(0, 1, 0, 0))
    for column in table.columns:
        column.no_wrap = True
    for kind in dict.fromkeys(cell.kind for cell in letters):
        table.add_row(kind, style="bold")
        for phase in PHASES:
            row = [letters[Cell(kind, fault, phase)] for fault in FAULTS]
            table.add_row(phase, *row)
        table.add_section()
    return table


if __name__ == "__main__":
    raise SystemExit(main())
