"""The commands: what can be typed, and what each prints and exits with."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import attrs
import trio
from cyclopts import App, CycloptsError, Group, Parameter

from trio_skills._archive import Recipe, write
from trio_skills._collisions import OnCollision
from trio_skills._compress import Compression, compression_of
from trio_skills._errors import (
    PlanError,
    Problem,
    SourceChangedError,
    TrioSkillsError,
    describe,
)
from trio_skills._find import find_skills
from trio_skills._limits import Limits
from trio_skills._plan import Plan, plan_skills
from trio_skills._runtime import Existing
from trio_skills._transfers import Strategy
from trio_skills.cli import _output, _signals
from trio_skills.cli._carry_out import Ending, carry_out
from trio_skills.cli._json import (
    archive_to_dict,
    plan_to_dict,
    print_json,
    problems_to_list,
    refusal_to_dict,
)
from trio_skills.cli._sizes import parse_size
from trio_skills.cli._tables import (
    line,
    show_failures,
    show_findings,
    show_plan,
    show_problems,
    show_report,
    show_verdict,
)
from trio_skills.runtimes import open_runtime

FAILED = 1
"""Exit code: some file is not there as planned."""
WRONG = 2
"""Exit code: the plan or the usage is wrong, and nothing was written."""
UNPRINTED = 74
"""Exit code: the work is done, but its report could not be printed (`EX_IOERR` of sysexits.h)."""
SIGNALLED = 128
"""Exit code, with a signal's number added: ended by that signal."""

_TO = """\
The sandbox: a directory, docker://CONTAINER/path, ssh://USER@HOST:PORT/path, podman://CONTAINER/path,
kubectl://POD/path, apptainer://INSTANCE/path, or 'exec:COMMAND WORDS'."""

_EXIT_CODES = """\
Exit codes: 0 done, 1 some file failed, 2 the plan or the usage is wrong,
130 interrupted (143 by SIGTERM)."""

app = App(
    name="trio-skills",
    help="Put agent skills into sandboxes: fast, whole, and with every outcome known.",
    help_epilogue=_EXIT_CODES,
    help_format="plaintext",
    version=lambda: f"trio-skills {_version()}",
    suppress_keyboard_interrupt=False,
)


_PLANNING = Group("Planning", sort_key=1)
_ARCHIVE = Group("Archive", sort_key=1)
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


Exclude = Annotated[
    tuple[str, ...],
    Parameter(
        help="gitignore pattern of what to leave out; may come several times.",
        metavar="PATTERN",
        negative=(),
        show_default=False,
    ),
]


@Parameter(name="*", group=_PLANNING)
@attrs.frozen
class PlanOptions:
    """The options of every command that plans."""

    dest: Annotated[str, Parameter(help="Folder in the sandbox, counted from the URL's path.")] = (
        "."
    )
    on_collision: Annotated[
        OnCollision, Parameter(help="Whose file stays where two go to one place.")
    ] = "error"
    exclude: Exclude = ()
    strict: Strict = False
    shebang: Annotated[
        bool, _flag("Make every file executable that begins with '#!'.", _PLANNING)
    ] = False

    def plan(self, sources: Sequence[str]) -> Plan:
        return plan_skills(
            _find(sources),
            _as_utf8(self.dest),
            on_collision=self.on_collision,
            exclude=self.exclude,
            strict=self.strict,
            shebang=self.shebang,
        )


@Parameter(name="*", group=_TRANSFER)
@attrs.frozen
class TransferOptions:
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
    retries: Annotated[
        int, Parameter(help="How often what failed for a moment is tried again.")
    ] = 3

    def options(self) -> dict[str, Any]:  # Any: keyword arguments of `install`
        return {
            "limits": Limits(self.max_in_flight, self.max_bytes),
            "strategy": self.strategy,
            "batch_size": self.batch_size,
            "existing": self.existing,
            "verify": self.verify,
            "skip_unchanged": self.skip_unchanged,
            "retries": self.retries,
        }


@app.command(name="plan", help_epilogue="Example:\n  trio-skills plan ./skills --exclude '*.log'")
def plan_command(
    *sources: Source, planning: PlanOptions = PlanOptions(), json: Json = False
) -> int:
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
    to: Annotated[str, Parameter(help=_TO, metavar="URL")],
    planning: PlanOptions = PlanOptions(),
    transfer: TransferOptions = TransferOptions(),
    dry_run: Annotated[bool, _flag("Show the plan, and write nothing.", _OUTPUT)] = False,
    quiet: Annotated[bool, _flag("Print nothing but errors.", _OUTPUT)] = False,
    json: Json = False,
) -> int:
    """Put skills into a sandbox, and say what became of every file."""
    with _refusals(json=json):
        options = transfer.options()
        runtime = open_runtime(to)  # a wrong URL is said before everything is read
        plan = planning.plan(sources)
    if dry_run:
        _print_plan(plan, json=json, quiet=quiet)
        return 0
    held = _signals.hold()
    console = _output.stderr(quiet=quiet or json)
    ending = trio.run(carry_out, plan, runtime, options, console, held)
    if ending.refusal is not None:
        with _refusals(json=json):
            raise ending.refusal
    _print_ending(ending, plan, to, json=json, quiet=quiet)
    if ending.signal is not None:
        return SIGNALLED + ending.signal
    return 0 if ending.report is not None and ending.report.ok else FAILED


@app.command(
    name="archive",
    usage="Usage: trio-skills archive ROOT [MEMBER...] --output FILE [OPTIONS]",
    help_epilogue="Example:\n  trio-skills archive . pyproject.toml src -o source.tar.gz",
)
def archive_command(
    root: Annotated[str, Parameter(name="ROOT", help="The folder whose tree it is.")],
    /,
    *members: Annotated[
        str,
        Parameter(name="MEMBER", help="Paths in it that belong to the archive: all by default."),
    ],
    output: Annotated[
        str,
        Parameter(
            name=("--output", "-o"),
            help="The file to write; - is standard output.",
            metavar="FILE",
            allow_leading_hyphen=True,
            group=_ARCHIVE,
        ),
    ],
    compression: Annotated[
        Compression | None,
        Parameter(
            help="By default as FILE's name says, else gzip.", show_default=False, group=_ARCHIVE
        ),
    ] = None,
    exclude: Annotated[Exclude, Parameter(group=_ARCHIVE)] = (),
    missing_ok: Annotated[bool, _flag("Do without a MEMBER that is not there.", _ARCHIVE)] = False,
    quiet: Annotated[bool, _flag("Print nothing but errors.", _OUTPUT)] = False,
    json: Json = False,
) -> int:
    """Write a source archive: the same bytes for the same tree. Print its digest.

    The digest is the SHA-256 of the uncompressed tar.
    With '-o -' it is printed to standard error.
    """
    to_stdout = output == "-"
    with _refusals(json=json):
        if not output:
            raise ValueError("the output is empty; name a file")
        chosen = compression or compression_of(output)
        paths = [_as_utf8(member) for member in members]
        recipe = Recipe.of(root, paths or None, exclude, chosen, missing_ok)
        if to_stdout and sys.stdout.isatty():
            raise ValueError("an archive is nothing for a terminal; use -o FILE, or a pipe")
    try:
        with _refusals(json=json, but=(SourceChangedError, OSError)):
            info = write(recipe, sys.stdout.buffer if to_stdout else output)
    except (SourceChangedError, OSError) as exc:
        if to_stdout and isinstance(exc, OSError):
            raise
        failure = exc if isinstance(exc, SourceChangedError) else f"{output}: {describe(exc)}"
        _print_refusal(exc, [failure], json=json)
        return FAILED
    if json:
        print_json(archive_to_dict(info), sys.stderr if to_stdout else sys.stdout)
    else:
        console = _output.stderr(quiet=quiet) if to_stdout else _output.stdout(quiet=quiet)
        line(console, f"{info.digest}  {output}")
    return 0


@app.command(name="validate", help_epilogue="Example:\n  trio-skills validate ./skills --strict")
def validate_command(*sources: Source, strict: Strict = False, json: Json = False) -> int:
    """Check skills against the Agent Skills specification, and that they can be installed.

    What breaks the specification is a warning, since agents load most such skills, unless --strict.
    """
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
    show_findings(_output.stdout(), [*errors, *warnings])
    show_verdict(_output.stdout(), len(skills), len(errors), len(warnings), strict=strict)
    return WRONG if wrong else 0


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line with `arguments`, by default the process's, and exit."""
    _output.prepare()
    _signals.raise_both()
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except OSError as exc:
        _output.discard()
        code = SIGNALLED + signal.SIGPIPE
        if not isinstance(exc, BrokenPipeError):  # of whom it is said that he has seen enough
            show_problems(_output.stderr(), [f"cannot print: {describe(exc)}"])
            code = UNPRINTED
    _signals.ignore()
    sys.exit(code)


def _run(arguments: Sequence[str]) -> int:
    """Run a command, and return the exit code. Raises `OSError` where it cannot be printed."""
    json = "--json" in arguments
    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as exc:
        _print_refusal(exc, [f"{exc} (--help tells more)"], json=json)
        return WRONG
    except _RefusedError:
        return WRONG
    except KeyboardInterrupt as exc:
        _signals.hold()
        _print_interruption(json=json)
        ended_by = signal.SIGTERM if isinstance(exc, _signals.Terminated) else signal.SIGINT
        return SIGNALLED + ended_by
    return code or 0  # what shows help returns none


def _version() -> str:
    try:
        return version("trio-skills")
    except PackageNotFoundError:
        return "(not installed: run from its source)"


def _print_interruption(*, json: bool) -> None:
    if json:
        print_json({"ok": False, "interrupted": True})
    else:
        line(_output.stderr(), "interrupted; no file was written")


def _print_ending(ending: Ending, plan: Plan, url: str, *, json: bool, quiet: bool) -> None:
    report, interrupted = ending.report, ending.signal is not None
    if report is None:
        _print_interruption(json=json)
    elif json:
        print_json(report.to_dict() | {"interrupted": interrupted})
    elif quiet:
        show_failures(_output.stderr(), report)
        if interrupted:
            line(_output.stderr(), f"interrupted, {report.summary()}")
    else:
        show_report(_output.stdout(), report, plan, url, interrupted=interrupted)


def _print_plan(plan: Plan, *, json: bool, quiet: bool = False) -> None:
    if json:
        print_json(plan_to_dict(plan))
    else:
        show_plan(_output.stdout(quiet=quiet), plan)


def _as_utf8(argument: str) -> str:
    """Return what the user typed, whatever this process's locale made of it."""
    return os.fsencode(argument).decode("utf-8", "surrogateescape")


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


class _RefusedError(Exception):
    """What is wrong was printed."""


@contextmanager
def _refusals(*, json: bool, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Print what the library refuses, and end the command; let other things pass."""
    try:
        yield
    except but:
        raise
    except (TrioSkillsError, ValueError, OSError) as exc:
        problems = exc.problems if isinstance(exc, PlanError) else [exc]
        _print_refusal(exc, problems, json=json)
        raise _RefusedError from None


def _print_refusal(
    error: Exception, problems: Sequence[Problem | Exception | str], *, json: bool
) -> None:
    if json:
        print_json(refusal_to_dict(error))
    else:
        show_problems(_output.stderr(), problems)
