"""Search for inputs that break a law of `fuzz_targets`: `python -m property_tests.fuzz --help`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from property_tests import fuzz_targets
from property_tests.fuzz_targets import TARGETS, VALID

KEPT = Path(".hypothesis", "fuzz-input")
"""Where the input is that broke a law last."""
SKILLS = (
    VALID,
    b"""---
name: pdf
description: >-
  Reads PDFs,
  and writes them.
license: 'MIT'
compatibility: "Needs \\u0071pdf"
metadata:
  author: me
  list: [a, {b: c}]
  ? key
  : |
    value
allowed-tools: Bash Read
---
# PDF
""",
    b"\xef\xbb\xbf---\r\n{name: pdf, description: 'd', metadata: {a: [1]}}\r\n---\r\nBody\r\n",
)
"""Valid ones, to be broken."""
PIECES = (
    *(b"---", b"\n---\n", b"\n...\n", b"--- a", b": ", b" #", b"- ", b"? ", b"\n", b"  ", b"\t"),
    *(b"\r", b"\r\n", b"\0", b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\xff", b"\xc3"),
    *(b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\\ud800", b"\\UFFFFFFFF", b"\\x00", b"\\e", b"\\\n"),
    *(b"&a ", b"*a", b"&a *a", b"<<: *a\n", b"<<: {name: x}\n", b"a: &a [*a, *a]\n", b"=: 1\n"),
    *(b"!!python/object:os.system ", b"!!binary ", b"!!str ", b"!!set ", b"!<x> ", b"! ", b"!"),
    *(b"%YAML 1.1\n---\n", b"%YAML 9.999999999\n", b"%TAG ! x\n", b"%", b"@", b"`", b"|", b">"),
    *(b"'", b'"', b",", b"[", b"]", b"{", b"}", b"|9"),
    *(b"[" * 40, b"]" * 40, b"{a: " * 40, b"- " * 40, b"? " * 40),
    *(b"1e999999", b"9" * 5000, b"0x" + b"f" * 99, b"1:2:3", b"190:20:30.15", b".inf", b"~"),
    *(b"9999-99-99", b"0000-00-00", b"2001-12-14t21:59:43.10-99:99", b"0o8", b"-0b2", b"null"),
    *(b"name: pdf\n", b"description: d\n", b"metadata: {}\n", b"name: -P--d_f-\n", b"x" * 1100),
    *(char.encode() for char in "\x1b\x7f\x85\u00df\u0130\u0344\u202e\u2028\u2029\ufdfa\ufeff"),
)


def _mutate(text: bytes, edits: list[tuple[str, int, int, bytes]]) -> bytes:
    for edit, place, length, piece in edits:
        start = place % (len(text) + 1)
        before, some, after = text[:start], text[start : start + length], text[start + length :]
        match edit:
            case "cut":
                text = before + after
            case "repeat":
                text = before + 3 * some + after
            case "swap":
                text = before + after[:length] + some + after[length:]
            case _:
                text = before + piece + some + after
    return text


_edits = st.lists(
    st.tuples(
        st.sampled_from(["insert", "cut", "repeat", "swap"]),
        st.integers(0, 400),
        st.integers(0, 30),
        st.sampled_from(PIECES) | st.binary(max_size=8),
    ),
    max_size=8,
)
# Escaped as JSON has it, which is YAML, too: but for pairs of surrogates.
_quoted = st.text(st.characters(max_codepoint=0xFFFF), max_size=40).map(json.dumps)
_names = st.sampled_from(["name", "description", "license", "metadata", "<<", "1"])
_values = st.one_of(
    *2 * [_quoted.map(str.encode)],
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.lists(st.sampled_from(PIECES), max_size=4).map(b"".join),
)
_between = st.sampled_from([*4 * [": "], ":", ":\n  ", ":\n- ", ": |\n  ", ": >\n  "])
_field = st.builds(
    lambda name, between, value: (name + between).encode() + value + b"\n",
    _names | _quoted,
    _between,
    _values,
)
_fields = st.lists(_field, max_size=3).map(lambda fields: b"---\n" + b"".join(fields) + b"---\n")

skills = st.one_of(
    st.binary(max_size=200),
    st.builds(_mutate, st.sampled_from(SKILLS), _edits),
    _fields,
    st.builds(_mutate, _fields, _edits),
    st.lists(st.sampled_from(PIECES), max_size=12).map(
        lambda p: b"---\n" + b"".join(p) + b"\n---\n"
    ),
)
"""What may be a `SKILL.md`: any bytes, valid ones that were changed, fields of anything."""
_choices = st.one_of(
    st.binary(max_size=60),
    st.binary(min_size=60, max_size=600),
    st.lists(st.integers(0, 40), min_size=20, max_size=200).map(bytes),  # so that names meet
    st.builds(
        lambda before, skill: before + bytes([min(len(skill), 255)]) + skill,
        st.tuples(st.integers(0, 255), st.integers(0, 9), st.just(1)).map(bytes),
        skills,
    ),
)
INPUTS: Mapping[str, st.SearchStrategy[bytes]] = {
    "parse_skill": skills,
    "plan": _choices,
    "tar": _choices,
}


def run(target: Callable[[bytes], None], data: bytes, kept: Path = KEPT) -> None:
    """Give `data` to a target; if it breaks a law, keep it, and say how to do this again."""
    try:
        target(data)
    except Exception as exc:
        # Hypothesis makes it smaller and smaller, and ends with the smallest.
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(data)
        exc.add_note(f"Again: python -m property_tests.fuzz {target.__name__} --replay {kept}")
        raise


def search(name: str, examples: int) -> None:
    """Search with Hypothesis; raises what the smallest input that it finds raises."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(INPUTS[name])
    def check(data: bytes) -> None:
        run(TARGETS[name], data)

    check()


def search_by_coverage(name: str, options: Sequence[str]) -> None:
    """Search with atheris, where it is installed (`pip install atheris`); ends the process."""
    atheris = importlib.import_module("atheris")
    for module in [module for module in sys.modules if module.startswith("trio_skills")]:
        del sys.modules[module]  # to be imported again, with what counts its branches
    with atheris.instrument_imports(include=["trio_skills"]):
        targets = importlib.reload(fuzz_targets).TARGETS
    atheris.Setup([sys.argv[0], *options], partial(run, targets[name]))
    atheris.Fuzz()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m property_tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--examples", type=int, default=10_000, metavar="N", help="how many inputs")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="give it this input only")
    parser.add_argument(
        "--atheris", nargs=argparse.REMAINDER, metavar="OPTION", help="libFuzzer's options, or none"
    )
    given = parser.parse_args(arguments)
    if given.replay is not None:
        run(TARGETS[given.target], given.replay.read_bytes(), given.replay)
    elif given.atheris is not None:
        search_by_coverage(given.target, given.atheris)
    else:
        search(given.target, given.examples)
    print("no law is broken")


if __name__ == "__main__":
    main()
