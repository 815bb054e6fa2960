"""What `parse_skill` makes of a `SKILL.md`, benign or hostile."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from trio_skills._skill import (
    MAX_COMPATIBILITY,
    MAX_DEPTH,
    MAX_DESCRIPTION,
    MAX_FRONTMATTER,
    MAX_NAME,
    Skill,
    parse_skill,
)

FOLDER = Path("skills/pdf")


def parse(text: str | bytes, name: str = "pdf") -> Skill:
    return parse_skill(FOLDER, name, text if isinstance(text, bytes) else text.encode())


def with_fields(fields: str, name: str = "pdf") -> Skill:
    """Parse a valid skill with further fields."""
    return parse(f"---\nname: {name}\ndescription: Reads PDFs.\n{fields}\n---\nBody\n", name)


def kinds(skill: Skill) -> list[str]:
    return [problem.kind for problem in skill.problems]


def message(skill: Skill) -> str:
    (problem,) = skill.problems
    return problem.message


class TestAValidSkill:
    def test_has_no_problems(self) -> None:
        skill = parse(
            "---\nname: pdf\ndescription: Reads PDFs.\nlicense: MIT\ncompatibility: Needs qpdf.\n"
            "metadata:\n  author: me\n  nested:\n    deeper: [1, 2]\nallowed-tools: Bash\n---\n"
        )
        assert skill == Skill(FOLDER, "pdf", "Reads PDFs.", ())

    @pytest.mark.parametrize(
        "text",
        [
            "---\r\nname: pdf\r\ndescription: Reads PDFs.\r\n---\r\nBody",
            "---\rname: pdf\rdescription: Reads PDFs.\r---\rBody",
            "\ufeff---\nname: pdf\ndescription: Reads PDFs.\n---",
            "--- \nname: pdf\ndescription: Reads PDFs.\n---\t\nBody",
            "---\n# ----- who we are -----\nname: pdf\ndescription: Reads PDFs.\n---\n",
            "---\n{name: pdf, description: Reads PDFs.}\n---\n",
            "---\nname: 'pdf'\ndescription: >-\n  Reads\n  PDFs.\n---\n---\n",
        ],
        ids=["crlf", "cr", "bom", "trailing-space", "dashes-in-comment", "flow", "folded"],
    )
    def test_may_be_written_in_many_ways(self, text: str) -> None:
        assert parse(text) == Skill(FOLDER, "pdf", "Reads PDFs.", ())

    def test_closes_its_frontmatter_with_a_line_of_its_own(self) -> None:
        """`skills-ref` cuts this description at its `---`."""
        assert parse("---\nname: pdf\ndescription: a --- b\n---\n").description == "a --- b"

    def test_may_have_a_name_in_any_script(self) -> None:
        assert kinds(with_fields("", name="über-テスト-2")) == []

    def test_is_the_same_name_in_every_unicode_normal_form(self) -> None:
        assert kinds(parse("---\nname: cafe\u0301\ndescription: d\n---\n", "caf\u00e9")) == []

    @pytest.mark.parametrize("text", ["2024-01-01", "yes", "1.0", "null", "~", "0x10"])
    def test_has_text_in_its_fields_whatever_type_yaml_sees_in_it(self, text: str) -> None:
        skill = parse(f"---\nname: pdf\ndescription: {text}\nlicense: {text}\n---\n")
        assert skill.description == text
        assert skill.problems == ()


class TestFrontmatterThatCannotBeRead:
    @pytest.mark.parametrize("text", ["", "# PDF\n", "\n---\nname: pdf\n---\n", "---name: pdf\n"])
    def test_missing(self, text: str) -> None:
        assert kinds(parse(text)) == ["frontmatter-missing"]

    @pytest.mark.parametrize("text", ["---", "---\nname: pdf\n", "---\nname: pdf\n----\n"])
    def test_unclosed(self, text: str) -> None:
        assert kinds(parse(text)) == ["frontmatter-unclosed"]

    def test_too_large(self) -> None:
        fits = MAX_FRONTMATTER - len("---\n#\n---")
        assert kinds(parse(f"---\n#{'x' * fits}\n---\n")) == ["frontmatter-not-a-map"]
        assert kinds(parse(f"---\n#{'x' * fits}x\n---\n")) == ["frontmatter-too-large"]

    @pytest.mark.parametrize("text", ["---\n---\n", "---\n- a\n---\n", "---\nfoo\n---\n"])
    def test_not_a_map(self, text: str) -> None:
        assert kinds(parse(text)) == ["frontmatter-not-a-map"]

    @pytest.mark.parametrize(
        "fields",
        [
            "license: a: b",
            "license: *a*",
            "license: 'a",
            "license: [",
            "license: \0",
            "? [a]\n: b",
            "...\nx: y",
        ],
    )
    def test_not_yaml(self, fields: str) -> None:
        assert kinds(with_fields(fields)) == ["frontmatter-invalid"]

    def test_says_in_which_line_and_what_to_do(self) -> None:
        skill = parse("---\nname: pdf\ndescription: Use when: always\n---\n")
        assert "line 3" in message(skill)
        assert "quote a value that holds ': '" in message(skill)

    @pytest.mark.parametrize("fields", ["license: &a MIT", "license: *a"])
    def test_anchors_and_aliases_are_refused(self, fields: str) -> None:
        assert kinds(with_fields(fields)) == ["frontmatter-alias"]
        assert "line 4" in message(with_fields(fields))

    @pytest.mark.parametrize("fields", ["license: !!str MIT", "metadata: !!python/object:os.x {}"])
    def test_tags_are_refused(self, fields: str) -> None:
        assert kinds(with_fields(fields)) == ["frontmatter-tag"]

    @pytest.mark.parametrize("fields", ["name: xlsx", "metadata:\n  a: 1\n  'a': 2"])
    def test_a_key_that_comes_twice_is_refused(self, fields: str) -> None:
        assert kinds(with_fields(fields)) == ["frontmatter-duplicate"]

    def test_too_deep(self) -> None:
        inside = MAX_DEPTH - 1
        assert (
            kinds(with_fields(f"metadata: {{a: {'[' * (inside - 1)}{']' * (inside - 1)}}}")) == []
        )
        deeper = with_fields(f"metadata: {{a: {'[' * inside}{']' * inside}}}")
        assert kinds(deeper) == ["frontmatter-too-deep"]

    def test_gives_no_description(self) -> None:
        assert parse("---\nname: pdf\ndescription: d\nname: pdf\n---\n").description is None


class TestNotUtf8:
    def test_in_the_body_is_a_problem_but_the_description_is_read(self) -> None:
        skill = parse(b"---\nname: pdf\ndescription: d\n---\ncaf\xe9\n")
        assert skill.description == "d"
        assert kinds(skill) == ["not-utf8"]
        assert "line 5" in message(skill)

    def test_in_the_frontmatter_is_replaced(self) -> None:
        skill = parse(b"---\nname: pdf\ndescription: caf\xe9\n---\n")
        assert skill.description == "caf\ufffd"
        assert kinds(skill) == ["not-utf8"]

    def test_utf16_is_named_as_what_it_is_not(self) -> None:
        assert "not-utf8" in kinds(parse("---\nname: pdf\n---\n".encode("utf-16")))

    def test_a_last_character_that_was_cut_in_two_is_no_problem(self) -> None:
        """The planner keeps only the beginning of a long file."""
        assert kinds(parse("---\nname: pdf\ndescription: d\n---\ncafé".encode()[:-1])) == []


class TestFields:
    def test_unknown_ones_are_named_once_together(self) -> None:
        skill = with_fields("version: 1\n<<: {}\n" + "\n".join(f"x{i}: y" for i in range(9)))
        assert kinds(skill) == ["unknown-field"]
        assert "'<<', 'version', 'x0', 'x1', 'x2' and 6 more" in message(skill)

    @pytest.mark.parametrize("field", ["name", "description"])
    def test_name_and_description_are_required(self, field: str) -> None:
        other = {"name": "description: d", "description": "name: pdf"}[field]
        assert kinds(parse(f"---\n{other}\n---\n")) == [f"{field}-missing"]
        assert kinds(parse(f"---\n{other}\n{field}:\n---\n")) == [f"{field}-empty"]
        assert kinds(parse(f"---\n{other}\n{field}: ' '\n---\n")) == [f"{field}-empty"]
        assert kinds(parse(f"---\n{other}\n{field}: [x]\n---\n")) == [f"{field}-type"]

    @pytest.mark.parametrize("field", ["license", "compatibility", "allowed-tools"])
    @pytest.mark.parametrize("value", ["[a]", "{a: b}", "\n- a", "\n  a: b"])
    def test_text_fields_are_text(self, field: str, value: str) -> None:
        assert kinds(with_fields(f"{field}: {value}")) == [f"{field}-type"]

    @pytest.mark.parametrize("value", ["", "a", "[a]", "\n- a"])
    def test_metadata_is_a_map(self, value: str) -> None:
        assert kinds(with_fields(f"metadata: {value}")) == ["metadata-type"]

    def test_a_description_has_a_longest_length(self) -> None:
        text = "é" * MAX_DESCRIPTION
        assert kinds(parse(f"---\nname: pdf\ndescription: {text}\n---\n")) == []
        skill = parse(f"---\nname: pdf\ndescription: {text}é\n---\n")
        assert kinds(skill) == ["description-too-long"]
        assert skill.description == text + "é"
        assert "1,025" in message(skill)

    def test_compatibility_has_a_longest_length(self) -> None:
        text = "x" * MAX_COMPATIBILITY
        assert kinds(with_fields(f"compatibility: {text}")) == []
        assert kinds(with_fields(f"compatibility: {text}x")) == ["compatibility-too-long"]

    def test_every_problem_is_named_at_once(self) -> None:
        skill = parse("---\nname: A_-\nmetadata: x\nextra: y\n---\n")
        assert kinds(skill) == [
            "unknown-field",
            "metadata-type",
            "description-missing",
            "name-not-lowercase",
            "name-hyphens",
            "name-characters",
            "name-mismatch",
        ]


class TestName:
    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("x" * (MAX_NAME + 1), "name-too-long"),
            ("Pdf", "name-not-lowercase"),
            ("-pdf", "name-hyphens"),
            ("pdf-", "name-hyphens"),
            ("p--df", "name-hyphens"),
            ("p_df", "name-characters"),
            ("p df", "name-characters"),
            ("../pdf", "name-characters"),
            ("p\u202edf", "name-characters"),
        ],
    )
    def test_that_breaks_one_rule_has_one_problem(self, name: str, kind: str) -> None:
        assert kinds(with_fields("", name=name)) == [kind]

    def test_of_the_longest_length_is_fine(self) -> None:
        assert kinds(with_fields("", name="x" * MAX_NAME)) == []

    def test_that_is_not_the_folders_is_a_problem_and_the_folders_stays(self) -> None:
        skill = parse("---\nname: pdf\ndescription: d\n---\n", "pdf-tools")
        assert skill.name == "pdf-tools"
        assert kinds(skill) == ["name-mismatch"]
        assert "'pdf'" in message(skill)
        assert "'pdf-tools'" in message(skill)


class TestProblems:
    def test_name_the_file(self) -> None:
        (problem,) = parse("").problems
        assert problem.path == "skills/pdf/SKILL.md"

    @pytest.mark.parametrize(
        "text",
        [
            '---\nname: "\\e[31m\\n\\u202e"\ndescription: d\n---\n',
            '---\nname: pdf\ndescription: d\n"\\e[31m\\r\\n": x\n---\n',
            '---\nname: pdf\n"\\e[2J": x\n"\\e[2J": x\n---\n',
            "---\nname: pdf\ndescription: \x1b[31m\n---\n",
        ],
    )
    def test_are_safe_to_print(self, text: str) -> None:
        problems = parse(text).problems
        assert problems
        assert all(problem.message.isprintable() for problem in problems)

    @pytest.mark.parametrize("field", ["name: {}", "{}: x", "? {}\n: x\n? {}\n: x"])
    def test_are_short_whatever_the_file_holds(self, field: str) -> None:
        skill = parse(f"---\n{field.replace('{}', 'é' * 20_000)}\n---\n")
        assert skill.problems
        assert all(len(problem.message) < 500 for problem in skill.problems)


SMALL_BUT_COSTLY = {
    "flow lists": b"[" * 60_000,
    "block lists": b"- " * 30_000,
    "complex keys": b"? " * 30_000,
    "maps in maps": b"{a: " * 15_000,
    "alias bomb": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 9)) for c in b"bcdefghij"),
    "many items": b"a: [" + b"x," * 30_000 + b"]",
    "many keys": b"".join(b"%d:\n" % i for i in range(10_000)),
    "many documents": b"--- a\n" * 10_000,
    "quotes": b'"' * 60_000,
    "line of a quote": b"'" + b"\n" * 60_000,
    "long name": b"name: " + "\ufdfa".encode() * 20_000,  # eighteen characters each in NFKC
}
LARGE = {
    "one line": (b"", b"x"),
    "one line after ---": (b"---\n", b"x"),
    "spaces after ---": (b"---", b" "),
    "only dashes": (b"", b"-"),
    "only newlines": (b"", b"\n"),
    "only CR": (b"---", b"\r"),
    "only NUL": (b"", b"\0"),
    "never UTF-8": (b"", b"\xff"),
}


class TestHostileInput:
    """Processor time, and a hundred times what it takes: a busy machine fails none of these."""

    @pytest.mark.parametrize("name", SMALL_BUT_COSTLY)
    def test_of_little_size_takes_little_time(self, name: str) -> None:
        before = time.process_time()
        skill = parse(b"---\n" + SMALL_BUT_COSTLY[name] + b"\n---\n")
        assert time.process_time() - before < 20
        assert skill.problems

    @pytest.mark.parametrize("name", LARGE)
    def test_of_great_size_takes_little_time(self, name: str) -> None:
        beginning, byte = LARGE[name]
        data = beginning + byte * 10**8
        before = time.process_time()
        skill = parse(data)
        assert time.process_time() - before < 5
        assert skill.problems
        assert skill.description is None


WITHOUT_LIBYAML = """
import sys
sys.modules["yaml._yaml"] = None  # as where PyYAML was built without it
from tests.test_skill import SMALL_BUT_COSTLY, kinds, parse, with_fields
import yaml
assert not yaml.__with_libyaml__
assert kinds(with_fields("license: MIT")) == []
assert kinds(with_fields("license: a: b")) == ["frontmatter-invalid"]
assert kinds(with_fields("license: *a")) == ["frontmatter-alias"]
assert kinds(with_fields("license: [" + "[" * 60_000)) == ["frontmatter-too-deep"]
for escape in ("\\\\ud800", "\\\\UFFFFFFFF"):
    assert kinds(with_fields(f'license: "{escape}"')) == ["frontmatter-invalid"]
for text in SMALL_BUT_COSTLY.values():
    assert parse(b"---\\n" + text + b"\\n---\\n").problems
"""


def test_without_libyaml_the_findings_are_the_same() -> None:
    root = Path(__file__).parent.parent
    subprocess.run([sys.executable, "-c", WITHOUT_LIBYAML], cwd=root, check=True, timeout=120)
