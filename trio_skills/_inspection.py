"""Look at what is in a sandbox, by whatever way its runtime has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import trio

from trio_skills import _commands
from trio_skills._runtime import FileState, Inspects, Runtime


async def inspect(
    runtime: Runtime,
    targets: Sequence[str],
    slot: Callable[[], AbstractAsyncContextManager[None]],
) -> dict[str, FileState]:
    """Return the state of every target; each command holds a `slot` while it runs."""
    if isinstance(runtime, Inspects):
        async with slot():
            return dict(await runtime.inspect(targets))
    states: dict[str, FileState] = {}
    await trio.lowlevel.checkpoint()
    for argv, batch in _commands.inspect(targets):
        async with slot():
            result = await runtime.run(argv, _commands.ENVIRONMENT)
        states |= _commands.read_inspection(batch, result)
    return states
