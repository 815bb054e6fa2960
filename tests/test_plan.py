"""Planning: what goes where, and everything that is refused before a byte leaves."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trees import Content, make_skill, write_tree
from trio_skills import Plan, PlanError, Upload, plan_skills, plan_uploads


def targets(plan: Plan) -> list[str]:
    return [upload.target for upload in plan.uploads]


def problems(error: pytest.ExceptionInfo[PlanError]) -> dict[str, str]:
    """Return the kind of each problem by the base name of its path."""
    return {os.path.basename(p.path.rstrip("/")): p.kind for p in error.value.problems}


class TestUploads:
    def test_every_file_goes_below_dest_and_its_skill_sorted_by_target(
        self, tmp_path: Path
    ) -> None:
        pdf = make_skill(tmp_path / "pdf", {"z": b"1", "a/b": b"22"})
        xlsx = make_skill(tmp_path / "xlsx")
        plan = plan_skills([xlsx, pdf], dest="/root/.agents/skills")
        assert targets(plan) == [
            "/root/.agents/skills/pdf/SKILL.md",
            "/root/.agents/skills/pdf/a/b",
            "/root/.agents/skills/pdf/z",
            "/root/.agents/skills/xlsx/SKILL.md",
        ]
        assert plan.folders == ("/root/.agents/skills/pdf", "/root/.agents/skills/xlsx")
        assert [skill.name for skill in plan.skills] == ["xlsx", "pdf"]
        assert plan.total_bytes == sum(upload.size for upload in plan.uploads)

    @pytest.mark.parametrize(
        ("dest", "first"),
        [
            (".", "pdf/SKILL.md"),
            ("", "pdf/SKILL.md"),
            ("/", "/pdf/SKILL.md"),
            ("a//b/./", "a/b/pdf/SKILL.md"),
            ("//a", "/a/pdf/SKILL.md"),
            ("my skills", "my skills/pdf/SKILL.md"),
        ],
    )
    def test_a_target_has_one_normal_form(self, tmp_path: Path, dest: str, first: str) -> None:
        assert targets(plan_skills([make_skill(tmp_path / "pdf")], dest)) == [first]

    def test_execute_bits_are_kept_in_any_folder(self, tmp_path: Path) -> None:
        """Case 1, vercel-labs/skills#1140."""
        pdf = make_skill(tmp_path / "pdf", {"bin/go": (b"", True), "lib/h": (b"", True), "x": b""})
        assert plan_skills([pdf]).executables == ("pdf/bin/go", "pdf/lib/h")

    def test_shebang_makes_a_file_executable_when_asked(self, tmp_path: Path) -> None:
        pdf = make_skill(tmp_path / "pdf", {"go": b"#!/bin/sh\n", "no": b"# !"})
        assert plan_skills([pdf]).executables == ()
        assert plan_skills([pdf], shebang=True).executables == ("pdf/go",)

    def test_a_source_that_ends_with_a_slash_or_is_a_dot_keeps_its_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pdf = make_skill(tmp_path / "pdf")
        monkeypatch.chdir(pdf)
        for source in (f"{pdf}/", ".", "../pdf"):
            assert targets(plan_skills([source])) == ["pdf/SKILL.md"]

    def test_the_same_folder_listed_twice_is_one_folder(self, tmp_path: Path) -> None:
        pdf = make_skill(tmp_path / "pdf")
        assert len(plan_skills([pdf, f"{pdf}/", os.path.relpath(pdf)]).skills) == 1

    def test_a_source_that_is_a_link_is_followed_and_keeps_the_links_name(
        self, tmp_path: Path
    ) -> None:
        make_skill(tmp_path / "pdf-1.2")
        (tmp_path / "pdf").symlink_to("pdf-1.2")
        assert targets(plan_skills([tmp_path / "pdf"])) == ["pdf/SKILL.md"]

    def test_an_empty_source_is_not_the_working_directory(self) -> None:
        with pytest.raises(PlanError, match="a source is empty"):
            plan_skills([""])

    def test_a_single_path_instead_of_a_list_is_a_type_error(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match="list of folders"):
            plan_skills(str(tmp_path))

    def test_contents_never_show_in_a_repr(self) -> None:
        assert "secret" not in repr(plan_uploads([Upload.of("a", b"secret")]))


class TestExcluded:
    def test_only_a_small_named_set_is_left_out_and_it_is_listed(self, tmp_path: Path) -> None:
        """Case 20, vercel-labs/skills#543."""
        kept: dict[str, Content] = {
            "scripts/validators/__init__.py": b"",
            ".prettierrc": b"",
            "_private.md": b"",
            "build/helper": (b"", True),
            "node_modules/x.js": b"",
            ".gitignore": b"*.py",
        }
        left_out = {".git/config": b"", "a/__pycache__/x.pyc": b"", "b.pyc": b"", ".DS_Store": b""}
        pdf = make_skill(tmp_path / "pdf", kept)
        write_tree(pdf, left_out)
        plan = plan_skills([pdf])
        assert targets(plan) == sorted(f"pdf/{path}" for path in ("SKILL.md", *kept))
        assert {(os.path.relpath(e.path, pdf), e.reason) for e in plan.excluded} == {
            (".git", ".git"),
            (".DS_Store", ".DS_Store"),
            ("a/__pycache__", "__pycache__"),
            ("b.pyc", "*.pyc"),
        }

    def test_patterns_are_gitignores(self, tmp_path: Path) -> None:
        files = {"a.log": b"", "keep.log": b"", "build/x": b"", "src/build/x": b"", ".git/x": b""}
        pdf = make_skill(tmp_path / "pdf", files)
        plan = plan_skills([pdf], exclude=["*.log", "!keep.log", "/build/", "!.git"])
        assert targets(plan) == [
            "pdf/.git/x",
            "pdf/SKILL.md",
            "pdf/keep.log",
            "pdf/src/build/x",
        ]


class TestRefused:
    def test_every_missing_source_is_named(self, tmp_path: Path) -> None:
        """Case 4, PrimeIntellect-ai/verifiers#2102: a mistyped path."""
        file = tmp_path / "file"
        file.touch()
        with pytest.raises(PlanError) as caught:
            plan_skills([tmp_path / "nope", file, tmp_path])
        assert problems(caught) == {
            "nope": "source-unreadable",
            "file": "source-unreadable",
            tmp_path.name: "no-skill-md",
        }
        assert "there is no such folder" in str(caught.value)

    def test_the_name_must_be_exactly_skill_md(self, tmp_path: Path) -> None:
        write_tree(tmp_path / "pdf", {"skill.md": b""})
        with pytest.raises(PlanError, match=r"it holds skill\.md; rename that to SKILL\.md"):
            plan_skills([tmp_path / "pdf"])

    def test_a_link_inside_becomes_a_file_and_every_other_is_refused(self, tmp_path: Path) -> None:
        """Case 17, vercel-labs/skills#2222."""
        pdf = make_skill(tmp_path / "pdf", {"folder/x": b"x"})
        (pdf / "ok").symlink_to("SKILL.md")
        (pdf / "also").symlink_to("folder")
        assert targets(plan_skills([pdf])) == [
            "pdf/SKILL.md",
            "pdf/also/x",
            "pdf/folder/x",
            "pdf/ok",
        ]
        (pdf / "ref.md").symlink_to("/etc/hostname")
        (pdf / "up").symlink_to("..")
        (pdf / "beside").symlink_to("../pdf-other")
        (tmp_path / "pdf-other").mkdir()
        (pdf / "nowhere").symlink_to("missing")
        (pdf / "loop").symlink_to("loop")
        (pdf / "folder" / "here").symlink_to(".")
        (pdf / "folder" / "above").symlink_to("..")
        with pytest.raises(PlanError) as caught:
            plan_skills([pdf])
        assert problems(caught) == {
            "ref.md": "link-leaves",
            "up": "link-leaves",
            "beside": "link-leaves",
            "nowhere": "link-dangling",
            "loop": "link-loop",
            "here": "link-loop",
            "above": "link-loop",
        }

    def test_links_that_lead_to_each_other_end(self, tmp_path: Path) -> None:
        pdf = make_skill(tmp_path / "pdf", {"a/x": b"", "b/y": b""})
        (pdf / "a" / "b").symlink_to("../b")
        (pdf / "b" / "a").symlink_to("../a")
        with pytest.raises(PlanError) as caught:
            plan_skills([pdf])
        assert {problem.kind for problem in caught.value.problems} == {"link-loop"}

    def test_links_that_multiply_a_tree_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("trio_skills._tree.MAX_LINKED", 1000)
        pdf = make_skill(tmp_path / "pdf", {"d0/x": b""})
        for level in range(1, 30):
            folder = pdf / f"d{level}"
            folder.mkdir()
            for copy in "ab":
                (folder / copy).symlink_to(f"../d{level - 1}")
        with pytest.raises(PlanError) as caught:
            plan_skills([pdf])
        assert problems(caught) == {"pdf": "too-many-files"}

    def test_links_that_multiply_folders_alone_end_too(self, tmp_path: Path) -> None:
        pdf = make_skill(tmp_path / "pdf")
        (pdf / "d0").mkdir()
        for level in range(1, 40):
            (pdf / f"d{level}").mkdir()
            for copy in "ab":
                (pdf / f"d{level}" / copy).symlink_to(f"../d{level - 1}")
        with pytest.raises(PlanError, match="by way of links to folders"):
            plan_skills([pdf])

    def test_a_folder_without_a_skill_md_is_not_read(self, tmp_path: Path) -> None:
        (tmp_path / "home").mkdir()
        with (tmp_path / "home" / "huge").open("wb") as file:
            file.truncate(2**43)
        with pytest.raises(PlanError, match=r"holds no SKILL\.md"):
            plan_skills([tmp_path / "home"])

    def test_patterns_that_leave_out_the_skill_md_are_named(self, tmp_path: Path) -> None:
        pdf = make_skill(tmp_path / "pdf")
        with pytest.raises(PlanError, match=r"pattern '\*\.md' leaves it out; add '!SKILL\.md'"):
            plan_skills([pdf], exclude=["*.md"])

    def test_wrong_arguments_are_named(self, tmp_path: Path) -> None:
        pdf = make_skill(tmp_path / "pdf")
        with pytest.raises(TypeError, match="exclude is a list"):
            plan_skills([pdf], exclude="*.log")
        with pytest.raises(ValueError, match="no gitignore pattern"):
            plan_skills([pdf], exclude=["[z-a]"])
        with pytest.raises(ValueError, match="on_collision is one of error, last, first"):
            plan_skills([pdf], on_collision="lats")  # type: ignore[arg-type]
        with pytest.raises(PlanError, match="a path has no NUL"):
            plan_skills(["a\0b"])

    def test_what_is_no_file_is_never_opened(self, tmp_path: Path) -> None:
        pdf = make_skill(tmp_path / "pdf")
        os.mkfifo(pdf / "fifo")
        (pdf / "link").symlink_to("fifo")
        short = Path("s")  # a socket's path is at most 108 bytes
        with socket.socket(socket.AF_UNIX) as listener:
            here = Path.cwd()
            os.chdir(pdf)
            try:
                listener.bind(str(short))
            finally:
                os.chdir(here)
            with pytest.raises(PlanError) as caught:
                plan_skills([pdf])
        assert problems(caught) == dict.fromkeys(("fifo", "link", "s"), "not-a-file")

    def test_a_name_that_is_not_utf8_is_refused_and_shown_escaped(self, tmp_path: Path) -> None:
        """Case 24, openSUSE/obs-service-tar_scm#312."""
        pdf = make_skill(tmp_path / "pdf")
        os.close(os.open(os.fsencode(pdf) + b"/bad\xff", os.O_CREAT))
        with pytest.raises(PlanError, match=r"bad\\xff: the name is not UTF-8"):
            plan_skills([pdf])

    def test_a_path_that_is_too_long_is_refused(self, tmp_path: Path) -> None:
        pdf = make_skill(tmp_path / "pdf")
        here = Path.cwd()
        os.chdir(pdf)
        try:
            for _ in range(20):
                os.mkdir("d" * 250)
                os.chdir("d" * 250)
        finally:
            os.chdir(here)
        with pytest.raises(PlanError) as caught:
            plan_skills([pdf])
        assert [problem.kind for problem in caught.value.problems] == ["path-too-long"]
        with pytest.raises(PlanError, match="over 255 bytes"):
            plan_uploads([Upload.of("a/" + "ü" * 128, b"")])

    @pytest.mark.parametrize("dest", ["..", "/a/../b", "a\0b", "\udcff"])
    def test_a_destination_that_leads_elsewhere_is_refused(self, tmp_path: Path, dest: str) -> None:
        with pytest.raises(PlanError) as caught:
            plan_skills([make_skill(tmp_path / "pdf")], dest)
        assert "dest-invalid" in {problem.kind for problem in caught.value.problems}

    @pytest.mark.parametrize("target", ["..", "a/../../b", "a\0", "\udcff", "", ".", "/"])
    def test_a_target_that_leads_elsewhere_is_refused(self, target: str) -> None:
        with pytest.raises(PlanError):
            plan_uploads([Upload.of(target, b"")])

    def test_all_problems_come_at_once(self, tmp_path: Path) -> None:
        pdf = make_skill(tmp_path / "pdf")
        (pdf / "ref").symlink_to("/etc/hostname")
        with pytest.raises(PlanError) as caught:
            plan_skills([pdf, tmp_path / "nope"], dest="../x")
        assert len(caught.value.problems) == 3
        assert str(caught.value).startswith("3 problems:\n")

    def test_strict_refuses_what_is_a_warning_otherwise(self, tmp_path: Path) -> None:
        other = make_skill(tmp_path / "pdf").rename(tmp_path / "other")
        assert [warning.kind for warning in plan_skills([other]).warnings] == ["name-mismatch"]
        with pytest.raises(PlanError, match="other/SKILL"):
            plan_skills([other], strict=True)


class TestCollisions:
    def test_two_skills_of_one_name_collide(self, tmp_path: Path) -> None:
        """Case 6, inclusionAI/Avernet#1562."""
        first = make_skill(tmp_path / "a" / "pdf", {"x": b"first", "only-a": b""})
        last = make_skill(tmp_path / "b" / "pdf", {"x": b"last", "only-b": b""})
        with pytest.raises(PlanError) as caught:
            plan_skills([first, last])
        assert problems(caught) == {"pdf": "collision"}
        assert str(first) in str(caught.value)
        for policy, winner in (("first", first), ("last", last)):
            plan = plan_skills([first, last], on_collision=policy)  # type: ignore[arg-type]
            assert targets(plan) == ["pdf/SKILL.md", "pdf/only-a", "pdf/only-b", "pdf/x"]
            assert plan.uploads[-1].source == winner / "x"
            assert len(plan.excluded) == 2
            assert all(e.reason.startswith("collision: ") for e in plan.excluded)

    def test_contents_are_in_no_message(self) -> None:
        uploads = [Upload.of("k", b"s3cret"), Upload.of("k", b"s3cret too")]
        with pytest.raises(PlanError) as caught:
            plan_uploads(uploads)
        plan = plan_uploads(uploads, on_collision="last")
        assert "s3cret" not in f"{caught.value} {plan.excluded}"

    def test_an_upload_with_wrong_numbers_is_put_right(self) -> None:
        plan = plan_uploads([Upload("a", b"xyz", size=1, digest="00")])
        assert plan.uploads == (Upload.of("a", b"xyz"),)

    def test_a_file_where_a_folder_must_be_is_a_collision(self) -> None:
        file, inside = Upload.of("a/b", b"file"), Upload.of("a/b/c", b"inside")
        for uploads in ([file, inside], [inside, file]):
            with pytest.raises(PlanError, match="a file where a folder must be"):
                plan_uploads(uploads)
            assert plan_uploads(uploads, on_collision="first").uploads == (uploads[0],)
            assert plan_uploads(uploads, on_collision="last").uploads == (uploads[1],)

    @pytest.mark.parametrize(
        ("one", "other"), [("README", "readme"), ("straße", "STRASSE"), ("é", "e\u0301")]
    )
    def test_names_that_some_file_systems_confuse_are_a_warning(self, one: str, other: str) -> None:
        plan = plan_uploads([Upload.of(one, b""), Upload.of(other, b"")])
        assert [warning.kind for warning in plan.warnings] == ["case-clash"]
        plan = plan_uploads([Upload.of(one, b""), Upload.of(f"{other}/x", b"")])
        assert [warning.kind for warning in plan.warnings] == ["case-clash"]


class TestTheSamePlan:
    def test_a_plan_depends_on_nothing_but_the_content(self, tmp_path: Path) -> None:
        files: dict[str, Content] = {"b": b"1", "a/c": (b"2", True)}
        one = make_skill(tmp_path / "1" / "pdf", files)
        other = make_skill(tmp_path / "2" / "pdf", dict(reversed(files.items())))
        os.utime(other / "b", (0, 0))
        assert plan_skills([one]).digest == plan_skills([other]).digest
        (other / "b").chmod(0o744)
        assert plan_skills([one]).digest != plan_skills([other]).digest

    def test_the_locale_does_not_matter(self, tmp_path: Path) -> None:
        pdf = make_skill(tmp_path / "pdf", {"ünï": b""})
        program = (
            "import sys, trio_skills; print(trio_skills.plan_skills([sys.argv[1]]).digest, "
            "sys.getfilesystemencoding())"
        )
        seen = {
            subprocess.run(
                [sys.executable, "-c", program, pdf],
                env={**os.environ, **env},
                check=True,
                capture_output=True,
                text=True,
            ).stdout.split()[0]
            for env in (
                {"LC_ALL": "C.UTF-8"},
                {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
            )
        }
        assert seen == {plan_skills([pdf]).digest}

    def test_a_copy_is_the_same_plan(self, tmp_path: Path) -> None:
        pdf = make_skill(tmp_path / "pdf", {"a": b"1"})
        shutil.copytree(pdf, tmp_path / "copy" / "pdf")
        assert plan_skills([pdf]).digest == plan_skills([tmp_path / "copy" / "pdf"]).digest
