"""`parse_skill` against `skills-ref`, the reference validator, finding by finding.

Where the two differ, the file is written anew so that a fault of `skills-ref` does not show, and
then they must agree: so a difference is excused by nothing but the fault itself.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import skills_ref
import yaml
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from tests.corpus import skill_folders
from trio_skills._skill import parse_skill

# A finding of `skills-ref`, and the kinds of ours that mean it.
MESSAGES = {
    r"SKILL.md must start with YAML frontmatter": "frontmatter-missing",
    r"SKILL.md frontmatter not properly closed": "frontmatter-unclosed",
    r"Invalid YAML in frontmatter": "frontmatter-invalid",
    r"SKILL.md frontmatter must be a YAML mapping": "frontmatter-not-a-map",
    r"Unexpected fields in frontmatter": "unknown-field",
    r"Missing required field in frontmatter: name": "name-missing",
    r"Missing required field in frontmatter: description": "description-missing",
    r"Field 'name' must be a non-empty string": "name-empty",
    r"Field 'description' must be a non-empty string": "description-empty",
    r"Field 'compatibility' must be a string": "compatibility-type",
    r"Skill name .* exceeds 64 character limit": "name-too-long",
    r"Skill name .* must be lowercase": "name-not-lowercase",
    r"Skill name cannot start or end with a hyphen": "name-hyphens",
    r"Skill name cannot contain consecutive hyphens": "name-hyphens",
    r"Skill name .* contains invalid characters": "name-characters",
    r"Directory name .* must match skill name": "name-mismatch",
    r"Description exceeds 1024 character limit": "description-too-long",
    r"Compatibility exceeds 500 character limit": "compatibility-too-long",
}
SAME = {
    "frontmatter-too-large": "frontmatter-unclosed",
    "frontmatter-alias": "frontmatter-invalid",
    "frontmatter-tag": "frontmatter-invalid",
    "frontmatter-too-deep": "frontmatter-invalid",
    "frontmatter-duplicate": "frontmatter-invalid",
    "name-type": "name-empty",
    "description-type": "description-empty",
}
UNCHECKED = {"license-type", "metadata-type", "allowed-tools-type"}
"""What `skills-ref` does not look at."""

FENCE = re.compile(r"^---[ \t]*$", re.MULTILINE)


def ours(folder: Path, data: bytes) -> set[str]:
    kinds = (problem.kind for problem in parse_skill(folder, folder.name, data).problems)
    return {SAME.get(kind, kind) for kind in kinds}


def theirs(folder: Path) -> set[str]:
    try:
        messages = skills_ref.validate(folder)
    except UnicodeDecodeError:
        return {"not-utf8"}
    except Exception as exc:  # noqa: BLE001 - it raises what its YAML parser happens to raise
        return {f"raised {type(exc).__name__}"}
    return {kind_of(message) for message in messages}


def kind_of(message: str) -> str:
    (kind,) = {kind for text, kind in MESSAGES.items() if re.match(text, message, re.DOTALL)}
    return kind


def compare(folder: Path, data: bytes) -> list[str]:
    """Return the faults of `skills-ref` by which the two differ on `data`; none where they agree.

    Raises:
        AssertionError: They differ by something else.
    """
    found = ours(folder, data)
    if found == theirs_on(folder, data):
        return []
    rewritten, faults = rewrite(data)
    assert ours(folder, rewritten) | {"not-utf8"} == found | {"not-utf8"}, (data, rewritten)
    reference = theirs_on(folder, rewritten)
    if found - {"not-utf8"} == {"frontmatter-invalid"} and any(
        kind.startswith("raised ") for kind in reference
    ):
        return ["raises an error on invalid YAML"]
    if not reference & UNCHECKED and found & UNCHECKED:
        faults.append("does not check a type")
    assert reference == found - UNCHECKED - {"not-utf8"}, (data, rewritten)
    assert faults, data
    return faults


def theirs_on(folder: Path, data: bytes) -> set[str]:
    with tempfile.TemporaryDirectory() as parent:
        copy = Path(parent, folder.name)
        copy.mkdir()
        (copy / "SKILL.md").write_bytes(data)
        return theirs(copy)


def rewrite(data: bytes) -> tuple[bytes, list[str]]:
    """Write a file anew so that the faults of `skills-ref` do not show; name those that would."""
    faults = []
    text = data.decode("utf-8", "replace")
    if text.encode() != data:
        faults.append("raises an error on what is not UTF-8")
    if text.startswith("\ufeff"):
        faults.append("refuses a byte order mark")
        text = text[1:]
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.startswith("---") and not FENCE.match(text):
        faults.append("begins frontmatter at any ---")
        text = "\n" + text
    before, *rest = FENCE.split(text, maxsplit=2)
    if before or not rest:
        return text.encode(), faults
    if text.startswith("---\t"):
        faults.append("refuses a tab")
    if "---" in rest[0]:
        faults.append("ends frontmatter at any ---")
        # A name with these has the same faults, and neither means anything in YAML.
        rest[0] = rest[0].replace("---", "--x")
    if len(rest) == 2:
        rest[0] = rewrite_yaml(rest[0], faults)
    return "---".join(["", *rest]).encode(), faults


def rewrite_yaml(frontmatter: str, faults: list[str]) -> str:
    try:
        events = list(yaml.parse(frontmatter, Loader=yaml.CSafeLoader))
        root = yaml.compose(frontmatter, Loader=yaml.CSafeLoader)
    except yaml.YAMLError:
        return frontmatter
    if root is None or any(has_sign(event) for event in events):
        return frontmatter
    refused = sorted(set(write_in_block_style(root)))
    if "\t" in frontmatter:
        refused.append("refuses a tab")
    if not refused:
        return frontmatter
    faults += refused
    return "\n" + yaml.serialize(root, allow_unicode=True, width=10**9)


def has_sign(event: yaml.Event) -> bool:
    """Whether there is an anchor, an alias or a tag, which both refuse."""
    return bool(getattr(event, "anchor", None) or getattr(event, "tag", None))


def write_in_block_style(node: yaml.Node) -> Iterator[str]:
    """Make `node` look as strictyaml wants it, and yield what it would have refused."""
    if isinstance(node, yaml.ScalarNode):
        if "\t" in node.value:
            node.style = '"'  # in which it is \t
        if node.tag in ("tag:yaml.org,2002:merge", "tag:yaml.org,2002:value"):
            yield "reads << and = not as text"
            node.tag, node.style = "tag:yaml.org,2002:str", '"'
        return
    assert isinstance(node, yaml.CollectionNode)
    if node.flow_style:
        yield "refuses flow style"
        node.flow_style = False
    inside = node.value
    if isinstance(node, yaml.MappingNode):
        maps = [value for _, value in inside if isinstance(value, yaml.MappingNode)]
        if len({value.start_mark.column for value in maps}) > 1:
            yield "refuses maps that are indented differently"
        inside = [part for pair in inside for part in pair]
    for part in inside:
        yield from write_in_block_style(part)
    if not inside:  # an empty list or map has no block style
        node.value = [word()] if isinstance(node, yaml.SequenceNode) else [(word(), word())]


def word() -> yaml.ScalarNode:
    return yaml.ScalarNode("tag:yaml.org,2002:str", "word")


# Where `skills-ref` and PyYAML read the YAML itself differently, and there is no rule to go by.
READERS_DIFFER = re.compile(
    r"^[-? \t]*:(\s|$)"  # an empty key
    r"|^ *\t"  # a tab in an indentation
    r"|[|>][-+\d]*\#"  # a comment that touches the sign of a block
    r"|[\x85\u2028\u2029]"  # line ends in YAML 1.1, not in 1.2
    r"|(?!\A)\ufeff",  # a byte order mark that is not at the beginning
    re.MULTILINE,
)

WORDS = [
    *("pdf", "a", "A", "é", "_", "~", "1", "µ", "x" * 70, " ", "  ", "\t", "\\", "\0", "\x7f"),
    *(":", ": ", "#", " #", "'", '"', "[", "]", "{", "}", ",", ", ", "-", "- ", "--", "---", "="),
    *("?", "? ", "*", "&", "!", "|", ">", "%", "@", "`", "<<", "...", " --- ", "\\n", "\\ud800"),
]
texts = st.lists(st.sampled_from(WORDS), max_size=6).map("".join)
names = st.sampled_from(["pdf", "pdf", "pdf", "Pdf", "p--df", "-pdf", "xlsx", "x" * 65, "", " "])
lengths = st.sampled_from([500, 501, 1024, 1025]).map(lambda length: "é " * (length // 2) + "é")
scalars = st.one_of(
    names,
    texts,
    lengths,
    texts.map(json.dumps),
    texts.map(lambda text: "'" + text.replace("'", "''") + "'"),
    st.tuples(st.sampled_from(["|", ">-"]), st.lists(texts, max_size=3)).map(
        lambda block: "\n    ".join([block[0], *block[1]])
    ),
)
collections = st.one_of(
    st.lists(scalars, max_size=2).map(lambda items: "".join(f"\n  - {item}" for item in items)),
    st.dictionaries(texts, scalars, max_size=2).map(
        lambda items: "".join(f"\n  {key}: {value}" for key, value in items.items())
    ),
    st.sampled_from(["[]", "{}", "[a, b]", "{a: b}", "\n  a:\n    b: c\n  d:\n      e: f"]),
)
FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
keys = st.sampled_from([*FIELDS, *FIELDS, "version", "'name'", "<<", "Name", "1"])


often = st.sampled_from([True, True, True, False])


def mostly(usual: str, *other: str) -> st.SearchStrategy[str]:
    return st.sampled_from([usual] * 10 + [*other])


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Files that are valid but for a few things, at any place."""
    fields = draw(
        st.lists(
            st.tuples(keys, scalars | collections), max_size=3, unique_by=lambda field: field[0]
        )
    )
    given_keys = {key for key, _ in fields}
    usual = [("name", "pdf"), ("description", "Reads PDFs.")]
    fields += [field for field in usual if field[0] not in given_keys and draw(often)]
    begin = draw(mostly("---", "---\t", "--- ", "----", "", "\ufeff---", "\n---"))
    end = draw(mostly("---", "---\t", "----", "", "...", "---\n---"))
    comment = draw(mostly("", "# --- fields ---"))
    lines = [
        begin,
        comment,
        *(f"{key}: {value}" for key, value in draw(st.permutations(fields))),
        end,
    ]
    text = "\n".join([*lines, draw(st.sampled_from(["", "Body\n", "---\n"]))])
    eol = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"]))
    encoding = draw(mostly("utf-8", "latin-1"))
    return text.replace("\n", eol).encode(encoding, "replace")


class TestGeneratedSkills:
    @settings(max_examples=300, deadline=None)
    @given(files())
    def test_agree_but_for_faults_of_the_reference(self, data: bytes) -> None:
        text = data.decode("utf-8", "replace").replace("\r", "\n")
        assume(not READERS_DIFFER.search(text))
        for fault in compare(Path("pdf"), data) or ["agree"]:
            event(fault)

    @pytest.mark.parametrize(
        ("text", "our_kinds", "their_kinds"),
        [
            ("name: pdf\ndescription: d\n: x", {"frontmatter-invalid"}, {"unknown-field"}),
            ("name: pdf\ndescription: >#x\n  d", set(), {"frontmatter-invalid"}),
            ("name: pdf\ndescription: \u2028d", {"frontmatter-invalid"}, set()),
            (
                "name: pdf\n\ufeffdescription: d",
                {"frontmatter-invalid"},
                {"description-missing", "unknown-field"},
            ),
        ],
    )
    def test_differ_where_yaml_readers_do(
        self, text: str, our_kinds: set[str], their_kinds: set[str]
    ) -> None:
        """Pinned, so that a new version of either is noticed."""
        data = f"---\n{text}\n---\n".encode()
        assert READERS_DIFFER.search(text)
        assert ours(Path("pdf"), data) == our_kinds
        assert theirs_on(Path("pdf"), data) == their_kinds


@pytest.mark.corpus
class TestPublishedSkills:
    def test_agree_in_every_finding(self, corpus: dict[str, Path]) -> None:
        """Pinned collections, so the counts are exact."""
        counts: Counter[str] = Counter()
        for collection in corpus.values():
            for folder in skill_folders(collection):
                counts.update(compare(folder, (folder / "SKILL.md").read_bytes()) or ["agree"])
        assert counts == {"agree": 229}

    def test_have_the_findings_that_a_person_would_expect(self, corpus: dict[str, Path]) -> None:
        findings = {
            package: Counter(
                problem.kind
                for folder in skill_folders(collection)
                for problem in parse_skill(
                    folder, folder.name, (folder / "SKILL.md").read_bytes()
                ).problems
            )
            for package, collection in corpus.items()
        }
        assert findings == {
            "abvx-agent-skills": {},
            "biomedical-ai-skills": {"frontmatter-missing": 16},
            "bitranox-skills": {},
            "claude-data-skills": {"frontmatter-invalid": 6, "name-mismatch": 1},
            "writing-skills": {},
        }
