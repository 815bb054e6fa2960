"""Where it prints: two streams that show any name, in any locale, to anybody or nobody."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

import stamina
from rich.console import Console


def prepare() -> None:
    """Make both streams able to print what comes, and keep others from printing there."""
    # Each retry would be printed where structlog is; the last line of an install has how often.
    stamina.instrumentation.set_on_retry_hooks([])
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # for as long as this runs
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if isinstance(stream.buffer, io.RawIOBase):
            # PYTHONUNBUFFERED: without a buffer, Python forgets the rest of a write that a signal
            # interrupts.
            stream = open(stream.fileno(), "w", encoding=stream.encoding, closefd=False)  # noqa: SIM115  # as above
            setattr(sys, name, stream)
        stream.reconfigure(errors="backslashreplace")  # what a locale cannot show is shown escaped


def discard() -> None:
    """Let go of what could not be printed: Python would try once more at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def stdout(*, quiet: bool = False) -> Console:
    """Return the console for what was asked for."""
    return _Console(sys.stdout, quiet=quiet)


def stderr(*, quiet: bool = False) -> Console:
    """Return the console for errors and progress."""
    return _Console(sys.stderr, quiet=quiet)


class _Console(Console):
    """Prints names as they are, and as wide as they are where nobody looks at it."""

    def __init__(self, file: TextIO, *, quiet: bool) -> None:
        width = None if file.isatty() else 10_000
        super().__init__(
            file=file, width=width, quiet=quiet, highlight=False, emoji=False, markup=False
        )

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit with a code of its own
