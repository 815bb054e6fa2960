"""Where two uploads want one place: decided by a rule when planning, never by who is faster."""

from __future__ import annotations

import posixpath
import unicodedata
from collections.abc import Container, Iterable, Sequence
from typing import Literal, TypeAlias

import attrs

from trio_skills._errors import Problem
from trio_skills._printable import printable
from trio_skills._tree import Excluded
from trio_skills._upload import Upload

OnCollision: TypeAlias = Literal["error", "last", "first"]
"""Whose upload stays: nobody's, the last source's, the first source's."""


@attrs.define
class Resolved:
    """Uploads of which no two collide."""

    uploads: list[Upload] = attrs.Factory(list)
    """Sorted by target."""
    excluded: list[Excluded] = attrs.Factory(list)
    """What gave way, sorted by path."""
    problems: list[Problem] = attrs.Factory(list)
    """The collisions, where they are errors."""


def resolve(uploads: Sequence[Upload], on_collision: OnCollision) -> Resolved:
    """Decide every collision among `uploads`, which are in the order of their sources.

    Two uploads collide where their targets are equal, and where one is a file at a place that the
    other needs as a folder.
    """
    resolved = Resolved()
    files: dict[str, Upload] = {}
    folders: dict[str, Upload] = {}  # each with an upload that needs it
    for upload in reversed(uploads) if on_collision == "last" else uploads:
        rival = _rival(upload.target, files, folders)
        if rival is None:
            files[upload.target] = upload
            for folder in _folders_above(upload.target, folders):
                folders[folder] = upload
        elif on_collision == "error":
            resolved.problems.append(_collision(rival, upload))
        else:
            reason = f"collision: {printable(rival.target)} comes from {_source(rival)}"
            resolved.excluded.append(Excluded(_source(upload), reason))
    resolved.uploads = sorted(files.values(), key=lambda upload: upload.target)
    resolved.excluded.sort(key=lambda excluded: excluded.path)
    return resolved


def case_clashes(targets: Iterable[str]) -> list[Problem]:
    """Return a problem for each target that some file systems cannot tell from another.

    Folders count too: two that differ so would be one there, and so would a folder and a file.
    """
    paths: set[str] = set()
    for target in targets:
        paths.update((target, *_folders_above(target, paths)))
    clashes = []
    first: dict[str, str] = {}
    for path in sorted(paths):
        folded = path.lower() if path.isascii() else _fold(path)
        other = first.setdefault(folded, path)
        if other != path:
            message = f"differs from {printable(other)} in case or Unicode normal form alone"
            clashes.append(Problem("case-clash", path, message))
    return clashes


def _fold(target: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", target).casefold())


def _rival(target: str, files: dict[str, Upload], folders: dict[str, Upload]) -> Upload | None:
    if (rival := files.get(target) or folders.get(target)) is not None:
        return rival
    return next((files[f] for f in _folders_above(target, folders) if f in files), None)


def _folders_above(target: str, known: Container[str]) -> list[str]:
    """Return the folders above `target`, up to one that is `known`: above that, all are."""
    above = []
    folder = posixpath.dirname(target)
    while folder not in ("", "/") and folder not in known:
        above.append(folder)
        folder = posixpath.dirname(folder)
    return above


def _collision(first: Upload, second: Upload) -> Problem:
    if first.target == second.target:
        what = f"{_source(first)} and this both go to {printable(second.target)}"
    else:
        what = (
            f"it goes to {printable(second.target)}, and {_source(first)} to "
            f"{printable(first.target)}: a file where a folder must be"
        )
    return Problem("collision", _source(second), f"{what}; rename one, or choose on_collision")


def _source(upload: Upload) -> str:
    return upload.target if isinstance(upload.source, bytes) else str(upload.source)
