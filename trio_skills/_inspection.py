"""Look at what is in a sandbox, by whatever way its runtime has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from trio_skills import _commands
from trio_skills._calls import Calls
from trio_skills._runtime import FileState, Inspects, Runtime


async def inspect(runtime: Runtime, targets: Sequence[str], calls: Calls) -> dict[str, FileState]:
    """Return the state of every target."""
    if isinstance(runtime, Inspects):
        return dict(await calls.ask(partial(runtime.inspect, targets)))
    states: dict[str, FileState] = {}
    await trio.lowlevel.checkpoint()
    for argv, batch in _commands.inspect(targets):
        result = await calls.ask(partial(runtime.run, argv, _commands.ENVIRONMENT))
        states |= _commands.read_inspection(batch, result)
    return states
