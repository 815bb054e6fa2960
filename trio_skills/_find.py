"""Find the skills in a folder of folders."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from trio_skills._beneath import real_path
from trio_skills._errors import PlanError, Problem
from trio_skills._exclude import DEFAULT_EXCLUDED
from trio_skills._tree import why_no_folder, wrong_source


def find_skills(root: str | os.PathLike[str]) -> list[Path]:
    """Return the skill folders in `root` at any depth, sorted; `root` itself where it is one.

    A skill folder holds a `SKILL.md`. What lies in one belongs to it: further skills in there are
    its own. A link is followed where it stays inside `root`. Blocks, as `plan_skills` does.

    Raises:
        PlanError: Nothing was found, or a folder could not be read, or a link leads to a skill
            outside: name that as a source itself.
    """
    if wrong := wrong_source(root):
        raise PlanError([wrong])
    root = Path(root)
    finder = _Finder(real_path(root))
    finder.search(root)
    if finder.problems:
        raise PlanError(finder.problems)
    if not finder.found:
        raise PlanError([Problem("no-skill-md", str(root), "there is no SKILL.md in or below it")])
    return sorted(finder.found)


class _Finder:
    def __init__(self, root: str) -> None:
        self.root = root
        self.seen: set[str] = set()
        self.found: list[Path] = []
        self.problems: list[Problem] = []

    def search(self, root: Path) -> None:
        waiting = [root]
        while waiting:
            folder = waiting.pop()
            if self._is_new(folder):
                waiting.extend(self._look_into(folder))

    def _is_new(self, folder: Path) -> bool:
        """Whether a folder is to be searched, which is so once, whatever links lead to it."""
        real = real_path(folder)
        if real in self.seen:
            return False
        self.seen.add(real)
        if real == self.root or real.startswith(self.root.rstrip("/") + "/"):
            return True
        if os.path.lexists(folder / "SKILL.md"):
            message = f"the link leaves {self.root}; name that skill as a source itself"
            self.problems.append(Problem("link-leaves", str(folder), message))
        return False

    def _look_into(self, folder: Path) -> list[Path]:
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name, reverse=True)
        except (OSError, ValueError) as exc:
            self.problems.append(Problem("source-unreadable", str(folder), why_no_folder(exc)))
            return []
        if any(entry.name == "SKILL.md" for entry in entries):
            self.found.append(folder)
            return []
        return [
            Path(entry.path)
            for entry in entries
            if entry.name not in DEFAULT_EXCLUDED and _is_folder(entry)
        ]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # a link that leads nowhere that may be entered, or to itself
        return entry.is_dir()
    return False
