"""What is asked of a sandbox besides writing: execute bits and digests.

Nothing is run here: these are the commands, and how their output is read. Targets are arguments and
never part of a program's text, and no argument list is longer than `MAX_ARGUMENTS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from trio_skills._errors import CommandError
from trio_skills._printable import one_line
from trio_skills._runtime import FileState, RunResult

MAX_ARGUMENTS = 100_000
"""Bytes of targets in one command: a Linux process takes 128 KiB in one argument and at least that
in all of them, its environment included."""

# One line of a letter for each target, then `sha256sum` once for all the files: a process for each
# of two thousand files would take seconds. `for` walks the list as it was, while the body makes a
# new one of the files alone. `o` is not whatever exists: that may be a file that was put there
# since it was looked for.
INSPECT = """\
for target do
  shift
  if [ -h "$target" ]; then printf o
  elif [ -f "$target" ]; then
    if [ -x "$target" ]; then printf x; else printf f; fi
    set -- "$@" "$target"
  elif [ -d "$target" ]; then
    if [ -w "$target" ]; then printf d; else printf r; fi
  elif [ -b "$target" ] || [ -c "$target" ] || [ -p "$target" ] || [ -S "$target" ]; then printf o
  else printf m
  fi
done
echo
if [ $# -gt 0 ]; then sha256sum -- "$@"; fi
"""

_STATES: Mapping[str, FileState] = {
    "m": FileState("missing"),
    "o": FileState("other"),
    "d": FileState("folder"),
    "r": FileState("folder", writable=False),
}


ENVIRONMENT: Mapping[str, str] = {"LC_ALL": "C"}
"""What the commands are run with, so that what they print can be read."""

Command: TypeAlias = tuple[list[str], list[str]]
"""An argument list, and the targets that are in it."""


def make_executable(targets: Sequence[str]) -> Iterator[Command]:
    """Yield the commands that set the execute bits of files."""
    for batch in _batches(targets):
        yield ["chmod", "+x", "--", *map(as_argument, batch)], batch


def inspect(targets: Sequence[str]) -> Iterator[Command]:
    """Yield the commands whose output `read_inspection` reads."""
    for batch in _batches(targets):
        yield ["sh", "-c", INSPECT, "sh", *map(as_argument, batch)], batch


def read_inspection(targets: Sequence[str], result: RunResult) -> dict[str, FileState]:
    """Return the state of each target. Raises `CommandError` where the command could not tell."""
    # 126 and 127: there is no `sh` or no `sha256sum`. A file that cannot be read is no reason.
    if result.exit_code in (126, 127):
        raise failed("inspecting the files", result)
    try:
        return read_batch(targets, result.stdout, 0, result.stderr)[0]
    except CommandError as exc:
        raise failed("inspecting the files", result) from exc


def read_batch(
    targets: Sequence[str], output: bytes, position: int, stderr: bytes
) -> tuple[dict[str, FileState], int]:
    """Return the state of each target, and where in the output the next batch begins.

    What `stderr` says is why a file has no digest.
    """
    end = position + len(targets)
    letters = output[position:end]
    if output[end : end + 1] != b"\n" or not set(letters) <= set(b"xfmodr"):
        raise CommandError("what inspecting the files printed makes no sense")
    position = end + 1
    states = {}
    for target, letter in zip(targets, letters.decode("ascii"), strict=True):
        if letter in _STATES:
            states[target] = _STATES[letter]
            continue
        digest, position = _read_sum(output, position, target)
        complaint = _complaint(stderr) if digest is None else None
        states[target] = FileState("file", digest, letter == "x", complaint=complaint)
    return states, position


def failed(what: str, result: RunResult) -> CommandError:
    """Return the error for a command that failed while `what` was done."""
    text = f"{what} failed with exit code {result.exit_code}: {_complaint(result.stderr)}"
    return CommandError(text.removesuffix(": "))


def _complaint(stderr: bytes) -> str:
    return one_line(stderr.decode("utf-8", "replace"))


def _read_sum(sums: bytes, position: int, target: str) -> tuple[str | None, int]:
    """Return the digest of `target` and where the next one is; None if there is none for it.

    The name is compared with what is expected there: a name may hold newlines and digests.
    """
    raw = as_argument(target).encode()
    # GNU escapes such names, later versions more of them; busybox does not.
    escaped = raw.replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
    start = position + sums.startswith(b"\\", position)
    digest = sums[start : start + 64]
    for name in (raw, escaped, escaped.replace(b"\r", b"\\r")):
        for mode in (b"  ", b" *"):
            line = digest + mode + name + b"\n"
            if sums.startswith(line, start) and len(digest) == 64:
                return digest.decode("ascii"), start + len(line)
    return None, position


def as_argument(target: str) -> str:
    """Return a target as commands take it: `sha256sum -- -` would read its standard input."""
    return target if target.startswith("/") else f"./{target}"


def _batches(targets: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for target in targets:
        length = len(target.encode()) + 11  # "./", the end of the string, and the pointer to it
        if batch and size + length > MAX_ARGUMENTS:
            yield batch
            batch, size = [], 0
        batch.append(target)
        size += length
    if batch:
        yield batch
