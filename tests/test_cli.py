"""The command line, run as a user would."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.programs import MINDS_PERMISSIONS, PROGRAM, WITHOUT_POWERS, run
from tests.trees import make_skill, read_tree, write_tree
from trio_skills.cli._sizes import format_size, parse_size
from trio_skills.runtimes._staging import TEMPORARY

minds_permissions = pytest.mark.skipif(
    not MINDS_PERMISSIONS, reason="root ignores permissions, and there is no setpriv"
)


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    """Two skills, one of them below a further folder."""
    make_skill(tmp_path / "skills" / "pdf", {"bin/go": (b"#!/bin/sh\necho went\n", True)})
    make_skill(tmp_path / "skills" / "more" / "xlsx", {"a b": b"1"})
    return tmp_path / "skills"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


INSTALLED = {"pdf/SKILL.md", "pdf/bin/go", "xlsx/SKILL.md", "xlsx/a b"}


class TestInstall:
    def test_puts_every_skill_there_and_reports_it(self, skills: Path, root: Path) -> None:
        ended = run("install", skills, "--to", root)
        assert ended.returncode == 0
        assert ended.stderr == ""
        assert set(read_tree(root)) == INSTALLED
        assert re.search(r"pdf +2 +\d+ B +1 +written", ended.stdout)
        assert re.search(r"xlsx +2 +\d+ B +written", ended.stdout)
        assert f"{root}: 4 written" in ended.stdout
        assert subprocess.check_output([root / "pdf/bin/go"]) == b"went\n"

    @pytest.mark.parametrize("strategy", ["auto", "sequential", "batched", "concurrent", "packed"])
    def test_by_every_strategy(self, skills: Path, root: Path, strategy: str) -> None:
        ended = run("install", skills, "--to", f"local:{root}", "--strategy", strategy, "--json")
        report = json.loads(ended.stdout)
        assert ended.returncode == 0
        assert report["ok"]
        assert report["strategy"] == (strategy if strategy != "auto" else "packed")
        assert {outcome["target"] for outcome in report["outcomes"]} == INSTALLED

    def test_takes_every_option(self, skills: Path, root: Path) -> None:
        options = (
            "--dest 'my skills' --strategy batched --batch-size 2 --max-in-flight 3 "
            "--max-bytes 64MiB --on-collision last --existing merge --exclude '*.md' "
            "--exclude '!SKILL.md' --strict --shebang --verify --skip-unchanged"
        )
        ended = run("install", skills, "--to", root, *shlex.split(options))
        assert ended.returncode == 0, ended.stderr
        assert set(read_tree(root / "my skills")) == INSTALLED

    def test_again_skips_what_is_unchanged(self, skills: Path, root: Path) -> None:
        run("install", skills, "--to", root)
        (root / "pdf/bin/go").chmod(0o644)
        ended = run("install", skills, "--to", root, "--skip-unchanged", "--verify")
        assert "1 written, 3 unchanged" in ended.stdout
        assert (root / "pdf/bin/go").stat().st_mode & 0o100

    def test_replace_and_error_treat_a_folder_that_is_there(self, skills: Path, root: Path) -> None:
        write_tree(root, {"pdf/old": b""})
        write_tree(root, {"xlsx/old": b""})
        refused = run("install", skills, "--to", root, "--existing", "error")
        assert refused.returncode == 2
        assert "pdf: it is there already" in refused.stderr
        assert "xlsx: it is there already" in refused.stderr
        assert set(read_tree(root)) == {"pdf/old", "xlsx/old"}
        assert run("install", skills, "--to", root, "--existing", "replace").returncode == 0
        assert set(read_tree(root)) == INSTALLED

    def test_dry_run_writes_nothing(self, skills: Path, root: Path) -> None:
        ended = run("install", skills, "--to", root, "--dry-run")
        assert ended.returncode == 0
        assert "Would install 4 files of 2 skills" in ended.stdout
        assert not root.exists()
        planned = json.loads(run("install", skills, "--to", root, "--dry-run", "--json").stdout)
        assert {upload["target"] for upload in planned["uploads"]} == INSTALLED

    def test_quiet_prints_nothing_but_errors(self, skills: Path, root: Path) -> None:
        ended = run("install", skills, "--to", root, "--quiet")
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
        (root / "pdf/bin/go").unlink()
        (root / "pdf/bin/go").mkdir()
        ended = run("install", skills, "--to", root, "--quiet")
        assert (ended.returncode, ended.stdout) == (1, "")
        assert ended.stderr == "failed (1): Is a directory\n  pdf/bin/go\n"

    def test_what_was_left_out_and_what_is_wrong_is_grouped(self, skills: Path, root: Path) -> None:
        write_tree(skills, {f"pdf/{n}.pyc": b"" for n in range(5)})
        for number in range(3):
            (skills / f"n{number}").mkdir()
            (skills / f"n{number}" / "SKILL.md").touch()
        ended = run("install", skills, "--to", root)
        assert re.search(r"left out \S+0\.pyc, \S+1\.pyc, \S+2\.pyc and 2 more", ended.stdout)
        assert "warning: frontmatter-missing (3 times), for example" in ended.stdout
        assert ended.stdout.count("warning") == 1

    def test_many_skills_share_a_row_and_failures_are_named(
        self, tmp_path: Path, root: Path
    ) -> None:
        for number in range(40):
            make_skill(tmp_path / "skills" / f"s{number:02}")
        write_tree(root, {"s07/SKILL.md/folder": b""})
        ended = run("install", tmp_path / "skills", "--to", root)
        assert ended.returncode == 1
        assert "39 other skills" in ended.stdout
        assert re.search(r"s07 .*1 failed", ended.stdout)
        assert "failed (1): Is a directory\n  s07/SKILL.md\n" in ended.stdout

    def test_a_failure_is_in_the_json(self, skills: Path, root: Path) -> None:
        write_tree(root, {"pdf/SKILL.md/folder": b""})
        ended = run("install", skills, "--to", root, "--json")
        report = json.loads(ended.stdout)
        assert ended.returncode == 1
        failed = [o for o in report["outcomes"] if o["state"] == "failed"]
        assert [(o["target"], o["error"]) for o in failed] == [
            ("pdf/SKILL.md", {"type": "IsADirectoryError", "message": "Is a directory"})
        ]

    def test_names_are_shown_escaped_and_never_as_markup(self, tmp_path: Path, root: Path) -> None:
        names = ["[red]x[/]", "new\nline", "\x1b[31mred", "\u202eright", ":smile:"]
        make_skill(tmp_path / "pdf", dict.fromkeys(names, b""))
        write_tree(root, {f"pdf/{name}/folder": b"" for name in names})
        ended = run("install", tmp_path / "pdf", "--to", root)
        shown = {line for line in ended.stdout.splitlines() if line.startswith("  pdf/")}
        assert shown == {
            "  pdf/[red]x[/]",
            r"  pdf/new\nline",
            r"  pdf/\x1b[31mred",
            r"  pdf/\u202eright",
            "  pdf/:smile:",
        }

    def test_many_files_and_few_descriptors(self, tmp_path: Path, root: Path) -> None:
        """Case 25, OpenNeuroOrg/openneuro#2613: `ulimit -n 64` and 500 files."""
        make_skill(tmp_path / "pdf", {f"f{number}": b"x" for number in range(500)})
        for strategy in ("concurrent", "packed"):
            arguments = ["install", str(tmp_path / "pdf"), "--to", str(root / strategy)]
            limited = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh"]
            ended = run(*arguments, "--strategy", strategy, before=limited)
            assert ended.returncode == 0, ended.stderr + ended.stdout
            assert len(read_tree(root / strategy)) == 501


class TestPlanAndValidate:
    def test_plan_shows_what_would_go_where(self, skills: Path) -> None:
        ended = run("plan", skills, "--dest", "/root/.agents/skills")
        assert ended.returncode == 0
        assert re.search(r"/root/.agents/skills/pdf/bin/go +\d+ B +executable", ended.stdout)
        planned = json.loads(run("plan", skills, "--json").stdout)
        assert len(planned["digest"]) == 64
        assert planned["folders"] == ["pdf", "xlsx"]

    def test_validate_fails_for_findings_only_when_strict(self, skills: Path) -> None:
        assert run("validate", skills).stdout == "2 skills, all valid\n"
        (skills / "pdf" / "SKILL.md").write_text("---\nname: other\n---\n")
        ended = run("validate", skills)
        assert ended.returncode == 0
        assert "name-mismatch (1)" in ended.stdout
        assert "description-missing (1)" in ended.stdout
        strict = run("validate", skills, "--strict", "--json")
        assert strict.returncode == 2
        findings = json.loads(strict.stdout)["findings"]
        assert {f["kind"] for f in findings} == {"name-mismatch", "description-missing"}

    def test_validate_finds_what_cannot_be_installed(self, skills: Path) -> None:
        (skills / "pdf" / "link").symlink_to("/etc/hostname")
        ended = run("validate", skills)
        assert ended.returncode == 2
        assert "the link leaves the skill" in ended.stdout

    @pytest.mark.parametrize("command", ["plan", "install", "validate"])
    def test_help_shows_an_example_that_works(self, skills: Path, root: Path, command: str) -> None:
        ended = run(command, "--help", env={"COLUMNS": "80"})
        assert ended.returncode == 0
        assert max(map(len, ended.stdout.splitlines())) <= 80
        (example,) = re.findall(r"Example:\n +trio-skills (.+)\n", ended.stdout)
        assert run(*shlex.split(example), cwd=skills.parent).returncode == 0

    def test_version(self) -> None:
        assert re.fullmatch(r"trio-skills \d+\.\d+\.\d+\n", run("--version").stdout)


class TestBadInput:
    """One clear error that names the path, exit code 2, and nothing is written."""

    def refused(self, *arguments: str | Path, before: list[str] | None = None) -> str:
        ended = run("install", *arguments, before=before)
        assert ended.returncode == 2, ended.stdout + ended.stderr
        assert ended.stdout == ""
        assert "Traceback" not in ended.stderr
        return ended.stderr

    def test_mistyped_sources_are_all_named(self, skills: Path, root: Path) -> None:
        """Case 4, PrimeIntellect-ai/verifiers#2102."""
        error = self.refused("./nope", skills, "./nope2", "--to", root)
        assert "error: nope: there is no such folder" in error
        assert "error: nope2: there is no such folder" in error
        assert not root.exists()

    def test_an_empty_source_is_not_the_working_directory(self, skills: Path, root: Path) -> None:
        """As `"$UNSET"` gives it."""
        assert "a source is empty" in self.refused("", skills, "--to", root)

    @pytest.mark.parametrize("size", ["nonsense", "", "-1", "0", "64XB", "1e9", "nan", "9" * 400])
    def test_max_bytes_nonsense(self, skills: Path, root: Path, size: str) -> None:
        assert "--max-bytes" in self.refused(skills, "--to", root, f"--max-bytes={size}")
        assert not root.exists()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--to", "ftp://host/x"], "unknown kind of sandbox 'ftp'"),
            (["--to", "local:"], "it names no directory"),
            (["--to", "x", "--max-in-flight", "0"], "at least 1"),
            (["--to", "x", "--strategy", "batched", "--batch-size", "0"], "at least 1"),
            (["--to", "x", "--strategy", "quick"], "quick"),
            (["--to", "x", "--existing", "replace", "--skip-unchanged"], "cannot skip"),
            (["--to", "x", "--dest", "../y"], "has no '..'"),
            (["--to", "x", "--no-such-option"], "--no-such-option"),
            ([], "--to"),
        ],
    )
    def test_options_that_make_no_sense(
        self, skills: Path, tmp_path: Path, arguments: list[str], message: str
    ) -> None:
        ended = run("install", skills, *arguments, cwd=tmp_path)
        assert ended.returncode == 2
        assert message in ended.stderr
        assert sorted(os.listdir(tmp_path)) == ["skills"]

    def test_no_command_shows_the_help_and_a_wrong_one_an_error(self) -> None:
        assert "Commands" in run().stdout
        assert run("instal").returncode == 2

    def test_a_destination_that_is_a_file(self, skills: Path, root: Path) -> None:
        root.write_bytes(b"kept")
        assert f"cannot open {root}: it is a file, not a directory" in self.refused(
            skills, "--to", root
        )
        assert "cannot open" in self.refused(skills, "--to", root / "below")
        assert root.read_bytes() == b"kept"

    @minds_permissions
    def test_no_permission(self, skills: Path, root: Path) -> None:
        root.mkdir(0o555)
        for arguments in ([root], [root / "below"], [root, "--dest", "a/b"]):
            error = self.refused(skills, "--to", *arguments, before=WITHOUT_POWERS)
            assert re.search("(?i)permission", error)
        assert list(root.iterdir()) == []

    @minds_permissions
    def test_a_source_that_may_not_be_read(self, skills: Path, root: Path) -> None:
        """Case 14, bit-team/backintime#1555."""
        (skills / "pdf" / "bin" / "go").chmod(0)
        (skills / "more" / "xlsx" / "a b").chmod(0)
        error = self.refused(skills, "--to", root, before=WITHOUT_POWERS)
        assert error.count("cannot be read: Permission denied") == 2
        assert not root.exists()

    def test_json_says_what_was_refused(self, skills: Path, root: Path) -> None:
        (skills / "pdf" / "link").symlink_to("/etc/hostname")
        ended = run("install", skills, "--to", root, "--json")
        refusal = json.loads(ended.stdout)
        assert ended.returncode == 2
        assert refusal["error"]["type"] == "PlanError"
        assert [problem["kind"] for problem in refusal["problems"]] == ["link-leaves"]

    def test_json_says_what_is_wrong_with_the_usage(self, skills: Path) -> None:
        ended = run("install", skills, "--json")
        assert ended.returncode == 2
        assert "--to" in json.loads(ended.stdout)["error"]["message"]

    def test_very_many_problems_are_capped(self, skills: Path, root: Path) -> None:
        for number in range(100):
            (skills / "pdf" / f"{number}").symlink_to("/etc/hostname")
        error = self.refused(skills, "--to", root)
        assert len(error.splitlines()) == 21
        assert "… and 80 more" in error


class TestHalfWay:
    """What fails in the midst of it: exit code 1, exactly what failed is named."""

    @pytest.mark.mounts
    def test_a_full_disk(self, tmp_path: Path, small_disk: Path) -> None:
        make_skill(tmp_path / "big", {f"f{number:03}": bytes(10_000) for number in range(200)})
        ended = run("install", tmp_path / "big", "--to", small_disk / "x", "--json")
        assert ended.returncode == 1
        outcomes = json.loads(ended.stdout)["outcomes"]
        written = {o["target"] for o in outcomes if o["state"] == "written"}
        failed = {o["error"]["message"] for o in outcomes if o["state"] == "failed"}
        assert failed == {"No space left on device"}
        tree = read_tree(small_disk / "x")
        assert set(tree) == written
        assert all(data == bytes(10_000) for path, (data, _) in tree.items() if "/f" in path)

    @minds_permissions
    @pytest.mark.parametrize("strategy", ["sequential", "concurrent", "packed"])
    def test_a_directory_that_turns_read_only(
        self, tmp_path: Path, root: Path, strategy: str
    ) -> None:
        for number in range(60):
            files = {f"f{n}": bytes(100) for n in range(50)}
            make_skill(tmp_path / "skills" / f"s{number:02}", files)
        root.mkdir()
        command = ["install", str(tmp_path / "skills"), "--to", str(root)]
        with subprocess.Popen(
            [*WITHOUT_POWERS, *PROGRAM, *command, "--strategy", strategy, "--json"],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            while process.poll() is None and not (root / "s00").exists():
                pass
            root.chmod(0o555)
            printed, _ = process.communicate()
        root.chmod(0o755)
        outcomes = json.loads(printed)["outcomes"]
        written = {o["target"] for o in outcomes if o["state"] == "written"}
        there = {path for path in read_tree(root) if not path.startswith(TEMPORARY)}
        assert there == written
        assert process.returncode == (0 if len(written) == len(outcomes) else 1)


class TestInterrupted:
    @pytest.mark.parametrize("received", [signal.SIGINT, signal.SIGTERM])
    @pytest.mark.parametrize("strategy", ["sequential", "concurrent", "packed"])
    def test_leaves_nothing_half_written_and_reports_what_was_done(
        self, tmp_path: Path, root: Path, strategy: str, received: signal.Signals
    ) -> None:
        source = tmp_path / "skills"
        for number in range(60):
            files = {f"f{n}": b"%d" % n * 2_000 for n in range(40)}
            make_skill(source / f"s{number:02}", files)
        whole = read_tree(source)
        interrupted = 0
        for wait in (0.0, 0.02, 0.05):
            command = ["install", str(source), "--to", str(root), "--strategy", strategy, "--json"]
            with subprocess.Popen([*PROGRAM, *command], stdout=subprocess.PIPE, text=True) as ended:
                while ended.poll() is None and not root.exists():
                    time.sleep(0.001)
                time.sleep(wait)
                ended.send_signal(received)
                printed, _ = ended.communicate()
            assert ended.returncode in (0, 128 + received)
            interrupted += ended.returncode != 0
            there = read_tree(root) if root.exists() else {}
            assert there.items() <= whole.items()  # bytes and modes too; no temporary name
            outcomes = json.loads(printed)["outcomes"]
            written = {o["target"] for o in outcomes if o["state"] == "written"}
            assert written == set(there)
            subprocess.run(["rm", "-rf", root], check=True)
        assert interrupted

    def test_twice_in_a_row_still_reports(self, tmp_path: Path, root: Path) -> None:
        make_skill(tmp_path / "big", {f"f{n}": bytes(10_000) for n in range(3_000)})
        command = ["install", str(tmp_path / "big"), "--to", str(root), "--strategy", "sequential"]
        with subprocess.Popen([*PROGRAM, *command], stdout=subprocess.PIPE, text=True) as ended:
            while not (root / "big" / "f0").exists():
                time.sleep(0.001)
            for _ in range(2):
                ended.send_signal(signal.SIGINT)
                time.sleep(0.002)
            printed, _ = ended.communicate()
        assert ended.returncode == 130
        assert re.search(r"interrupted, [\d,]+ written, [\d,]+ not reached", printed)

    def test_before_anything_began_is_130_without_a_traceback(
        self, tmp_path: Path, root: Path
    ) -> None:
        make_skill(tmp_path / "pdf", {f"{n}": bytes(100_000) for n in range(3_000)})
        with subprocess.Popen(
            [*PROGRAM, "install", str(tmp_path / "pdf"), "--to", str(root)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as ended:
            while not any(str(tmp_path) in path for path in _open_files(ended.pid)):
                time.sleep(0.001)
            ended.send_signal(signal.SIGINT)
            printed, complained = ended.communicate()
        assert (ended.returncode, printed) == (130, "")
        assert complained == "interrupted; no file was written\n"


def _open_files(process: int) -> list[str]:
    paths = []
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            paths.append(os.readlink(descriptor))
    return paths


class TestSurroundings:
    def test_a_reader_that_leaves_early_is_no_failure(self, tmp_path: Path) -> None:
        make_skill(tmp_path / "pdf", {f"{n:04}": b"" for n in range(3_000)})
        for option in ([], ["--json"]):
            command = shlex.join([*PROGRAM, "plan", str(tmp_path / "pdf"), *option])
            ended = subprocess.run(
                ["sh", "-c", f"({command}; echo $? >&2) | head -1"],
                capture_output=True,
                text=True,
                check=True,
            )
            assert len(ended.stdout.splitlines()) == 1
            assert ended.stderr == "141\n"

    def test_output_that_cannot_be_printed_is_said(self, tmp_path: Path, root: Path) -> None:
        make_skill(tmp_path / "pdf")
        command = shlex.join([*PROGRAM, "install", str(tmp_path / "pdf"), "--to", str(root)])
        for option in ("", "--json"):
            full = ["sh", "-c", f"{command} {option} > /dev/full"]
            ended = subprocess.run(full, capture_output=True, text=True, check=False)
            assert ended.returncode == 74
            assert ended.stderr == "error: cannot print: No space left on device\n"
        closed = ["sh", "-c", f"{command} >&- 2>&-"]
        assert subprocess.run(closed, check=False).returncode == 0

    def test_piped_names_are_whole_on_one_line(self, tmp_path: Path) -> None:
        name = "/".join(["n" * 90] * 5)
        make_skill(tmp_path / "pdf", {name: b""})
        assert f"pdf/{name} " in run("plan", tmp_path / "pdf", env={"COLUMNS": "30"}).stdout

    def test_any_locale_will_do(self, tmp_path: Path, root: Path) -> None:
        make_skill(tmp_path / "pdf", {"ünï": b""})
        env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        ended = run("install", tmp_path / "pdf", "--to", root, "--dest", "é", env=env)
        assert ended.returncode == 0, ended.stderr
        assert run("plan", tmp_path / "pdf", env=env).returncode == 0
        assert (root / "é" / "pdf" / "ünï").exists()

    def test_a_terminal_sees_progress_and_others_do_not(self, tmp_path: Path, root: Path) -> None:
        for number in range(100):
            make_skill(tmp_path / "skills" / f"s{number}", {f"{n}": b"x" for n in range(20)})
        command = [*PROGRAM, "install", str(tmp_path / "skills"), "--to", str(root)]
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [*command, "--strategy", "sequential"],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        ) as process:
            os.close(theirs)
            seen = _read_all(ours)
            assert process.stdout is not None
            report = process.stdout.read().decode()
        assert process.returncode == 0
        assert re.search(r"Installing.*\d+/2,100 files.*/s", seen)
        assert "Installing" not in report
        assert "2,100 written" in report


def _read_all(descriptor: int) -> str:
    data = b""
    while select.select([descriptor], [], [], 60)[0]:
        try:
            chunk = os.read(descriptor, 65_536)
        except OSError:  # how a terminal ends on Linux
            break
        if not chunk:
            break
        data += chunk
    os.close(descriptor)
    return data.decode()


class TestSizes:
    @pytest.mark.parametrize(
        ("text", "size"),
        [
            ("64MiB", 64 * 2**20),
            ("64MB", 64_000_000),
            ("64M", 64 * 2**20),
            ("1.5 kB", 1_500),
            ("1g", 2**30),
            ("65536", 65_536),
            ("10b", 10),
        ],
    )
    def test_are_read_as_people_write_them(self, text: str, size: int) -> None:
        assert parse_size(text) == size

    @pytest.mark.parametrize(
        ("size", "text"),
        [
            (0, "0 B"),
            (999, "999 B"),
            (1_500, "1.5 kB"),
            (123_456_789, "123 MB"),
            (2e15, "2,000.0 TB"),
        ],
    )
    def test_are_shown_short(self, size: float, text: str) -> None:
        assert format_size(size) == text
