"""What each option of the command line changes, and what a person then reads."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import skills_ref

from tests.programs import run
from tests.trees import make_skill, read_tree

EXAMPLES = Path(__file__).parent.parent / "examples" / "skills"


@pytest.fixture
def skill(tmp_path: Path) -> Path:
    return make_skill(tmp_path / "pdf", {"bin/go": b"#!/bin/sh\n", "notes.log": b"x"})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


class TestPlanning:
    def test_strict_refuses_what_is_otherwise_a_warning(self, skill: Path, root: Path) -> None:
        (skill / "SKILL.md").write_text("---\nname: other\ndescription: x\n---\n")
        strict = run("install", skill, "--to", root, "--strict")
        assert strict.returncode == 2
        assert "the name is 'other'" in strict.stderr
        assert not root.exists()
        lenient = run("install", skill, "--to", root)
        assert lenient.returncode == 0
        assert "warning: name-mismatch" in lenient.stdout

    def test_shebang_makes_scripts_executable(self, skill: Path, root: Path) -> None:
        run("install", skill, "--to", root)
        assert not read_tree(root)["pdf/bin/go"][1]
        run("install", skill, "--to", root, "--shebang")
        assert read_tree(root)["pdf/bin/go"][1]
        assert not read_tree(root)["pdf/notes.log"][1]

    def test_exclude_comes_several_times_and_before_the_sources(
        self, skill: Path, root: Path
    ) -> None:
        ended = run("install", "--exclude", "*.log", "--exclude", "bin/", skill, "--to", root)
        assert ended.returncode == 0, ended.stderr
        assert set(read_tree(root)) == {"pdf/SKILL.md"}
        assert "(*.log)" in ended.stdout
        assert "(bin/)" in ended.stdout

    def test_collisions_are_refused_or_the_first_or_last_stays(
        self, tmp_path: Path, root: Path
    ) -> None:
        for place in ("a", "b"):
            make_skill(tmp_path / place / "pdf", {"which": place.encode()})
        sources = (tmp_path / "a", tmp_path / "b")
        refused = run("install", *sources, "--to", root)
        assert refused.returncode == 2
        assert "is installed as pdf too" in refused.stderr
        for policy, stays in (("first", b"a"), ("last", b"b")):
            ended = run("install", *sources, "--to", root, "--on-collision", policy)
            assert ended.returncode == 0, ended.stderr
            assert read_tree(root)["pdf/which"][0] == stays

    def test_any_name_in_a_destination_with_a_space(self, tmp_path: Path, root: Path) -> None:
        """Case 11, rllm-org/rllm#927."""
        names = {"a b": b"1", "$(x)": b"2", "-rf": b"3", "new\nline": b"4", "quote'\"": b"5"}
        make_skill(tmp_path / "pdf", names)
        ended = run("install", tmp_path / "pdf", "--to", root, "--dest", "my skills")
        assert ended.returncode == 0, ended.stderr
        there = read_tree(root / "my skills" / "pdf")
        assert {name: data for name, (data, _) in there.items() if name != "SKILL.md"} == names

    def test_no_kind_of_problem_crowds_out_another(self, tmp_path: Path) -> None:
        for number in range(50):
            skill = make_skill(tmp_path / "many" / f"s{number}")
            (skill / "link").symlink_to("/etc/hostname")
            (skill / "SKILL.md").write_text("no frontmatter")
        ended = run("plan", tmp_path / "many", "--strict")
        assert ended.returncode == 2
        assert "… and 40 more: link-leaves" in ended.stderr
        assert "… and 40 more: frontmatter-missing" in ended.stderr
        assert len(ended.stderr.splitlines()) == 22


class TestTransfer:
    def test_verify_looks_once_more(self, skill: Path, root: Path) -> None:
        trips = [
            json.loads(run("install", skill, "--to", root, "--json", *option).stdout)["round_trips"]
            for option in ([], ["--verify"])
        ]
        assert trips[1] == trips[0] + 1

    def test_a_size_of_no_bytes_in_flight_still_installs(self, skill: Path, root: Path) -> None:
        ended = run("install", skill, "--to", root, "--max-bytes", "1", "--max-in-flight", "1")
        assert ended.returncode == 0, ended.stderr
        assert len(read_tree(root)) == 3

    def test_what_fails_for_a_moment_is_tried_again(
        self, skill: Path, root: Path, tmp_path: Path
    ) -> None:
        """The sandbox answers the greeting; its second call, the write, breaks off."""
        root.mkdir()
        flaky = tmp_path / "flaky"
        flaky.write_text('#!/bin/sh\nset -C\n{ >one || { >two && exit 7; }; } 2>&- ; exec "$@"\n')
        flaky.chmod(0o755)
        command = ("install", skill, "--to", f"exec:{flaky}", "--dest", root)
        ended = run(*command, "--retries", "0", cwd=tmp_path)
        assert "4 round trips)" in ended.stdout  # the batch, and then each file
        for name in ("one", "two"):
            (tmp_path / name).unlink()
        ended = run(*command, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        assert "2 round trips, 1 of them again)" in ended.stdout
        assert ended.stderr == ""


class TestWhatIsRead:
    def test_a_plan_has_every_file_and_then_every_skill(self, tmp_path: Path) -> None:
        make_skill(tmp_path / "skills" / "pdf", {"go": (b"12345", True)})
        make_skill(tmp_path / "skills" / "xlsx")
        printed = run("plan", tmp_path / "skills").stdout
        files, skills, total = printed.split("\n\n")
        assert re.search(r"^pdf/go +5 B +executable", files, re.MULTILINE)
        assert re.search(r"^pdf +2 +\d+ B +1 *$", skills, re.MULTILINE)
        assert re.search(r"^xlsx +1 +\d+ B *$", skills, re.MULTILINE)
        assert re.fullmatch(r"Would install 3 files of 2 skills, \d+ B\n", total)

    @pytest.mark.parametrize("env", [{"FORCE_COLOR": ""}, {"NO_COLOR": "1"}])
    def test_a_file_gets_no_colours(self, skill: Path, env: dict[str, str]) -> None:
        (skill / "SKILL.md").touch()
        for command in (["plan", skill], ["validate", skill], ["plan", "nope"]):
            ended = run(*command, env={**env, "TERM": "xterm-256color"})
            assert "\x1b" not in ended.stdout + ended.stderr

    @pytest.mark.parametrize("columns", ["80", "100"])
    @pytest.mark.parametrize("command", [[], ["plan"], ["install"], ["validate"]])
    def test_help_fits(self, command: list[str], columns: str) -> None:
        printed = run(*command, "--help", env={"COLUMNS": columns}).stdout
        assert max(map(len, printed.splitlines())) <= int(columns)


class TestExamples:
    def test_are_valid_for_us_and_for_the_reference(self) -> None:
        assert run("validate", EXAMPLES, "--strict").stdout == "3 skills, all valid\n"
        for folder in EXAMPLES.iterdir():
            assert skills_ref.validate(folder) == []

    def test_the_installed_script_runs_and_counts_what_is_read(
        self, tmp_path: Path, root: Path
    ) -> None:
        assert run("install", EXAMPLES, "--to", root).returncode == 0
        text = tmp_path / "text.md"
        text.write_text("# One two\n\n- Three four five.\n\n| not | this |\n\n```\nnor this\n```\n")
        program = root / "word-count" / "bin" / "word-count"
        printed = subprocess.check_output([program, text], text=True)
        assert printed.startswith(f"{text}: 5 words, 2 sentences, 1 min to read\n")
        assert os.access(program, os.X_OK)
