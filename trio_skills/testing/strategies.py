"""Hypothesis strategies for what people install: hostile names, deep trees, empty files, links.

Needs Hypothesis: `pip install 'trio-skills[testing]'`.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import attrs
from hypothesis import strategies as st

from trio_skills._plan import Plan, plan_uploads
from trio_skills._upload import Upload

Content: TypeAlias = tuple[bytes, bool]
"""What a file holds, and whether it may be executed."""

_HOSTILE = (
    *("a b", "-rf", "--", "$(x)", "`x`", "a;b", "'", '"', "\\", "*", "~", "#", "%00", "{}", "!"),
    *("new\nline", "carriage\rreturn", "tab\t", "\x1b[31m", "\x7f", "..a", ".hidden", "...", " "),
    *("README", "readme", "é", "e\u0301", "ß", "日本", "\u202e", "\U0001f980", "n" * 255),
)


def file_names() -> st.SearchStrategy[str]:
    """Names of one file or folder: any UTF-8 but `/` and NUL, and many that broke something."""
    anything = st.text(
        st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=8
    )
    return st.one_of(st.sampled_from(_HOSTILE), anything).filter(_is_possible)


def _is_possible(name: str) -> bool:
    excluded = name in (".git", "__pycache__", ".DS_Store") or name.endswith(".pyc")
    return name not in (".", "..") and not excluded


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
    return st.tuples(st.one_of(st.just(b""), st.binary(max_size=64)), st.booleans())


@st.composite
def skill_trees(draw: st.DrawFn, max_files: int = 8) -> SkillTree:
    """Skill folders of up to about `max_files` files, nested up to four deep, with links inside."""
    nested: st.SearchStrategy[object] = st.recursive(
        contents(),
        lambda inner: st.dictionaries(file_names(), inner, max_size=4),
        max_leaves=max_files,
    )
    tree = draw(st.dictionaries(file_names(), nested, max_size=4))
    tree["SKILL.md"] = (b"---\nname: skill\ndescription: For tests.\n---\n", False)
    files = dict(_flatten(tree, ""))
    folders = {folder for path in files for folder in _folders_above(path)}
    links: dict[str, str] = {}
    for name in draw(st.lists(file_names(), max_size=2)):
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


def uploads() -> st.SearchStrategy[Upload]:
    """Single uploads, with the content in memory, to relative targets up to four deep."""
    targets = st.lists(file_names(), min_size=1, max_size=4).map("/".join)

    def upload(target: str, content: Content) -> Upload:
        data, executable = content
        return Upload.of(target, data, executable=executable)

    return st.builds(upload, targets, contents())


@st.composite
def plans(draw: st.DrawFn, max_skills: int = 3, max_files: int = 8) -> Plan:
    """Plans of up to `max_skills` skills, and of single files that belong to none.

    All content is in memory, so that time can be simulated.
    """
    trees = draw(st.lists(skill_trees(max_files), min_size=1, max_size=max_skills))
    folders = tuple(f"skill-{number}" for number in range(len(trees)))
    below = [
        Upload.of(f"{folder}/{path}", data, executable=executable)
        for folder, tree in zip(folders, trees, strict=True)
        for path, (data, executable) in tree.installed.items()
    ]
    # "first": a single file that collides with another, or with a skill, is left out.
    plan = plan_uploads([*below, *draw(st.lists(uploads(), max_size=2))], on_collision="first")
    return attrs.evolve(plan, folders=folders, excluded=())
