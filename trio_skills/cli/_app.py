"""The commands: what can be typed, and what each prints and exits with."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import attrs
import trio
from cyclopts import App, CycloptsError, Group, Parameter
from rich.console import Console

from trio_skills._collisions import OnCollision
from trio_skills._errors import PlanError, Problem, TrioSkillsError
from trio_skills._find import find_skills
from trio_skills._limits import Limits
from trio_skills._plan import Plan, plan_skills
from trio_skills._runtime import Existing
from trio_skills._transfers import Strategy
from trio_skills.cli._carry_out import carry_out
from trio_skills.cli._json import (
    plan_to_dict,
    print_json,
    problems_to_list,
    refusal_to_dict,
)
from trio_skills.cli._sizes import parse_size
from trio_skills.cli._tables import (
    show_findings,
    show_plan,
    show_problems,
    show_report,
    show_verdict,
)

FAILED = 1
"""Exit code: some file is not there as planned."""
WRONG = 2
"""Exit code: the plan or the usage is wrong, and nothing was written."""
SIGNALLED = 128
"""Exit code, with a signal's number added: ended by that signal."""

_EXIT_CODES = """\
Exit codes: 0 done, 1 some file failed, 2 the plan or the usage is wrong, 130 interrupted."""

app = App(
    name="trio-skills",
    help="Put agent skills into sandboxes: fast, whole, and with every outcome known.",
    help_epilogue=_EXIT_CODES,
    help_format="plaintext",
    version=lambda: f"trio-skills {version('trio-skills')}",
    suppress_keyboard_interrupt=False,
)
_PLANNING = Group("Planning", sort_key=1)
_TRANSFER = Group("Transfer", sort_key=2)
_OUTPUT = Group("Output", sort_key=3)


def _flag(text: str, group: Group | None = None) -> Parameter:
    return Parameter(help=text, negative=(), show_default=False, group=group)


Source = Annotated[
    str,
    Parameter(
        name="SRC",
        help="Skill folders, or folders that hold skills at any depth.",
        required=True,
        negative=(),
    ),
]
Strict = Annotated[
    bool, _flag("Refuse skills that break the Agent Skills specification.", _PLANNING)
]
Json = Annotated[bool, _flag("Print one JSON object, for programs.", _OUTPUT)]


@Parameter(name="*", group=_PLANNING)
@attrs.frozen
class Planning:
    """The options of every command that plans."""

    dest: Annotated[
        str, Parameter(help="Folder in the sandbox; a relative one is below the URL's path.")
    ] = "."
    on_collision: Annotated[
        OnCollision, Parameter(help="Whose file stays where two go to one place.")
    ] = "error"
    exclude: Annotated[
        tuple[str, ...],
        Parameter(
            help="gitignore pattern of what to leave out; may come several times.",
            negative=(),
            show_default=False,
        ),
    ] = ()
    strict: Strict = False
    shebang: Annotated[
        bool, _flag("Make every file executable that begins with '#!'.", _PLANNING)
    ] = False

    def plan(self, sources: Sequence[str]) -> Plan:
        return plan_skills(
            _find(sources),
            self.dest,
            on_collision=self.on_collision,
            exclude=self.exclude,
            strict=self.strict,
            shebang=self.shebang,
        )


@Parameter(name="*", group=_TRANSFER)
@attrs.frozen
class Transfer:
    """The options of `install` that are not about planning."""

    strategy: Annotated[
        Strategy, Parameter(help="How the files travel; auto packs where the sandbox can.")
    ] = "auto"
    batch_size: Annotated[int, Parameter(help="Files in a batch of 'batched'.")] = 8
    max_in_flight: Annotated[int, Parameter(help="Transfers at once.")] = 64
    max_bytes: Annotated[
        int,
        Parameter(
            help="Bytes in flight at once, as 64MiB.",
            converter=lambda _, tokens: parse_size(tokens[0].value),
            show_default=lambda size: f"{size // 2**20}MiB",
            metavar="SIZE",
        ),
    ] = 64 * 2**20
    existing: Annotated[
        Existing, Parameter(help="What becomes of a skill folder that is there already.")
    ] = "merge"
    verify: Annotated[bool, _flag("Hash in the end what is there.", _TRANSFER)] = False
    skip_unchanged: Annotated[bool, _flag("Look first, and send only what differs.", _TRANSFER)] = (
        False
    )

    def options(self) -> dict[str, Any]:  # Any: keyword arguments of `install`
        return {
            "limits": Limits(self.max_in_flight, self.max_bytes),
            "strategy": self.strategy,
            "batch_size": self.batch_size,
            "existing": self.existing,
            "verify": self.verify,
            "skip_unchanged": self.skip_unchanged,
        }


@app.command(name="plan", help_epilogue="Example:\n  trio-skills plan ./skills --exclude '*.log'")
def plan_command(*sources: Source, planning: Planning = Planning(), json: Json = False) -> int:
    """Show what would go where, and what is refused, without writing anything."""
    with _refusals(json=json):
        plan = planning.plan(sources)
    _print_plan(plan, json=json)
    return 0


@app.command(
    name="install",
    help_epilogue="Example:\n  trio-skills install ./skills --to sandbox/.agents/skills --verify",
)
def install_command(
    *sources: Source,
    to: Annotated[str, Parameter(help="The sandbox: a directory, or local:/path.", metavar="URL")],
    planning: Planning = Planning(),
    transfer: Transfer = Transfer(),
    dry_run: Annotated[bool, _flag("Show the plan, and write nothing.", _OUTPUT)] = False,
    quiet: Annotated[bool, _flag("Print nothing but errors.", _OUTPUT)] = False,
    json: Json = False,
) -> int:
    """Put skills into a sandbox, and say what became of every file."""
    with _refusals(json=json):
        options = transfer.options()
        plan = planning.plan(sources)
    if dry_run:
        _print_plan(plan, json=json, quiet=quiet)
        return 0
    ending = trio.run(carry_out, plan, to, options, _stderr(quiet=quiet or json))
    with _refusals(json=json):
        if ending.refusal is not None:
            raise ending.refusal
    report = ending.report
    if report is not None and json:
        print_json(report.to_dict() | {"interrupted": ending.signal is not None})
    elif report is not None:
        console = _stderr() if quiet and not report.ok else _stdout(quiet=quiet)
        show_report(console, report, plan, to)
    if ending.signal is not None:
        return SIGNALLED + ending.signal
    return 0 if report is not None and report.ok else FAILED


@app.command(name="validate", help_epilogue="Example:\n  trio-skills validate ./skills --strict")
def validate_command(*sources: Source, strict: Strict = False, json: Json = False) -> int:
    """Check skills against the Agent Skills specification, and that they can be installed."""
    with _refusals(json=json):
        skills = _find(sources)
    errors: list[Problem] = []
    warnings: list[Problem] = []
    for folder in skills:
        try:
            warnings += plan_skills([folder]).warnings
        except PlanError as exc:
            errors += exc.problems
    wrong = bool(errors or (strict and warnings))
    if json:
        findings = problems_to_list([*errors, *warnings])
        print_json({"ok": not wrong, "skills": len(skills), "findings": findings})
        return WRONG if wrong else 0
    show_findings(_stdout(), [*errors, *warnings])
    show_verdict(_stdout(), len(skills), len(errors), len(warnings), strict=strict)
    return WRONG if wrong else 0


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line with `arguments`, by default the process's, and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a locale cannot show is shown escaped
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as exc:
        if "--json" in (sys.argv if arguments is None else arguments):
            print_json(refusal_to_dict(exc))
        else:
            show_problems(_stderr(), [f"{exc} (--help tells more)"])
        code = WRONG
    except KeyboardInterrupt:
        code = SIGNALLED + signal.SIGINT
    except BrokenPipeError:
        # Whoever read it has seen enough. Python would complain once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = SIGNALLED + signal.SIGPIPE
    sys.exit(code)


def _print_plan(plan: Plan, *, json: bool, quiet: bool = False) -> None:
    if json:
        print_json(plan_to_dict(plan))
    else:
        show_plan(_stdout(quiet=quiet), plan)


def _find(sources: Sequence[str]) -> list[Path]:
    """Return the skills in every source, or raise with what is wrong with any of them."""
    found: list[Path] = []
    problems: list[Problem] = []
    for source in sources:
        try:
            found += find_skills(source)
        except PlanError as exc:
            problems += exc.problems
    if problems:
        raise PlanError(problems)
    return found


@contextmanager
def _refusals(*, json: bool) -> Iterator[None]:
    """Print what the library refuses, and exit."""
    try:
        yield
    except (TrioSkillsError, ValueError, OSError) as exc:
        if json:
            print_json(refusal_to_dict(exc))
        else:
            problems = exc.problems if isinstance(exc, PlanError) else [exc]
            show_problems(_stderr(), problems)
        raise SystemExit(WRONG) from None


def _stdout(*, quiet: bool = False) -> Console:
    return Console(highlight=False, emoji=False, markup=False, quiet=quiet)


def _stderr(*, quiet: bool = False) -> Console:
    return Console(stderr=True, highlight=False, emoji=False, markup=False, quiet=quiet)
