"""When to kill or cancel what takes another time at each run."""

from __future__ import annotations

import random
from collections.abc import Iterator

import attrs
import trio


@attrs.define
class Moments:
    """Moments in seconds at which to strike a run: anywhere in it, and some after its end.

    What a run takes changes with the load of the machine, so that a duration measured once may
    put all moments after the end, or all of them near the beginning. Each run corrects it: one
    that ended by itself says what it took; after one that was struck, more is expected of the
    next. There are as many `runs` as asked for, and more until enough of them were struck.
    """

    usual: float
    """What a run is expected to take."""
    runs: int
    strikes: int
    """How many of them have to be struck."""
    after: float = 0.2
    """How far the moments go beyond the expected end, as a part of `usual`."""
    seed: int = 1
    _struck: int = attrs.field(default=0, init=False)
    _began: float = attrs.field(default=0, init=False)

    def __iter__(self) -> Iterator[float]:
        chance = random.Random(self.seed)
        run = 0
        while run < self.runs or self._struck < self.strikes:
            assert run < 4 * self.runs, f"only {self._struck} of {run} runs were struck"
            self.began()
            yield self.usual * chance.uniform(0, 1 + self.after)
            run += 1

    def began(self) -> None:
        """Note that the run begins now, and not when its moment was asked for."""
        self._began = trio.current_time()

    def ended(self, *, struck: bool) -> None:
        """Note that the run has ended now, because it was struck or by itself."""
        if struck:
            self._struck += 1
            self.usual *= 1.2
        else:
            self.usual = trio.current_time() - self._began
