"""What `install(..., on_event=)` tells while it works."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from trio_skills._report import Outcome, Report


@attrs.frozen
class TransferStarted:
    """A transfer was let through by the limits and begins."""

    transfer: int
    """Its number, from 0, in the order of starting."""
    targets: tuple[str, ...]
    """The files that it carries."""
    size: int
    """Their bytes."""


@attrs.frozen
class TransferEnded:
    """A transfer has settled; one that was cancelled says nothing."""

    transfer: int
    """The number that it started with."""
    outcomes: tuple[Outcome, ...]
    """For each file that it carried, unless that was not reached because the sandbox seems gone. A
    later check can still turn a success into a failure."""


@attrs.frozen
class InstallEnded:
    """The last event of every install: also of one that failed, was refused or was cancelled."""

    report: Report
    """What became of every planned file until now."""


Event: TypeAlias = TransferStarted | TransferEnded | InstallEnded
