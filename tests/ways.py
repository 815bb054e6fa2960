"""What many tests go through, one after another: ways of travelling, and kinds of images."""

from __future__ import annotations

import pytest

from trio_skills import Strategy

STRATEGIES: tuple[Strategy, ...] = ("sequential", "batched", "concurrent", "packed")
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)

with_tar = pytest.mark.parametrize("image", ["busybox", "debian"])
with_shell = pytest.mark.parametrize("image", ["busybox", "debian", "no-tar"])
every_image = pytest.mark.parametrize("image", ["busybox", "debian", "no-tar", "no-shell"])
