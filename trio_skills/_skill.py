"""What a `SKILL.md` says of its skill, and where that breaks the Agent Skills specification.

A `SKILL.md` begins with frontmatter: fields in YAML between two lines `---`. The file may be
hostile, so before any of it is composed its size is bounded and its YAML events are looked through:
no alias can multiply it, no depth can exhaust the stack, no tag names a type. Every scalar is read
as the text it is written as (`2024-01-01` and `yes` are text), as `skills-ref` does, the reference
validator whose findings `strict` has.

The specification: https://agentskills.io/specification
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs
import yaml

from trio_skills._errors import Problem
from trio_skills._printable import printable

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # this PyYAML was built without libyaml
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]  # the same interface

MAX_NAME = 64
"""Characters of a skill's name."""
MAX_DESCRIPTION = 1024
"""Characters of a description."""
MAX_COMPATIBILITY = 500
"""Characters of `compatibility`."""
MAX_FRONTMATTER = 64 * 1024
"""Characters of the frontmatter and its lines `---`: fifty of the longest descriptions."""
MAX_DEPTH = 32
"""Maps and lists within each other."""
MAX_NORMALIZED = 4096
"""Characters of a name that are looked at. Marks that are to be sorted cost the square of their
number; of four characters at most Unicode composes one, so that more are too long in any case."""
MAX_CHECKED = 2**20
"""Bytes of the file that are checked to be UTF-8."""

_FIELDS: Mapping[str, type[yaml.Node]] = {
    "name": yaml.ScalarNode,
    "description": yaml.ScalarNode,
    "license": yaml.ScalarNode,
    "compatibility": yaml.ScalarNode,
    "metadata": yaml.MappingNode,
    "allowed-tools": yaml.ScalarNode,
}
_SHAPES = {yaml.ScalarNode: "text", yaml.SequenceNode: "a list", yaml.MappingNode: "a map"}

_Finding = tuple[str, str]
"""The kind and the message of a problem."""

# A line of its own: `skills-ref` takes any `---`, even one in the midst of a description.
_FENCE = re.compile(r"^---[ \t]*$", re.MULTILINE)


@attrs.frozen
class Skill:
    """A skill as its folder and its `SKILL.md` describe it."""

    folder: Path
    """The source folder, as the caller named it."""
    name: str
    """The folder's name: what the skill is installed as, whatever its frontmatter says."""
    description: str | None
    """What it is for, from the frontmatter, not made safe to print; None where that has none."""
    problems: tuple[Problem, ...]
    """Where it breaks the specification; agents load most such skills all the same."""


def parse_skill(folder: Path, name: str, data: bytes) -> Skill:
    """Return the skill in `folder`, which is installed as `name`.

    `data` is the content of its `SKILL.md`; the first `MAX_CHECKED` bytes are enough. Whatever
    those bytes are, this raises nothing: what is wrong with them is in `Skill.problems`.
    """
    text, findings = _decode(data[:MAX_CHECKED])
    description = None
    try:
        fields = _read_fields(_frontmatter(text))
    except _UnreadableError as exc:
        findings.append((exc.kind, exc.message))
    else:
        findings += _check(name, fields)
        description = _text(fields, "description").strip() or None
    path = str(folder / "SKILL.md")
    problems = tuple(Problem(kind, path, message) for kind, message in findings)
    return Skill(folder, name, description, problems)


class _UnreadableError(Exception):
    """The frontmatter cannot be read, so nothing more can be said of it."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        self.message = message
        super().__init__(kind, message)


def _show(text: str) -> str:
    """Return text from the file in quotes, short and safe to print."""
    short = text if len(text) <= MAX_NAME else text[:MAX_NAME] + "…"
    return f"'{printable(short)}'"


def _decode(data: bytes) -> tuple[str, list[_Finding]]:
    """Return the text with every line ended by a newline, and with what is not UTF-8 replaced."""
    findings = []
    data = data.removeprefix(codecs.BOM_UTF8)
    utf8 = codecs.getincrementaldecoder("utf-8")  # forgives a last character that was cut in two
    try:
        text = utf8().decode(data)
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        findings.append(("not-utf8", f"it is not UTF-8 (line {line}); save it as UTF-8"))
        text = utf8("replace").decode(data)
    return text.replace("\r\n", "\n").replace("\r", "\n"), findings


def _frontmatter(text: str) -> str:
    """Return what stands between the first line, `---`, and the next line `---`."""
    looked_at = text[:MAX_FRONTMATTER]
    if text[MAX_FRONTMATTER : MAX_FRONTMATTER + 1] not in ("", "\n"):
        looked_at = looked_at.rpartition("\n")[0]  # of its last line only a part, as may be `---`
    before, *rest = _FENCE.split(looked_at, maxsplit=2)
    if before or not rest:
        message = "it has no frontmatter; begin it with name: and description: between lines ---"
        raise _UnreadableError("frontmatter-missing", message)
    if len(rest) == 2:
        return rest[0]
    if len(text) > MAX_FRONTMATTER:
        message = f"the frontmatter has over {MAX_FRONTMATTER:,} characters, or no closing line ---"
        raise _UnreadableError("frontmatter-too-large", message)
    message = "the frontmatter is not closed; put a line --- after its last field"
    raise _UnreadableError("frontmatter-unclosed", message)


def _read_fields(frontmatter: str) -> dict[str, yaml.Node]:
    """Return the frontmatter's fields: bounded, without aliases, each of them once."""
    try:
        _check_events(frontmatter)
        root = yaml.compose(frontmatter, Loader=_Loader)
    except yaml.MarkedYAMLError as exc:
        reason = ", ".join(filter(None, (exc.context, exc.problem)))
        place = f" (line {exc.problem_mark.line + 1})" if exc.problem_mark else ""
        hint = "quote a value that holds ': ' or begins with a sign"
        raise _invalid(f"{reason}{place}; {hint}") from exc
    # Without libyaml, an escape can name a character that there is not.
    except (yaml.YAMLError, ValueError, OverflowError) as exc:
        raise _invalid(str(exc)) from exc
    if not isinstance(root, yaml.MappingNode):
        message = "the frontmatter holds no fields; write each as 'name: value'"
        raise _UnreadableError("frontmatter-not-a-map", message)
    _check_keys(root)
    return {key.value: value for key, value in root.value}


def _invalid(reason: str) -> _UnreadableError:
    reason = printable(" ".join(reason.split())[:300])
    return _UnreadableError("frontmatter-invalid", f"the frontmatter is not valid YAML: {reason}")


def _line(at: yaml.Event | yaml.Node) -> str:
    # The frontmatter begins with the end of line 1, and YAML counts from 0.
    return f"line {at.start_mark.line + 1}" if at.start_mark else "a line"


def _check_events(frontmatter: str) -> None:
    """Refuse what may cost more than its size: the events come one by one, and nothing is kept."""
    depth = 0
    for event in yaml.parse(frontmatter, Loader=_Loader):
        match event:
            case yaml.AliasEvent() | yaml.NodeEvent(anchor=str()):
                message = (
                    f"{_line(event)} has a YAML anchor (&) or alias (*); quote it, or write it out"
                )
                raise _UnreadableError("frontmatter-alias", message)
            case yaml.ScalarEvent(tag=str()) | yaml.CollectionStartEvent(tag=str()):
                message = f"{_line(event)} has a YAML tag (!); leave it out, or quote the value"
                raise _UnreadableError("frontmatter-tag", message)
            case yaml.CollectionStartEvent():
                depth += 1
            case yaml.CollectionEndEvent():
                depth -= 1
            case yaml.ScalarEvent(value=value):
                value.encode()  # without libyaml, an escape can make half a surrogate pair
        if depth > MAX_DEPTH:
            message = f"the frontmatter is nested more than {MAX_DEPTH} deep; make it flatter"
            raise _UnreadableError("frontmatter-too-deep", message)


def _check_keys(root: yaml.MappingNode) -> None:
    """Refuse a key that is no text, or that comes twice in one map: YAML readers differ on it."""
    waiting: list[yaml.Node] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise _invalid(f"a key is {_SHAPES[type(key)]} in {_line(key)}; make it text")
                if key.value in seen:
                    message = f"{_line(key)} has {_show(key.value)} again; keep one of the two"
                    raise _UnreadableError("frontmatter-duplicate", message)
                seen.add(key.value)
                waiting.append(value)


def _text(fields: Mapping[str, yaml.Node], field: str) -> str:
    """Return a field's text; an empty one where the field is missing or no text."""
    node = fields.get(field)
    return node.value if isinstance(node, yaml.ScalarNode) else ""


def _check(name: str, fields: Mapping[str, yaml.Node]) -> Iterator[_Finding]:
    """Yield everything that breaks the specification."""
    if unknown := sorted(fields.keys() - _FIELDS.keys()):
        shown = ", ".join(_show(field) for field in unknown[:5])
        more = f" and {len(unknown) - 5:,} more" if len(unknown) > 5 else ""
        yield "unknown-field", f"unknown field {shown}{more}; move what is your own into 'metadata'"
    for field, shape in _FIELDS.items():
        node = fields.get(field)
        if node is not None and not isinstance(node, shape):
            message = f"'{field}' is {_SHAPES[type(node)]}; make it {_SHAPES[shape]}"
            yield f"{field}-type", message
    for field in ("name", "description"):
        if field not in fields:
            yield f"{field}-missing", f"'{field}' is missing; add it to the frontmatter"
        elif isinstance(fields[field], yaml.ScalarNode) and not _text(fields, field).strip():
            yield f"{field}-empty", f"'{field}' is empty; fill it in"
    if own := unicodedata.normalize("NFKC", _text(fields, "name").strip()[:MAX_NORMALIZED]):
        yield from _check_name(own, name)
    for field, most in (("description", MAX_DESCRIPTION), ("compatibility", MAX_COMPATIBILITY)):
        if (size := len(_text(fields, field))) > most:
            message = f"'{field}' has {size:,} characters; shorten it to {most:,}"
            yield f"{field}-too-long", message


def _check_name(name: str, folder: str) -> Iterator[_Finding]:
    shown = _show(name)
    if len(name) > MAX_NAME:
        yield "name-too-long", f"the name has over {MAX_NAME} characters; shorten it"
    if name != name.lower():
        yield "name-not-lowercase", f"the name {shown} must be in lower case"
    if name.startswith("-") or name.endswith("-") or "--" in name:
        yield "name-hyphens", f"the name {shown} may have single hyphens only, and within it"
    if not all(char.isalnum() or char == "-" for char in name):
        yield "name-characters", f"the name {shown} may have letters, digits and hyphens only"
    if name != unicodedata.normalize("NFKC", folder):
        yield "name-mismatch", f"the name is {shown} but the folder {_show(folder)}; rename one"
