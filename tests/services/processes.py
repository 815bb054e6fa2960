"""Start a service, wait until it answers, end it: by its process, never by its name."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class Unavailable(Exception):  # noqa: N818  # it is a finding, as `unittest.SkipTest` is
    """This machine cannot have the service; the message says why."""


@contextmanager
def service(
    command: Sequence[str], log: Path, is_up: Callable[[], bool]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that serves until it is ended. Raises `Unavailable` with the end of its log."""
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        except OSError as exc:
            raise Unavailable(f"cannot start {command[0]}: {exc}") from exc
    try:
        deadline = time.monotonic() + 60
        while not is_up():
            if process.poll() is not None or time.monotonic() > deadline:
                end = log.read_text(errors="replace")[-500:]
                raise Unavailable(f"{command[0]} did not come up: {end}")
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
