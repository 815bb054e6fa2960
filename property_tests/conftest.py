"""How many examples: `ci` is fixed, `dev` quick, `fuzz` long and different each time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadline: a slow machine is not a fault. The first example of a tree may be slow to draw.
common = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("dev", common, max_examples=50)
settings.register_profile("ci", common, max_examples=150, derandomize=True, print_blob=True)
settings.register_profile("fuzz", common, max_examples=2_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
