"""How a runtime is called: in turn, counted, and again where what failed may go well next time."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import attrs
import stamina
import trio

from trio_skills._errors import TransientError
from trio_skills._limits import Limits
from trio_skills._runtime import Runtime, traits_of

T = TypeVar("T")

# It logs every retry as a warning; without a reader Python would print that to standard error.
logging.getLogger("stamina").addHandler(logging.NullHandler())

_FIRST_WAIT = 0.1
_LONGEST_WAIT = 5.0
_JITTER = 0.4
"""Seconds. Each wait is twice the last one, and a random part of `_JITTER` longer: so that those
who failed together do not come back together."""

_PATIENCE = 60.0
"""Seconds that a sandbox may ask for before it is tried again; for more, nobody waits."""


@attrs.define
class Tries:
    """How often one call may be tried again, and how often it was."""

    left: int
    done: int = 0

    async def again(self, function: Callable[[], Awaitable[T]]) -> T:
        """Return what `function` returns, called again as long as it raises `TransientError`.

        The last error is raised when none are left, or the caller's deadline comes before the next.
        """
        try:
            return await function()
        except TransientError as exc:
            error: TransientError | None = exc
        attempts = stamina.retry_context(
            self._wait_for,
            attempts=None,
            timeout=None,
            wait_initial=_FIRST_WAIT,
            wait_max=_LONGEST_WAIT,
            wait_jitter=_JITTER,
        )
        async for attempt in attempts:
            if error is None:
                try:
                    return await function()
                except TransientError as exc:
                    error = exc
            failure, error = error, None
            with attempt:  # not around the call: it would hold a `Cancelled` for a moment
                raise failure
        raise AssertionError("it ends by a result or an error")

    def _wait_for(self, error: Exception) -> bool | float:
        asked = error.retry_after if isinstance(error, TransientError) else None
        wait = min(_FIRST_WAIT * 2**self.done + _JITTER, _LONGEST_WAIT) if asked is None else asked
        time_left = trio.current_effective_deadline() - trio.current_time()
        if self.left < 1 or wait > _PATIENCE or wait >= time_left:
            return False
        self.left -= 1
        self.done += 1
        return True if asked is None else asked


@attrs.define
class Calls:
    """The calls of one install to its runtime."""

    limits: Limits
    """Shared with other installs."""
    bearable: Limits | None
    """What the runtime can bear, where that is known."""
    retries: int
    """How often each may be tried again."""
    count: int = 0
    """How many there were, each try counted."""
    retried: int = 0
    """How many of them were another try."""

    @classmethod
    def to(cls, runtime: Runtime, limits: Limits | None, retries: int) -> Calls:
        """Return an install's calls. Raises `ValueError` for a number that makes no sense."""
        if retries < 0:
            raise ValueError(f"retries is at least 0; not {retries!r}")
        bearable = traits_of(runtime).max_in_flight
        own = None if bearable is None else Limits(max_in_flight=bearable)
        return cls(limits or Limits(), own, retries)

    async def acquire(self, size: int) -> None:
        """Wait until one more call that holds `size` bytes may begin."""
        # This one first: who waits for a slow sandbox must hold nothing that others could use.
        # Cancelled in between, it is not given back: it is this install's own and ends with it.
        if self.bearable is not None:
            await self.bearable.acquire(0)
        await self.limits.acquire(size)

    def release(self, size: int) -> None:
        """Count a call that held `size` bytes as ended."""
        self.limits.release(size)
        if self.bearable is not None:
            self.bearable.release(0)

    async def repeat(self, function: Callable[[], Awaitable[T]], tries: Tries) -> T:
        """Call `function`, and again where that may help. What waits meanwhile keeps its place.

        So there are fewer calls at once to a sandbox that has too many.
        """
        before = tries.done
        try:
            return await tries.again(partial(self._once, function))
        finally:
            self.retried += tries.done - before

    # No closure: an error's frames keep what a function closes over, as a file's content.
    async def _once(self, function: Callable[[], Awaitable[T]]) -> T:
        self.count += 1
        return await function()

    async def ask(self, function: Callable[[], Awaitable[T]]) -> T:
        """Make a call that carries no file, when its turn has come."""
        await self.acquire(0)
        try:
            await trio.lowlevel.checkpoint_if_cancelled()  # as in `_install._Job._settle`
            return await self.repeat(function, Tries(self.retries))
        finally:
            self.release(0)
