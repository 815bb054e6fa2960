"""`python -m bench GROUP`: measure, and print a table; and the two long runs, `load` and `soak`."""

from __future__ import annotations

import json as json_
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import trio
from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.console import Console
from rich.table import Table

from bench import archives, core, load, sandboxes, soak
from bench.measure import Result, compare

GROUPS = {
    "archives": archives.comparisons,
    "core": core.comparisons,
    "sandboxes": sandboxes.comparisons,
}
"""What yields the comparisons of each group."""

app = App(name="python -m bench", help="Measure trio-skills.", help_format="plaintext")

app.command(load.main, name="load")
app.command(soak.main, name="soak")

_FACTORS = {"ms": 1e3, "µs": 1e6, "KiB": 1.0, "MiB": 1.0}


@app.default
def bench(
    group: Literal["archives", "core", "sandboxes"] = "core",
    /,
    *,
    rounds: Annotated[
        int | None,
        Parameter(
            help="Counted rounds, after a warm-up: 6, or 1 if quick.", validator=Number(gte=1)
        ),
    ] = None,
    only: Annotated[str, Parameter(help="Comparisons whose name begins so.")] = "",
    quick: Annotated[bool, Parameter(help="Less of everything: does it run?", negative=())] = False,
    json: Annotated[Path | None, Parameter(help="Where to write every round.")] = None,
) -> None:
    """Compare this library with what it is promised to be near to, in one run."""
    progress = Console(stderr=True)
    with GROUPS[group](quick=quick) as comparisons:
        chosen = [c for c in comparisons if c.name.startswith(only)]
        if not chosen:
            names = ", ".join(c.name for c in comparisons)
            raise SystemExit(f"no comparison's name begins with {only!r}; there are: {names}")
        results = []
        for comparison in chosen:
            with progress.status(comparison.name):
                results.append(compare(comparison, rounds or (1 if quick else 6)))
    _show(results)
    if json is not None:
        json.write_text(json_.dumps(_to_dict(group, results), indent=2))


def _to_dict(group: str, results: Sequence[Result]) -> dict[str, object]:
    return {
        "group": group,
        "python": platform.python_version(),
        "trio": trio.__version__,
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "results": [result.to_dict() for result in results],
    }


def _show(results: Sequence[Result]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("what", "ours", "baseline", "ratio", "range", "at most", ""):
        table.add_column(heading, justify="left" if heading in ("what", "") else "right")
    table.add_column("baseline is")
    for result in results:
        comparison = result.comparison
        promise = "" if comparison.at_most is None else _figure(comparison.at_most)
        table.add_row(
            comparison.name,
            _median(result.ours, comparison.unit),
            _median(result.baseline, comparison.unit),
            f"{'+' * (comparison.unit == 'MiB')}{_figure(result.figure)}",
            f"{_figure(min(result.figures))} to {_figure(max(result.figures))}",
            promise,
            {True: "ok", False: "MISSED", None: ""}[result.kept],
            comparison.against,
        )
    Console(width=160, highlight=False).print(table)


def _figure(figure: float) -> str:
    # Where little is good, as 1 / 50, two decimals would not tell whether it was reached.
    return f"{figure:.2f}" if abs(figure) >= 0.1 else f"{figure:.4f}"


def _median(figures: Sequence[float], unit: str) -> str:
    return f"{statistics.median(figures) * _FACTORS[unit]:.1f} {unit}"


if __name__ == "__main__":
    app()
