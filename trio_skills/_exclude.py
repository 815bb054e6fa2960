"""What is left out of skills and of source trees: a small named set, and gitignore patterns."""

from __future__ import annotations

import re

import attrs
import pathspec

DEFAULT_EXCLUDED = (".git", "__pycache__", "*.pyc", ".DS_Store")
"""What is left out unless a pattern takes it back in. No other rule: dotfiles belong to a tree."""

_NAMES = frozenset(pattern for pattern in DEFAULT_EXCLUDED if "*" not in pattern)
_SUFFIXES = tuple(pattern[1:] for pattern in DEFAULT_EXCLUDED if "*" in pattern)


@attrs.frozen
class Exclusion:
    """The rule for what is left out: the default, then gitignore patterns over it."""

    _spec: pathspec.GitIgnoreSpec
    _is_default: bool

    @classmethod
    def of(cls, patterns: tuple[str, ...]) -> Exclusion:
        """Raises `ValueError` for what is no pattern."""
        try:
            spec = pathspec.GitIgnoreSpec.from_lines([*DEFAULT_EXCLUDED, *patterns])
        except (ValueError, re.error) as exc:
            raise ValueError(f"exclude has what is no gitignore pattern: {exc}") from exc
        return cls(spec, not patterns)

    def leaves_out(self, path: str, name: str, is_folder: bool) -> str | None:
        """Return the pattern that leaves out a path, whose last part is `name`; else None."""
        if self._is_default and name not in _NAMES and not name.endswith(_SUFFIXES):
            return None  # what a regular expression for each file would say, thirty times later
        # A newline in a name is no end of a line; NUL, which is in no name, is like any letter.
        verdict = self._spec.check_file(path.replace("\n", "\0") + "/" * is_folder)
        if not verdict.include or verdict.index is None:
            return None
        return str(self._spec.patterns[verdict.index].pattern)
