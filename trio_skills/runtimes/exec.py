"""Anything that runs a command with an input: `kubectl exec -i POD --`, and so on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from trio_skills import _far_side
from trio_skills._errors import CommandError, RuntimeOpenError
from trio_skills._far_side import Call
from trio_skills._runtime import RunResult
from trio_skills.runtimes._commanded import CommandedRuntime, Payload
from trio_skills.runtimes._processes import converse

MAX_IN_FLIGHT = 16
"""Processes at once: each holds six descriptors while it starts, and more make nothing faster."""


@final
class ExecRuntime(CommandedRuntime):
    """A sandbox that is reached by putting words before a command.

    Needs no opening and no closing: nothing outlives a call.
    """

    def __init__(
        self, prefix: Sequence[str], path: str = "", *, max_in_flight: int = MAX_IN_FLIGHT
    ) -> None:
        """Reach a sandbox by `prefix`.

        Args:
            prefix: A program and its first arguments, as `("kubectl", "exec", "-i", "pod", "--")`.
                What follows is an argument list, and standard input is passed on.
            path: Where relative targets go, and commands run; `~` is the home folder there. By
                default where commands start.
            max_in_flight: How many processes may run at once.

        Raises:
            ValueError: There is no program.
        """
        if not prefix:
            raise ValueError("a prefix has at least one word")
        super().__init__(path, max_in_flight)
        self._prefix = tuple(prefix)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {' '.join(self._prefix)!r} {self._path!r}>"

    async def _execute(self, call: Call, payload: Payload) -> RunResult:
        return await converse([*self._prefix, *call.argv], payload, call.end)

    async def greet(self) -> None:
        """Raise `RuntimeOpenError` where no shell of the sandbox answers, or it is not heard."""
        call = _far_side.call("greet", ".", "")
        try:
            heard = call.body(await self._execute(call, b"hello\n"))
        except CommandError as exc:
            raise RuntimeOpenError(" ".join(self._prefix), str(exc)) from exc
        if heard != b"hello":
            reason = "it does not pass standard input on; it may need an option for that, as -i"
            raise RuntimeOpenError(" ".join(self._prefix), reason)
