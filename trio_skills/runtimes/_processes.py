"""Converse with a local process: an input, its output, and its end whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress

import trio

from trio_skills._errors import CommandError, describe
from trio_skills._printable import printable
from trio_skills._runtime import RunResult
from trio_skills._threads import next_piece
from trio_skills.runtimes._commanded import Payload

MAX_OUTPUT = 64 * 2**20
"""Bytes of output of one command that are kept; a sandbox that prints more is not believed."""

PATIENCE = 0.5
"""Seconds that a command which was cancelled has to clean up, before its process is killed."""


async def converse(command: Sequence[str], payload: Payload, mark: bytes) -> RunResult:
    """Run a program to its end, with `payload` as its input, or until its output has `mark`.

    Raises `CommandError` where it cannot be started. Exit codes are a shell's.

    **Cancellation:** closes its input, waits `PATIENCE` seconds for it, then kills it.
    """
    try:
        process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as exc:
        raise CommandError(f"cannot run {printable(command[0])}: {describe(exc)}") from exc
    assert process.stdin and process.stdout and process.stderr  # noqa: S101, PT018  # pipes
    output: list[bytes] = []
    complaint: list[bytes] = []
    try:
        with single_error():
            async with trio.open_nursery() as nursery:
                sending = trio.CancelScope()
                nursery.start_soon(collect, process.stdout, output, mark, sending)
                nursery.start_soon(collect, process.stderr, complaint)
                if payload is not None:
                    # It may end before it has read everything: then its answer tells why.
                    with sending, suppress(trio.BrokenResourceError):
                        await send(payload, process.stdin)
                    await process.stdin.aclose()
        await process.wait()
    finally:
        with trio.CancelScope(shield=True):
            await end(process)
    code = await process.wait()
    return RunResult(code if code >= 0 else 128 - code, b"".join(output), b"".join(complaint))


@contextmanager
def single_error() -> Iterator[None]:
    """Raise the error of a nursery by itself, the first of several; not if it was cancelled too."""
    try:
        yield
    except BaseExceptionGroup as group:
        errors = list(_leaves(group))
        if any(not isinstance(error, Exception) for error in errors):
            raise
        raise errors[0] from errors[0].__cause__


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def send(payload: Payload, stream: trio.abc.SendStream) -> None:
    """Send all of a payload; its pieces are made in worker threads."""
    if payload is None or isinstance(payload, bytes):
        await stream.send_all(payload or b"")
        return
    if isinstance(payload, AsyncGenerator):
        async for piece in payload:
            await stream.send_all(piece)
        return
    with closing(payload()) as pieces:
        while made := await next_piece(pieces):
            await stream.send_all(made)


async def collect(
    stream: trio.abc.ReceiveStream,
    chunks: list[bytes],
    mark: bytes = b"",
    sending: trio.CancelScope | None = None,
) -> None:
    """Receive until the end; with `mark`, `sending` is cancelled.

    Raises `CommandError` where it is more than `MAX_OUTPUT`.
    """
    size = 0
    async for chunk in stream:
        size += len(chunk)
        refuse_flood(size)
        chunks.append(bytes(chunk))
        if sending is not None and mark in b"".join(chunks[-2:]):
            sending.cancel()


def refuse_flood(size: int) -> None:
    """Raise `CommandError` for more than `MAX_OUTPUT` bytes of output."""
    if size > MAX_OUTPUT:
        raise CommandError(f"a command in the sandbox printed more than {MAX_OUTPUT} bytes")


async def end(process: trio.Process) -> None:
    """End a process: by the end of its input, or else, after `PATIENCE` seconds, by a signal.

    Call it shielded.
    """
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            await trio.aclose_forcefully(stream)
    with trio.move_on_after(PATIENCE):
        await process.wait()
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
