"""Plans, reports and findings for a person, on a terminal of any width or in a file.

Names come from outside: each is made printable, and goes in as `Text`, which is never markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from trio_skills._errors import Problem
from trio_skills._plan import Plan
from trio_skills._printable import printable
from trio_skills._report import Outcome, Report
from trio_skills._transfers import by_folder
from trio_skills._tree import Excluded
from trio_skills._upload import Upload
from trio_skills.cli._sizes import format_size

MOST_SKILLS = 25
"""Rows of a table of skills; beyond, the skills that went well share one."""
MOST_FAILURES = 20
"""Failures that are listed one by one."""
EXAMPLES = 3
"""Paths that stand for a group."""


def line(console: Console, *parts: str | tuple[str, str], indent: int = 0) -> None:
    """Print one line, never wrapped or cut; a part may be a text and its style."""
    text = Text(" " * indent)
    for part in parts:
        words, style = part if isinstance(part, tuple) else (part, "")
        text.append(printable(words), style)
    console.print(text, soft_wrap=True)


def show_plan(console: Console, plan: Plan) -> None:
    """Print what would go where: every file, then each skill, then the sum."""
    table = _table("target", "size", "mode")
    for upload in plan.uploads:
        mode = "executable" if upload.executable else ""
        table.add_row(_name(upload.target), format_size(upload.size), mode)
    console.print(table)
    if len(plan.folders) > 1:
        totals = _table("skill", "files", "size", "executable")
        for skill, uploads in _by_skill(plan):
            totals.add_row(_name(skill), *_sizes(uploads))
        console.print()
        console.print(totals)
        console.print()
    show_details(console, plan.excluded, plan.warnings)
    line(console, (f"Would install {_sum_of(plan.uploads, len(plan.folders))}", "bold"))


def show_report(
    console: Console, report: Report, plan: Plan, url: str, *, interrupted: bool = False
) -> None:
    """Print what became of a plan: by skill, then what was left out, what is wrong, the sum."""
    outcomes = {outcome.target: outcome for outcome in report.outcomes}
    table = _table("skill", "files", "size", "executable", "outcome")
    whole: list[list[Upload]] = []
    for skill, uploads in _by_skill(plan):
        states = [outcomes[upload.target] for upload in uploads]
        if len(plan.folders) > MOST_SKILLS and all(o.state == "written" for o in states):
            whole.append(uploads)
        else:
            table.add_row(_name(skill), *_sizes(uploads), _states(states))
    if whole:
        others = Text(f"{len(whole):,} {'other ' if table.row_count else ''}skills", "italic")
        table.add_row(others, *_sizes([u for uploads in whole for u in uploads]), _whole())
    if table.row_count:
        console.print(table)
    show_details(console, report.excluded, report.warnings)
    if report.in_place:
        message = "merged file by file, because a file system is mounted there: "
        line(console, ("note: ", "yellow"), message, _some(report.in_place))
    show_failures(console, report)
    style = "bold green" if report.ok else "bold red"
    sentence = f"{url}: {'interrupted, ' if interrupted else ''}{report.summary()}"
    trips = f"{report.round_trips:,} {_plural(report.round_trips, 'round trip')}"
    if report.retries:
        trips += f", {report.retries:,} of them again"
    line(
        console,
        (sentence, style),
        f" ({format_size(report.bytes_written)} in {report.seconds:.2f} s, {report.strategy}, "
        f"{trips})",
    )


def show_details(
    console: Console, excluded: Sequence[Excluded], warnings: Sequence[Problem]
) -> None:
    """Print what was left out and what is wrong, a line for each kind."""
    for reason, paths in _grouped((e.reason, e.path) for e in excluded).items():
        line(console, ("left out ", "dim"), f"{_some(paths)} ", (f"({reason})", "dim"))
    for kind, messages in _grouped((w.kind, str(w)) for w in warnings).items():
        count = f" ({len(messages):,} times)" if len(messages) > 1 else ""
        example = ", for example " if len(messages) > 1 else ": "
        line(console, (f"warning: {kind}{count}", "yellow"), f"{example}{messages[0]}")


def show_findings(console: Console, findings: Sequence[Problem]) -> None:
    """Print every finding, below its kind."""
    for kind, messages in _grouped((f.kind, str(f)) for f in findings).items():
        line(console, (f"{kind} ({len(messages):,})", "yellow"))
        for message in messages:
            line(console, message, indent=2)


def show_verdict(
    console: Console, skills: int, errors: int, warnings: int, *, strict: bool
) -> None:
    """Print how a validation ended."""
    counts = [f"{skills:,} {_plural(skills, 'skill')}"]
    counts += [f"{errors:,} {_plural(errors, 'error')}"] if errors else []
    counts += [f"{warnings:,} {_plural(warnings, 'warning')}"] if warnings else []
    style = "bold red" if errors or (strict and warnings) else "bold green"
    line(console, (", ".join(counts) if errors or warnings else f"{counts[0]}, all valid", style))


def show_problems(console: Console, problems: Sequence[Problem | Exception | str]) -> None:
    """Print why something was refused, a line for each reason, up to a number for each kind."""
    groups = _grouped(
        (problem.kind if isinstance(problem, Problem) else "", str(problem)) for problem in problems
    )
    most = len(problems)
    if most > MOST_FAILURES:  # then no kind may crowd out another
        most = max(EXAMPLES, MOST_FAILURES // len(groups))
    for kind, messages in groups.items():
        for message in messages[:most]:
            line(console, ("error: ", "bold red"), message)
        if len(messages) > most:
            more = f"… and {len(messages) - most:,} more: {kind} (--json has them all)"
            line(console, ("error: ", "bold red"), more)


def show_failures(console: Console, report: Report) -> None:
    """Print what failed, below why, and what lacks its execute bit."""
    by_reason = _grouped(
        (outcome.error.reason, outcome.target) for outcome in report.failed if outcome.error
    )
    left = MOST_FAILURES
    for reason, targets in by_reason.items():
        line(console, (f"failed ({len(targets):,}): ", "bold red"), reason)
        for target in targets[:left]:
            line(console, target, indent=2)
        if len(targets) > left:
            line(console, f"… and {len(targets) - left:,} more (--json has them all)", indent=2)
        left = max(EXAMPLES, left - len(targets))
    if report.not_executable:
        message = "there without the execute bit, which is set when all is written: "
        line(console, ("note: ", "yellow"), message, _some(report.not_executable))


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        numeric = heading in ("files", "size", "executable")
        # A long name is folded, not cut: it must be found again.
        justify: JustifyMethod = "right" if numeric else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=numeric)
    return table


def _by_skill(plan: Plan) -> Iterator[tuple[str, list[Upload]]]:
    for folder, uploads in by_folder(plan.uploads, frozenset(plan.folders)):
        yield folder or uploads[0].target, uploads


def _sizes(uploads: Sequence[Upload]) -> tuple[str, str, str]:
    """Return how many files there are, their size, and how many are executable."""
    executables = sum(upload.executable for upload in uploads)
    size = format_size(sum(upload.size for upload in uploads))
    return f"{len(uploads):,}", size, f"{executables:,}" if executables else ""


def _states(outcomes: Sequence[Outcome]) -> Text:
    """Return what became of a skill's files: one word, or how many of each."""
    counts = {state: len(group) for state, group in _grouped_states(outcomes).items()}
    if set(counts) == {"written"}:
        return _whole()
    styles = {"failed": "bold red", "not reached": "yellow"}
    parts = [Text(f"{count:,} {state}", styles.get(state, "")) for state, count in counts.items()]
    return Text(", ").join(parts)


def _whole() -> Text:
    return Text("written", "green")


def _grouped_states(outcomes: Iterable[Outcome]) -> Mapping[str, list[str]]:
    return _grouped((outcome.state, outcome.target) for outcome in outcomes)


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def _some(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:EXAMPLES])
    return shown if len(paths) <= EXAMPLES else f"{shown} and {len(paths) - EXAMPLES:,} more"


def _name(text: str) -> Text:
    return Text(printable(text))


def _sum_of(uploads: Sequence[Upload], skills: int) -> str:
    files, size, _ = _sizes(uploads)
    return (
        f"{files} {_plural(len(uploads), 'file')} of {skills:,} {_plural(skills, 'skill')}, {size}"
    )


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else noun + "s"
