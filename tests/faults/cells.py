"""The cells of the matrix, and those that there cannot be."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal, get_args

import attrs

Kind = Literal["local", "docker", "ssh", "packing", "memory"]
Fault = Literal[
    "refused",
    "timed out",
    "cut",
    "short write",
    "exit code",
    "no text",
    "slow",
    "hung",
    "disk full",
    "permission",
    "killed",
    "missing tool",
]
Phase = Literal["before", "during", "after", "chmod", "verify", "clean-up"]
"""Of the transfer: before its first byte, in it, and when it is put to its place; then the execute
bits, the look at what is there, and the removal of what a transfer that failed has made."""

KINDS: tuple[Kind, ...] = get_args(Kind)
FAULTS: tuple[Fault, ...] = get_args(Fault)
PHASES: tuple[Phase, ...] = get_args(Phase)


@attrs.frozen
class Cell:
    """One fault in one phase of an install into one kind of sandbox."""

    kind: Kind
    fault: Fault
    phase: Phase

    def __str__(self) -> str:
        return f"{self.kind}-{self.fault}-{self.phase}".replace(" ", "-")

    @property
    def impossible(self) -> str | None:
        """Why it cannot be; None: it can."""
        match self:
            case Cell("local", "short write"):
                return "a kernel that stores less says so"
            case Cell("local", "exit code" | "missing tool"):
                return "no command is run"
            case Cell("local", "hung"):
                return "nothing can end a thread whose disk does not answer"
            case Cell("memory", _, "clean-up"):
                return "a dictionary has nothing to clean up"
            case Cell("memory", "exit code" | "missing tool", "before" | "during" | "after"):
                return "no command is run"
        return None


def cells(kinds: tuple[Kind, ...] = KINDS) -> Iterator[Cell]:
    """Yield every cell, also the impossible ones."""
    for kind, phase, fault in itertools.product(kinds, PHASES, FAULTS):
        yield Cell(kind, fault, phase)
