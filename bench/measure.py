"""What is measured, and how: interleaved rounds, medians, and ratios round by round."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence

import attrs

Measure = Callable[[], float]
"""Does the work once and returns what it took: seconds, KiB, or MiB."""


@attrs.frozen
class Comparison:
    """Ours beside a baseline, and what was promised of the two."""

    name: str
    """To choose it by; a group and a variant."""
    ours: Measure
    """What is measured."""
    baseline: Measure
    """What it is compared with."""
    against: str
    """What the baseline is, in words."""
    unit: str = "ms"
    """`ms` (measured in seconds), `µs`, `KiB`, or `MiB` for what is compared by its difference."""
    at_most: float | None = None
    """The promise: the ratio, or for MiB the difference; None: for information."""

    @property
    def is_steady(self) -> bool:
        """Whether few rounds tell as much as many: a peak is not a time."""
        return self.unit == "MiB"


@attrs.frozen
class Result:
    """A comparison's rounds."""

    comparison: Comparison
    """What was compared."""
    ours: Sequence[float]
    """One figure for each round."""
    baseline: Sequence[float]
    """One figure for each round, taken right after ours."""

    @property
    def figures(self) -> list[float]:
        """For each round, the ratio; for MiB the difference."""
        pairs = zip(self.ours, self.baseline, strict=True)
        if self.comparison.is_steady:
            return [ours - baseline for ours, baseline in pairs]
        return [ours / baseline for ours, baseline in pairs]

    @property
    def figure(self) -> float:
        """The median of the rounds' figures; of peaks, which must not be higher once, the worst."""
        return max(self.figures) if self.comparison.is_steady else statistics.median(self.figures)

    @property
    def kept(self) -> bool | None:
        """Whether the promise is kept; None where there is none."""
        at_most = self.comparison.at_most
        return None if at_most is None else self.figure <= at_most

    def to_dict(self) -> dict[str, object]:
        """Return what `--json` has of it."""
        return {
            "name": self.comparison.name,
            "against": self.comparison.against,
            "unit": self.comparison.unit,
            "ours": list(self.ours),
            "baseline": list(self.baseline),
            "figures": self.figures,
            "figure": self.figure,
            "at_most": self.comparison.at_most,
            "kept": self.kept,
        }


def compare(comparison: Comparison, rounds: int) -> Result:
    """Measure in turn, A B A B, after a warm-up of each that is not counted.

    What is steady needs no warm-up, and two rounds.
    """
    if comparison.is_steady:
        rounds = min(rounds, 2)
    else:
        comparison.ours()
        comparison.baseline()
    ours, baseline = [], []
    for _ in range(rounds):
        gc.collect()
        ours.append(comparison.ours())
        gc.collect()
        baseline.append(comparison.baseline())
    return Result(comparison, ours, baseline)
