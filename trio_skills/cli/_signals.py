"""What SIGINT and SIGTERM do: end it while nothing is begun, and wait once something is."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

BOTH = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised as Python raises SIGINT."""


def raise_both() -> None:
    """Make SIGTERM raise too, so that its end is printed like that of SIGINT."""
    signal.signal(signal.SIGTERM, _terminate)


def hold() -> Sequence[int]:
    """Keep both from ending the process from now on, and return those that come.

    For the moments before Trio listens to them, and while it is printed what was done. The third
    one is obeyed: what still runs may hang, and its owner wants out.
    """
    held: list[int] = []

    def keep(number: int, _: FrameType | None) -> None:
        held.append(number)
        if len(held) > 2:
            obey(number)

    for number in BOTH:
        signal.signal(number, keep)
    return held


def obey(number: int) -> None:
    """End the process at once, as if it had never listened."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def ignore() -> None:
    """Let neither change the exit code any more: everything is printed."""
    for number in BOTH:
        signal.signal(number, signal.SIG_IGN)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated
