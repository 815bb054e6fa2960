"""What holds of `parse_skill` for any bytes at all."""

from __future__ import annotations

import codecs
from pathlib import Path

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from trio_skills._skill import Skill, parse_skill

FOLDER = Path("skills/pdf")
VALID = b"""---
name: pdf
description: >-
  Reads PDFs,
  and writes them.
license: 'MIT'
compatibility: "Needs \\u0071pdf"
metadata:
  author: me
  list: [a, {b: c}]
allowed-tools: Bash Read
---
# PDF
"""
PIECES = [
    *(b"---", b"\n---\n", b"...", b": ", b" #", b"- ", b"? ", b"\n", b"\r", b"\t", b"  ", b"\0"),
    *(b"'", b'"', b"[", b"]", b"{", b"}", b"&a", b"*a", b"!!str ", b"!", b"|", b">", b"%", b"@"),
    *(b"\\ud800", b"\\e", b"\x1b[31m", b"<<", b"=", b"\xff", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"),
    *(
        c.encode()
        for c in ("\ufeff", "\u202e", "\u2028", "\x85", "\x7f", "é", "\ufdfa", "\U0001f600")
    ),
]
edits = st.lists(
    st.tuples(
        st.integers(0, len(VALID)),
        st.integers(0, 20),
        st.sampled_from(PIECES) | st.binary(max_size=8),
    ),
    max_size=5,
)


def edited(data: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    for start, length, piece in edits:
        data = data[:start] + piece + data[start + length :]
    return data


anything = st.one_of(
    st.binary(max_size=200),
    st.binary(max_size=200).map(lambda data: b"---\n" + data + b"\n---\n"),
    st.text(max_size=200).map(lambda text: f"---\n{text}\n---\n".encode("utf-8", "surrogatepass")),
    edits.map(lambda edits: edited(VALID, edits)),
)
names = st.just("pdf") | st.text(st.characters(), max_size=80)


@settings(max_examples=500, deadline=None)
@given(data=anything, name=names)
@example(data=VALID, name="pdf")
@example(data=VALID, name="p\udcffdf")
def test_any_bytes_give_a_skill_whose_problems_can_be_shown(data: bytes, name: str) -> None:
    skill = parse_skill(FOLDER, name, data)
    assert (skill.folder, skill.name) == (FOLDER, name)
    assert skill.description is None or skill.description.strip()
    for problem in skill.problems:
        assert problem.path == "skills/pdf/SKILL.md"
        assert problem.kind.replace("-", "").isalnum()
        assert problem.message.isprintable()
        assert len(problem.message) < 2_000
    kinds = [problem.kind for problem in skill.problems]
    assert len(set(kinds)) == len(kinds)


@settings(deadline=None)
@given(data=anything, name=names)
def test_the_same_bytes_give_the_same_skill(data: bytes, name: str) -> None:
    assert parse_skill(FOLDER, name, data) == parse_skill(FOLDER, name, bytes(bytearray(data)))


@settings(deadline=None)
@given(data=anything)
def test_line_ends_and_a_byte_order_mark_make_no_difference(data: bytes) -> None:
    assume(not data.startswith(codecs.BOM_UTF8))
    unix = data.replace(b"\r", b"\n")
    windows = codecs.BOM_UTF8 + unix.replace(b"\n", b"\r\n")
    assert parse_skill(FOLDER, "pdf", windows) == parse_skill(FOLDER, "pdf", unix)


@settings(deadline=None)
@given(body=st.binary(max_size=200))
def test_no_body_changes_what_the_frontmatter_says(body: bytes) -> None:
    skill = parse_skill(FOLDER, "pdf", VALID + body)
    assert skill.description == "Reads PDFs, and writes them."
    assert {problem.kind for problem in skill.problems} <= {"not-utf8"}


def test_the_valid_skill_is_valid() -> None:
    assert parse_skill(FOLDER, "pdf", VALID) == Skill(
        FOLDER, "pdf", "Reads PDFs, and writes them.", ()
    )
