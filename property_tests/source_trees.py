"""Source trees: files, empty folders, links that stay inside, and names that broke something."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
from hypothesis import strategies as st

from trio_skills.testing.strategies import Content, file_names
from trio_skills.testing.strategies import contents as small_contents

Members = dict[str, tuple[object, ...]]
"""Relative path to what is there: a file with its content and execute bit, a folder, a link."""

# Where a compressed tar begins with these, some do not look any further; over 100 bytes a name
# does not fit into its header.
_NAMES = (
    "BZ",
    "BZh91AY",
    "c:",
    "C:x",
    "\\x",
    "b" * 99,
    "c" * 100,
    "d" * 101,
    "é" * 60,
    "日本" * 40,
)


# About a tar's block, and the pieces in which an archive is handed on.
_SIZES = (511, 512, 513, 1024, 10_240, 2**16 - 1, 2**16, 2**20 + 1)

_DEEP = "/".join(["deep"] * 40)


def names() -> st.SearchStrategy[str]:
    return st.one_of(file_names(), st.sampled_from(_NAMES))


def contents() -> st.SearchStrategy[Content]:
    """Contents and execute bits: empty, small, and of the sizes at which something ends."""
    sized = st.sampled_from(_SIZES).map(lambda size: b"x" * size)
    return st.one_of(small_contents(), st.tuples(sized, st.booleans()))


@attrs.frozen
class SourceTree:
    """A tree that is yet to be written."""

    files: Mapping[str, Content]
    folders: Sequence[str]
    links: Mapping[str, str]

    @property
    def members(self) -> Members:
        """What is in it, the folders that its paths need, too."""
        paths = [*self.files, *self.folders, *self.links]
        above = {folder for path in paths for folder in _folders_above(path)}
        return (
            dict.fromkeys({*above, *self.folders}, ("folder",))
            | {path: ("file", *content) for path, content in self.files.items()}
            | {path: ("link", posixpath.normpath(to)) for path, to in self.links.items()}
        )

    def write(self, root: Path, *, backwards: bool = False, mtime: float | None = None) -> Path:
        """Make it, in one order or the other, and return the root."""
        root.mkdir(parents=True)
        paths = sorted([*self.files, *self.folders, *self.links], reverse=backwards)
        for path in paths:
            place = root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if path in self.links:
                place.symlink_to(self.links[path])
            elif path in self.files:
                data, executable = self.files[path]
                place.write_bytes(data)
                # Only the owner's bit counts.
                mode = (0o755, 0o655) if backwards else (0o700, 0o600)
                place.chmod(mode[not executable])
                if mtime is not None:
                    os.utime(place, (mtime, mtime))
            else:
                place.mkdir(exist_ok=True)
        return root


def read_members(root: Path) -> Members:
    """Return what is in a folder."""
    members: Members = {}
    for directory, folders, files in os.walk(root):
        for name in folders + files:
            path = Path(directory, name)
            status = path.lstat()
            found: tuple[object, ...] = ("folder",)
            if stat.S_ISLNK(status.st_mode):
                found = ("link", os.readlink(path))
            elif stat.S_ISREG(status.st_mode):
                found = ("file", path.read_bytes(), bool(status.st_mode & 0o100))
            members[os.path.relpath(path, root)] = found
    return members


@st.composite
def source_trees(draw: st.DrawFn, max_members: int = 10) -> SourceTree:
    """Trees of up to about `max_members` members, nested, with empty folders and links."""
    nested: st.SearchStrategy[object] = st.recursive(
        st.one_of(contents(), st.just({})),
        lambda inner: st.dictionaries(names(), inner, max_size=4),
        max_leaves=max_members,
    )
    files: dict[str, Content] = {}
    folders: list[str] = []
    waiting: list[tuple[str, object]] = [("", draw(st.dictionaries(names(), nested, max_size=5)))]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            if path:
                folders.append(path)
            waiting += ((posixpath.join(path, name), inner) for name, inner in value.items())
        elif isinstance(value, tuple):
            files[path] = value
    if draw(st.integers(0, 3)) == 3 and "deep" not in {*files, *folders}:
        files[f"{_DEEP}/file"] = draw(contents())
    links: dict[str, str] = {}
    goals = st.sampled_from([*files, *folders, "nowhere", "no/where"])
    for name in draw(st.lists(names(), max_size=3)):
        home = draw(st.sampled_from(["", *folders]))
        path = posixpath.join(home, name)
        if path not in {*files, *folders, *links, "deep"}:
            links[path] = os.path.relpath(draw(goals), home or ".")
    return SourceTree(files, folders, links)


def _folders_above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]
