"""How many examples: `ci` is fixed, `dev` quick, `fuzz` long and different each time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("dev", max_examples=50, **_COMMON)  # type: ignore[arg-type]  # the dict's values differ
settings.register_profile("ci", max_examples=150, derandomize=True, print_blob=True, **_COMMON)  # type: ignore[arg-type]  # as above
settings.register_profile("fuzz", max_examples=2_000, print_blob=True, **_COMMON)  # type: ignore[arg-type]  # as above
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
