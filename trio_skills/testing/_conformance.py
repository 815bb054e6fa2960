"""Whether a runtime keeps its promises: for whoever has written one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import attrs
import trio

from trio_skills._errors import TrioSkillsError, describe
from trio_skills._runtime import Runtime
from trio_skills.testing._promises import PROMISES, NotPromised, Promise, Sandbox

Factory: TypeAlias = Callable[[], AbstractAsyncContextManager[Runtime]]
"""Opens an empty sandbox, yields its runtime, and closes it."""

_PATIENCE = 300
"""Seconds after which a check that has not ended is a promise that is broken."""


class BrokenPromiseError(TrioSkillsError, AssertionError):
    """A runtime does not keep a promise; `__cause__` is what was raised when that was seen."""

    def __init__(self, promise: str, law: str, seen: str) -> None:
        self.promise = promise
        self.law = law
        self.seen = seen
        super().__init__(promise, law, seen)

    def __str__(self) -> str:
        return f"{self.promise}: {self.law} But: {self.seen}"


class ConformanceError(ExceptionGroup[BrokenPromiseError], TrioSkillsError):
    """A runtime does not keep all its promises: a `BrokenPromiseError` for each that is broken."""

    @property
    def broken(self) -> tuple[BrokenPromiseError, ...]:
        """The errors, in the order of `CHECKS`."""
        return tuple(error for error in self.exceptions if isinstance(error, BrokenPromiseError))

    def derive(self, errors: Sequence[BrokenPromiseError], /) -> ConformanceError:  # type: ignore[override]  # typeshed: a group of anything; this one holds what it held
        """Return a group of some of the errors."""
        return type(self)(self.message, errors)


@attrs.frozen
class Check:
    """One promise of a runtime, and how it is seen whether it is kept."""

    name: str
    """What is promised, in one word for `pytest`: `str` of a check is this name."""
    law: str
    """The same in one sentence."""
    _promise: Promise = attrs.field(repr=False)

    def __str__(self) -> str:
        return self.name

    async def __call__(self, factory: Factory) -> bool:
        """Open a sandbox, see whether the promise is kept there, and close it.

        Returns False where the runtime does not promise this: it has no such method, or its sandbox
        no program that would be needed. Raises `BrokenPromiseError`.

        **Cancellation:** the sandbox is closed, by its own factory.
        """
        await trio.lowlevel.checkpoint()
        error: Exception | None = None
        try:
            with trio.move_on_after(_PATIENCE) as scope:
                async with factory() as runtime:
                    try:
                        await self._promise(Sandbox.of(runtime))
                    except Exception as exc:  # noqa: BLE001  # any failure is what was seen
                        error = exc  # not raised here: a nursery of the factory would wrap it
            if scope.cancelled_caught and error is None:
                error = trio.TooSlowError(f"it had not ended after {_PATIENCE} seconds")
        except Exception as exc:  # noqa: BLE001  # the factory's
            error = error or exc
        if isinstance(error, NotPromised):
            return False
        if error is not None:
            raise BrokenPromiseError(self.name, self.law, _seen(error)) from error
        return True


CHECKS: tuple[Check, ...] = tuple(
    Check(promise.__name__, " ".join((promise.__doc__ or "").split()), promise)
    for promise in PROMISES
)
"""Every promise, to make a test of each: `@pytest.mark.parametrize("check", CHECKS, ids=str)`."""


async def check_runtime(factory: Factory) -> None:
    """See whether a runtime keeps its promises, each in a sandbox of its own.

    Args:
        factory: A function that returns an async context manager: it opens an empty sandbox, whose
            files are seen by nobody else, yields its runtime, and closes it. Called for each check.

    What a runtime offers beyond `write` and `run` is checked where it is there. What is there
    afterwards is looked at as `install` does it, by `inspect` or by a command. Use the real clock.

    Raises:
        ConformanceError: Some promises are broken; raised when all were looked at.

    **Cancellation:** the sandbox of the check under way is closed.
    """
    await trio.lowlevel.checkpoint()
    broken: list[BrokenPromiseError] = []
    for check in CHECKS:
        try:
            await check(factory)
        except BrokenPromiseError as exc:
            broken.append(exc)
    if broken:
        names = ", ".join(error.promise for error in broken)
        message = f"{len(broken)} of {len(CHECKS)} promises are broken: {names}"
        raise ConformanceError(message, broken)


def _seen(error: Exception) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if type(error) is AssertionError:
        return describe(error)
    return f"{type(error).__name__}: {describe(error)}"
