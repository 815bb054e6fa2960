"""Folders in, a `Plan` out: what goes where, decided before any byte leaves.

No sandbox, no Trio and no clock: a plan is a function of the folders' content.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import get_args

import attrs

from trio_skills._beneath import components, is_utf8, real_path
from trio_skills._collisions import OnCollision, case_clashes, resolve
from trio_skills._errors import PlanError, Problem, describe
from trio_skills._exclude import Exclusion
from trio_skills._printable import printable
from trio_skills._skill import Skill, parse_skill
from trio_skills._tree import (
    MAX_NAME,
    MAX_PATH,
    Excluded,
    Tree,
    read_tree,
    why_no_folder,
    wrong_source,
)
from trio_skills._upload import Upload, digest_of


@attrs.frozen
class Plan:
    """What is to be put where. Make one with `plan_skills` or `plan_uploads`."""

    uploads: tuple[Upload, ...]
    """Sorted by target; no two collide."""
    dest: str = "."
    """The folder in the sandbox under which every target lies."""
    folders: tuple[str, ...] = ()
    """The skill folders in the sandbox, sorted: each is put there whole."""
    skills: tuple[Skill, ...] = ()
    """What the sources are, in their order."""
    excluded: tuple[Excluded, ...] = ()
    """What was left out, and why."""
    warnings: tuple[Problem, ...] = ()
    """What is wrong with the skills, but hinders nothing."""

    @property
    def executables(self) -> tuple[str, ...]:
        """The targets that may be executed in the sandbox."""
        return tuple(upload.target for upload in self.uploads if upload.executable)

    @property
    def total_bytes(self) -> int:
        """The sum of the uploads' sizes, in bytes."""
        return sum(upload.size for upload in self.uploads)

    @property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, over every target, execute bit and content: the plan's name."""
        return digest_of(self.uploads)


def plan_skills(
    sources: Iterable[str | os.PathLike[str]],
    dest: str = ".",
    *,
    on_collision: OnCollision = "error",
    exclude: Iterable[str] = (),
    strict: bool = False,
    shebang: bool = False,
) -> Plan:
    """Plan to put skill folders into the folder `dest` of a sandbox.

    Each source goes to `dest/<its name>`. Reads every file once, and blocks: inside a running loop
    call it by `trio.to_thread.run_sync`.

    Args:
        sources: Skill folders; see `find_skills` for folders that hold skills. One without a
            `SKILL.md` is refused before its files are read.
        dest: A POSIX path in the sandbox; a relative one is taken from the runtime's own folder.
        on_collision: Whose file stays where two go to one place.
        exclude: gitignore patterns for what is left out, relative to each skill, besides `.git`,
            `__pycache__`, `*.pyc` and `.DS_Store` (`!.git` takes that back in).
        strict: Whether a skill that breaks the Agent Skills specification is refused, not warned
            of.
        shebang: Whether a file that begins with `#!` is executable, whatever its mode.

    Raises:
        PlanError: Everything that was wrong, with the path of each.
        ValueError: `exclude` has what is no gitignore pattern, or `on_collision` is none.
    """
    if isinstance(sources, str | bytes | os.PathLike):
        raise TypeError("sources is a list of folders, not one path")
    if isinstance(exclude, str | bytes):
        raise TypeError("exclude is a list of patterns, not one pattern")
    _check_policy(on_collision)
    problems = check_dest(dest)
    dest = normal(dest) if not problems else "."  # said once, not again for each file
    rule = Exclusion.of(tuple(exclude))
    skills: list[Skill] = []
    folders: dict[str, Path] = {}
    uploads: list[Upload] = []
    excluded: list[Excluded] = []
    for folder, name in _distinct(sources, problems):
        base = normal(posixpath.join(dest, name))
        if on_collision == "error" and base in folders:
            problems.append(_same_name(folder, folders[base], name))
            continue
        folders.setdefault(base, folder)
        try:
            if no_skill_md := _no_skill_md(folder):
                problems.append(no_skill_md)
                continue
            tree = read_tree(folder, rule)
        except (OSError, ValueError) as exc:
            problems.append(Problem("source-unreadable", str(folder), why_no_folder(exc)))
            continue
        problems += tree.problems
        if tree.skill_md is None:
            problems += _left_out(folder, tree)
            continue
        skills.append(parse_skill(folder, name, tree.skill_md))
        excluded += tree.excluded
        uploads += (
            Upload(
                target=f"{base}/{file.path}",
                source=file.source,
                size=file.size,
                executable=file.executable or (shebang and file.shebang),
                digest=file.digest,
                is_resolved=True,
            )
            for file in tree.files
        )
    findings = [problem for skill in skills for problem in skill.problems]
    if strict:
        problems += findings
    plan = _plan(uploads, on_collision, problems)
    return attrs.evolve(
        plan,
        dest=dest,
        folders=tuple(sorted(folders)),
        skills=tuple(skills),
        excluded=(*excluded, *plan.excluded),
        warnings=(*findings, *plan.warnings),
    )


def plan_uploads(uploads: Iterable[Upload], *, on_collision: OnCollision = "error") -> Plan:
    """Plan to put single files into a sandbox: content made by a program, rather than folders.

    An upload without a digest is read for it, so this blocks. Raises `PlanError`, as `plan_skills`.
    """
    _check_policy(on_collision)
    problems: list[Problem] = []
    complete: list[Upload] = []
    for upload in uploads:
        try:
            complete.append(_complete(upload))
        except (OSError, ValueError) as exc:
            problems.append(Problem("unreadable", str(upload.source), describe(exc)))
    return _plan(complete, on_collision, problems)


def normal(path: str) -> str:
    """Return a POSIX path in its one normal form: no `.`, no `//`, no final `/`."""
    normal = posixpath.normpath(path)
    return normal[1:] if normal.startswith("//") else normal


def check_dest(dest: str) -> list[Problem]:
    """Return what is wrong with a destination."""
    if ".." in dest.split("/"):
        return [Problem("dest-invalid", dest, "a destination has no '..'")]
    if "\0" in dest or not is_utf8(dest):
        return [Problem("dest-invalid", dest, "a destination is UTF-8, without NUL")]
    return []


def _distinct(
    sources: Iterable[str | os.PathLike[str]], problems: list[Problem]
) -> Iterator[tuple[Path, str]]:
    """Yield each source once, with the name that it is installed as."""
    seen: set[tuple[str, str]] = set()
    for source in sources:
        if wrong := wrong_source(source):
            problems.append(wrong)
            continue
        folder = Path(source)
        name = folder.name
        if name in ("", ".."):  # "." and ".." have their name only when resolved
            name = os.path.basename(real_path(folder))
        key = (name, real_path(folder))
        if key in seen:
            continue
        seen.add(key)
        try:
            yield folder, os.fsencode(name).decode("utf-8")
        except UnicodeDecodeError:
            problems.append(Problem("name-not-utf8", str(folder), "the name is not UTF-8"))


def _no_skill_md(folder: Path) -> Problem | None:
    """Return what is wrong where there is no `SKILL.md`. Raises `OSError` for no folder."""
    names = os.listdir(folder)
    if "SKILL.md" in names:
        return None
    near = [name for name in names if name.lower() == "skill.md"]
    if near:
        message = f"it holds {near[0]}; rename that to SKILL.md, exactly"
    else:
        message = "it holds no SKILL.md; a source of plan_skills is a skill, see find_skills"
    return Problem("no-skill-md", str(folder), message)


def _left_out(folder: Path, tree: Tree) -> list[Problem]:
    """Return what is wrong where there is a `SKILL.md` that was not read; the tree may say it."""
    path = str(folder / "SKILL.md")
    for excluded in tree.excluded:
        if excluded.path.rstrip("/") == path:
            message = f"the pattern {printable(excluded.reason)!r} leaves it out; add '!SKILL.md'"
            return [Problem("no-skill-md", path, message)]
    return [] if tree.problems else [Problem("no-skill-md", path, "it must be a file")]


def _same_name(folder: Path, first: Path, name: str) -> Problem:
    message = (
        f"{printable(str(first))} is installed as {printable(name)} too; rename one, or choose "
        "whose files stay (on_collision)"
    )
    return Problem("collision", str(folder), message)


def _check_policy(on_collision: OnCollision) -> None:
    if on_collision not in get_args(OnCollision):
        known = ", ".join(get_args(OnCollision))
        raise ValueError(f"on_collision is one of {known}; not {on_collision!r}")


def _plan(uploads: Sequence[Upload], on_collision: OnCollision, problems: list[Problem]) -> Plan:
    problems = [*problems, *(p for upload in uploads for p in _check_target(upload))]
    resolved = resolve(uploads, on_collision)
    problems += resolved.problems
    if problems:
        raise PlanError(problems)
    return Plan(
        uploads=tuple(resolved.uploads),
        excluded=tuple(resolved.excluded),
        warnings=tuple(case_clashes(upload.target for upload in resolved.uploads)),
    )


def _complete(upload: Upload) -> Upload:
    upload = attrs.evolve(upload, target=normal(upload.target))
    if upload.digest is not None and isinstance(upload.source, Path):
        return upload
    return Upload.of(upload.target, upload.source, executable=upload.executable)


def _check_target(upload: Upload) -> list[Problem]:
    path = str(upload.source) if isinstance(upload.source, Path) else upload.target
    target = upload.target
    try:
        parts = components(target)
        size = len(target.encode())
        longest = size if size <= MAX_NAME else max(len(part.encode()) for part in parts)
    except ValueError:
        return [Problem("target-invalid", path, "a target is UTF-8, without '..' and NUL")]
    if not parts:
        return [Problem("target-invalid", path, "its target names no file")]
    if longest > MAX_NAME:
        return [Problem("name-too-long", path, f"a name is over {MAX_NAME} bytes; shorten it")]
    if size > MAX_PATH:
        return [Problem("path-too-long", path, f"the target is over {MAX_PATH:,} bytes")]
    return []
