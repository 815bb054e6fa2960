"""Hypothesis strategies for what people install: hostile names, deep trees, empty files, links.

Nothing here needs a running Trio loop, or a file: draw in `@given`, and install what was drawn.

Needs Hypothesis: `pip install 'trio-skills[testing]'`.
"""

from __future__ import annotations

import functools
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, get_args

import attrs
from hypothesis import strategies as st

from trio_skills._archive import Archive
from trio_skills._compress import Compression
from trio_skills._plan import Plan, plan_uploads
from trio_skills._upload import Upload
from trio_skills.testing._archives import archive_of

Content: TypeAlias = tuple[bytes, bool]
"""What a file holds, and whether it may be executed."""

_HOSTILE = (
    *("a b", "-rf", "--", "$(x)", "`x`", "a;b", "'", '"', "\\", "*", "~", "#", "%00", "{}", "!"),
    *("new\nline", "carriage\rreturn", "tab\t", "\x1b[31m", "\x7f", "..a", ".hidden", "...", " "),
    *("README", "readme", "é", "e\u0301", "ß", "日本", "\u202e", "\U0001f980", "n" * 255),
)


def _is_possible(name: str) -> bool:
    excluded = name in (".git", "__pycache__", ".DS_Store") or name.endswith(".pyc")
    return name not in (".", "..") and not excluded


# Made once: a strategy that is made anew for each draw takes five times as long to draw from.
_NAMES = st.one_of(
    st.sampled_from(_HOSTILE),
    st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=8),
).filter(_is_possible)
_CONTENTS: st.SearchStrategy[Content] = st.tuples(
    st.one_of(st.just(b""), st.binary(max_size=64)), st.booleans()
)
_UP_TO_TWO_NAMES = st.lists(_NAMES, max_size=2)


def file_names() -> st.SearchStrategy[str]:
    """Names of one file or folder: any UTF-8 but `/` and NUL, and many that broke something."""
    return _NAMES


@functools.cache
def _nested(
    max_files: int, names: st.SearchStrategy[str], leaves: st.SearchStrategy[object]
) -> st.SearchStrategy[dict[str, object]]:
    """Return folders, nested: names to leaves, or to what is in a folder."""
    inner: st.SearchStrategy[object] = st.recursive(
        leaves, lambda inner: st.dictionaries(names, inner, max_size=4), max_leaves=max_files
    )
    return st.dictionaries(names, inner, max_size=4)


@attrs.frozen
class SkillTree:
    """A skill folder that is yet to be written."""

    files: Mapping[str, Content]
    """Relative path to content; `SKILL.md` is one of them."""
    links: Mapping[str, str]
    """Relative path of a link to that of the file or folder it leads to, or of an earlier link."""

    @property
    def installed(self) -> dict[str, Content]:
        """What an install puts there: in place of a link, what it leads to."""
        installed = dict(self.files)
        for link, goal in self.links.items():
            for path, content in list(installed.items()):
                if path == goal or path.startswith(goal + "/"):
                    installed[link + path.removeprefix(goal)] = content
        return installed

    def write(
        self,
        folder: Path,
        order: Sequence[str] | None = None,
        mtimes: Mapping[str, float] | None = None,
    ) -> Path:
        """Write the files, in the given order, then the links, and return the folder.

        `mtimes` are in seconds of the Unix epoch, by path; a file without one has the time of
        writing.
        """
        for path in order or self.files:
            data, executable = self.files[path]
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            file.chmod(0o755 if executable else 0o644)
            if mtimes and path in mtimes:
                os.utime(file, (mtimes[path], mtimes[path]))
        for path, goal in self.links.items():
            link = folder / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(folder / goal, link.parent))
        return folder


def contents() -> st.SearchStrategy[Content]:
    """Contents and execute bits, many of them empty."""
    return _CONTENTS


@st.composite
def skill_trees(draw: st.DrawFn, max_files: int = 8) -> SkillTree:
    """Skill folders of up to about `max_files` files, nested up to four deep, with links inside."""
    tree = draw(_nested(max_files, _NAMES, _CONTENTS))
    tree["SKILL.md"] = (b"---\nname: skill\ndescription: For tests.\n---\n", False)
    files = dict(_flatten(tree, ""))
    folders = {folder for path in files for folder in _folders_above(path)}
    links: dict[str, str] = {}
    for name in draw(_UP_TO_TWO_NAMES):
        # Not in what another link leads to, nor to a folder that it is in: those would be loops.
        homes = [f for f in folders if not any(f"{f}/".startswith(f"{g}/") for g in links.values())]
        home = draw(st.sampled_from(["", *sorted(homes)]))
        goals = [f for f in folders if not f"{home}/".startswith(f"{f}/")]
        link = f"{home}/{name}".removeprefix("/")
        if not {link} & {*files, *folders, *links}:
            links[link] = draw(st.sampled_from(sorted([*files, *goals, *links])))
    return SkillTree(files, links)


def _flatten(tree: Mapping[str, object], above: str) -> Iterator[tuple[str, Content]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{above}{name}/")
        elif isinstance(value, tuple):
            data, executable = value
            yield above + name, (data, executable)


def _folders_above(path: str) -> Iterator[str]:
    while path := posixpath.dirname(path):
        yield path


def _upload(path: list[str], content: Content) -> Upload:
    data, executable = content
    return Upload.of("/".join(path), data, executable=executable)


_UPLOADS = st.builds(_upload, st.lists(_NAMES, min_size=1, max_size=4), _CONTENTS)
_UP_TO_TWO_UPLOADS = st.lists(_UPLOADS, max_size=2)


def uploads() -> st.SearchStrategy[Upload]:
    """Single uploads, with the content in memory, to relative targets up to four deep."""
    return _UPLOADS


@functools.cache
def _skills(max_skills: int, max_files: int) -> st.SearchStrategy[list[SkillTree]]:
    return st.lists(skill_trees(max_files), min_size=1, max_size=max_skills)


@st.composite
def plans(draw: st.DrawFn, max_skills: int = 3, max_files: int = 8) -> Plan:
    """Plans of up to `max_skills` skills, and of single files that belong to none.

    All content is in memory, so that time can be simulated.
    """
    trees = draw(_skills(max_skills, max_files))
    folders = tuple(f"skill-{number}" for number in range(len(trees)))
    below = [
        Upload.of(f"{folder}/{path}", data, executable=executable)
        for folder, tree in zip(folders, trees, strict=True)
        for path, (data, executable) in tree.installed.items()
    ]
    # "first": a single file that collides with another, or with a skill, is left out.
    plan = plan_uploads([*below, *draw(_UP_TO_TWO_UPLOADS)], on_collision="first")
    return attrs.evolve(plan, folders=folders, excluded=())


# What an archive begins with by which some take it for another format, and names that are too long
# for a tar's header.
_MEMBER_NAMES = st.one_of(_NAMES, st.sampled_from(("BZh9", "c:", "\\x", "b" * 100, "é" * 60)))
_MEMBER_LINKS = st.lists(_MEMBER_NAMES, max_size=3)
_MEMBERS: st.SearchStrategy[object] = st.one_of(_CONTENTS, st.builds(dict))


@attrs.frozen
class SourceTree:
    """A source tree that is on no disk."""

    files: Mapping[str, Content]
    """Relative path to content."""
    folders: frozenset[str]
    """Relative paths of every folder, also of those that hold something."""
    links: Mapping[str, str]
    """Relative path of a link to what it says: a relative path that stays in the tree."""

    def archive(self, name: str = "source", compression: Compression = "gzip") -> Archive:
        """Return its archive, as `ArchiveCache.source_archive` would make it of such a folder."""
        return archive_of(name, self.files, self.folders, self.links, compression)


@st.composite
def source_trees(draw: st.DrawFn, max_files: int = 8) -> SourceTree:
    """Source trees of up to about `max_files` files, with empty folders.

    Links stay inside; some lead nowhere, as they do in checkouts.
    """
    files: dict[str, Content] = {}
    folders: set[str] = set()
    tree = draw(_nested(max_files, _MEMBER_NAMES, _MEMBERS))
    waiting: list[tuple[str, object]] = [("", tree)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            folders.add(path)
            waiting += ((posixpath.join(path, name), inner) for name, inner in value.items())
        elif isinstance(value, tuple):
            files[path] = value
    folders.remove("")
    links: dict[str, str] = {}
    goals = st.sampled_from([*sorted(files), *sorted(folders), "nowhere", "no/where"])
    for name in draw(_MEMBER_LINKS):
        home = draw(st.sampled_from(["", *sorted(folders)]))
        link = f"{home}/{name}".removeprefix("/")
        if not {link} & {*files, *folders, *links}:
            links[link] = posixpath.relpath(draw(goals), home or ".")
    return SourceTree(files, frozenset(folders), links)


def archives(max_files: int = 8) -> st.SearchStrategy[Archive]:
    """Source archives of `source_trees`, in every compression: for who unpacks archives.

    What is in one is told by `tarfile`; to know it beforehand, draw a tree and make its `archive`.
    """
    compressions: tuple[Compression, ...] = get_args(Compression)
    names = file_names().filter(lambda name: not name.startswith(".trio-skills"))
    trees = source_trees(max_files)
    return st.builds(SourceTree.archive, trees, names, st.sampled_from(compressions))
