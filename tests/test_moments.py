"""That moments find what they are to strike, however wrong the first guess was."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.moments import Moments


@pytest.mark.parametrize("guess", [0.05, 1, 100])
async def test_a_wrong_guess_is_corrected(
    guess: float, autojump_clock: trio.testing.MockClock
) -> None:
    moments = Moments(guess, runs=40, strikes=5)
    struck = []
    for moment in moments:
        with trio.move_on_after(moment) as scope:
            await trio.sleep(1)
        moments.ended(struck=scope.cancelled_caught)
        if scope.cancelled_caught:
            struck.append(moment)
    assert len(struck) > 20
    assert min(struck) < 0.3
    assert max(struck) > 0.7


async def test_what_cannot_be_struck_fails() -> None:
    moments = Moments(1, runs=5, strikes=1)
    with pytest.raises(AssertionError, match="only 0 of 20 runs were struck"):
        await miss_all(moments)


async def miss_all(moments: Moments) -> None:
    for _ in moments:
        await trio.lowlevel.checkpoint()
        moments.ended(struck=False)
