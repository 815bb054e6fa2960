"""Where blocking work goes: reading, hashing and writing files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar, TypeVarTuple

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Each holds at most eight descriptors, so that `ulimit -n 64` is enough; more threads than this
# make no local disk faster.
MAX_THREADS = 6

_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("file_threads")


async def in_thread(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Return `function(*args)` from a worker thread, of which a Trio run has `MAX_THREADS`.

    **Cancellation:** before the thread starts it raises `Cancelled`; afterwards the thread runs to
    its end, unless it asks `trio.from_thread.check_cancelled` itself, and its result is returned.
    """
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(MAX_THREADS)
        _limiter.set(limiter)
    return await trio.to_thread.run_sync(function, *args, limiter=limiter)


async def next_piece(pieces: Iterator[bytes]) -> bytes | None:
    """Return the next piece that is made in a worker thread, and is not empty; None: the end."""
    return await in_thread(_next_piece, pieces)


def _next_piece(pieces: Iterator[bytes]) -> bytes | None:
    return next((piece for piece in pieces if piece), None)
