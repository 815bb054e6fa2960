"""Skill folders for tests, and what lies in a folder afterwards."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from trio_skills import Plan

SKILL_MD = b"---\nname: {name}\ndescription: For tests.\n---\n"

Tree = dict[str, tuple[bytes, bool]]
"""Relative path to content and execute bit."""

Content = bytes | tuple[bytes, bool]
"""What a file holds, and whether it is executable if it says so."""


def make_skill(folder: Path, files: Mapping[str, Content] | None = None) -> Path:
    """Make a valid skill with further files; a tuple also says whether it is executable."""
    write_tree(folder, {"SKILL.md": SKILL_MD.replace(b"{name}", folder.name.encode())})
    write_tree(folder, files or {})
    return folder


def write_tree(folder: Path, files: Mapping[str, Content]) -> None:
    for path, content in files.items():
        data, executable = content if isinstance(content, tuple) else (content, False)
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        file.chmod(0o755 if executable else 0o644)


def read_tree(folder: Path) -> Tree:
    """Return every file below a folder; a link or an empty folder is in it too, by a mark."""
    tree: Tree = {}
    for directory, folders, files in os.walk(folder):
        for name in files + folders:
            path = Path(directory, name)
            status = path.lstat()
            key = os.path.relpath(path, folder)
            if stat.S_ISREG(status.st_mode):
                tree[key] = (path.read_bytes(), bool(status.st_mode & 0o100))
            elif stat.S_ISLNK(status.st_mode):
                tree[key] = (b"a link to " + os.fsencode(path.readlink()), False)
            elif not os.listdir(path):
                tree[key] = (b"an empty folder", False)
    return tree


def planned_tree(plan: Plan) -> Tree:
    """Return what a plan puts there."""
    return {
        upload.target: (
            upload.source if isinstance(upload.source, bytes) else upload.source.read_bytes(),
            upload.executable,
        )
        for upload in plan.uploads
    }


def two_skills(folder: Path) -> list[Path]:
    """Make two skills with six files: a program, a name with a space, a deep one, an empty one."""
    return [
        make_skill(folder / "pdf", {"bin/go": (b"#!/bin/sh\n", True), "a b": b"1"}),
        make_skill(folder / "xlsx", {"x/y/z": b"2" * 99_999, "empty": b""}),
    ]
