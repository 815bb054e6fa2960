"""Containers as sandboxes: what is there afterwards is the plan, whatever the container is like."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.containers import DEST, litter, processes, put, read_container, read_owners, write_files
from tests.corpus import SKILLS
from tests.programs import run
from tests.services import Engine
from tests.test_corpus_install import source_tree
from tests.trees import Content, Tree, make_skill, planned_tree, read_tree, two_skills
from tests.ways import every_image, every_strategy, with_tar
from trio_skills import (
    DestinationError,
    Event,
    Existing,
    InstallError,
    Plan,
    Strategy,
    TransferEnded,
    VerifyError,
    find_skills,
    install,
    open_runtime,
    plan_skills,
)
from trio_skills.runtimes.docker import open_docker

pytestmark = pytest.mark.docker


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Two skills that belong to a user who is not in the container."""
    skills = two_skills(tmp_path / "source")
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "4242:4243", tmp_path / "source"], check=True)
    return plan_skills(skills)


@pytest.fixture
def busybox(docker: Engine) -> Iterator[str]:
    with docker.container("busybox") as name:
        yield name


class TestInstalling:
    @every_strategy
    @every_image
    async def test_puts_the_plan_there_and_nothing_else(
        self, docker: Engine, plan: Plan, image: str, strategy: Strategy
    ) -> None:
        with docker.container(image) as name:
            report = await put(plan, docker, name, strategy=strategy)
            assert report.ok
            assert len(report.written) == len(plan.uploads)
            assert report.in_place == ()
            assert read_container(docker, name, DEST) == planned_tree(plan)
            assert processes(docker, name) == []

    @every_image
    async def test_again_repairs_bytes_and_modes(
        self, docker: Engine, plan: Plan, tmp_path: Path, image: str
    ) -> None:
        """Case 2, cli/cli#14086: an update undoes a repair."""
        with docker.container(image) as name:
            await put(plan, docker, name)
            changed = make_skill(
                tmp_path / "changed" / "pdf",
                {"bin/go": (b"changed", False), "a b": (b"changed", True), "mine": b"kept"},
            )
            await put(plan_skills([changed]), docker, name)
            await put(plan, docker, name)
            assert read_container(docker, name, DEST) == planned_tree(plan) | {
                "pdf/mine": (b"kept", False)
            }

    async def test_a_url_names_container_and_folder(
        self, docker: Engine, plan: Plan, busybox: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DOCKER_HOST", docker.host)
        for url in (f"docker://{busybox}/root/my%20skills", f"docker://{busybox}/root/your skills"):
            async with open_runtime(url) as runtime:
                await install(plan, runtime)
        for folder in ("/root/my skills", "/root/your skills"):
            assert read_container(docker, busybox, folder) == planned_tree(plan)

    async def test_an_absolute_destination_needs_no_folder_in_the_url(
        self, docker: Engine, plan: Plan, busybox: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DOCKER_HOST", docker.host)
        absolute = plan_skills([skill.folder for skill in plan.skills], "/opt/skills")
        async with open_runtime(f"docker://{busybox}") as runtime:
            await install(absolute, runtime)
        assert read_container(docker, busybox, "/opt/skills") == planned_tree(plan)

    async def test_a_container_is_found_by_its_id_too(
        self, docker: Engine, plan: Plan, busybox: str
    ) -> None:
        inspected = docker.docker("inspect", "--format", "{{.Id}}", busybox).stdout.decode()
        await put(plan, docker, inspected[:12])
        assert read_container(docker, busybox, DEST) == planned_tree(plan)

    @every_strategy
    @with_tar
    async def test_a_program_finds_the_one_beside_it(
        self, docker: Engine, tmp_path: Path, image: str, strategy: Strategy
    ) -> None:
        """Case 1, vercel-labs/skills#1140: a dispatcher that starts a helper."""
        files: dict[str, Content] = {
            "bin/go": (b'#!/bin/sh\nexec "${0%/*}/lib/h"\n', True),
            "bin/lib/h": (b"#!/bin/sh\necho started\n", True),
        }
        plan = plan_skills([make_skill(tmp_path / "pdf", files)])
        with docker.container(image) as name:
            await put(plan, docker, name, strategy=strategy)
            assert docker.run(name, f"{DEST}/pdf/bin/go") == b"started\n"

    async def test_hundreds_of_installs_leak_no_descriptors(
        self, docker: Engine, plan: Plan, busybox: str
    ) -> None:
        await put(plan, docker, busybox)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            await put(plan, docker, busybox)
        async with open_docker(busybox, DEST, host=docker.host) as runtime:
            await install(plan, runtime)
            opened = len(os.listdir("/proc/self/fd"))
            for _ in range(150):
                await install(plan, runtime)
            assert len(os.listdir("/proc/self/fd")) <= opened
        assert len(os.listdir("/proc/self/fd")) == before
        assert processes(docker, busybox) == []


class TestExisting:
    OLD: ClassVar = {
        f"{DEST}/pdf/old/x": b"old",
        f"{DEST}/pdf/a b": b"old",
        f"{DEST}/other/y": b"kept",
    }

    @pytest.fixture(params=["busybox", "debian"])
    def container(self, docker: Engine, request: pytest.FixtureRequest) -> Iterator[str]:
        with docker.container(request.param) as name:
            write_files(docker, name, self.OLD)
            yield name

    async def test_merge_keeps_the_other_files(
        self, docker: Engine, plan: Plan, container: str
    ) -> None:
        await put(plan, docker, container, existing="merge")
        kept: Tree = {"pdf/old/x": (b"old", False), "other/y": (b"kept", False)}
        assert read_container(docker, container, DEST) == planned_tree(plan) | kept

    async def test_replace_leaves_the_plan_alone(
        self, docker: Engine, plan: Plan, container: str
    ) -> None:
        report = await put(plan, docker, container, existing="replace")
        assert report.in_place == ()
        kept: Tree = {"other/y": (b"kept", False)}
        assert read_container(docker, container, DEST) == planned_tree(plan) | kept

    @every_strategy
    async def test_error_writes_nothing(
        self, docker: Engine, plan: Plan, container: str, strategy: Strategy
    ) -> None:
        before = read_container(docker, container, DEST)
        with pytest.raises(DestinationError, match="pdf: it is there already"):
            await put(plan, docker, container, strategy=strategy, existing="error")
        assert read_container(docker, container, DEST) == before

    async def test_error_installs_where_nothing_is_there(
        self, docker: Engine, plan: Plan, container: str
    ) -> None:
        await put(plan, docker, container, "/elsewhere", existing="error")
        assert read_container(docker, container, "/elsewhere") == planned_tree(plan)

    @pytest.mark.parametrize("existing", ["merge", "replace", "error"])
    async def test_a_skill_of_the_image_is_treated_as_any_other(
        self, docker: Engine, tmp_path: Path, existing: Existing
    ) -> None:
        """An overlay file system cannot rename it, which is no reason to leave the old files."""
        plan = plan_skills([make_skill(tmp_path / "baked", {"new": (b"new", True)})])
        with docker.container("with-skill") as name:
            before = read_container(docker, name, DEST)
            assert before["baked/only-old.txt"] == (b"old\n", False)
            if existing == "error":
                with pytest.raises(DestinationError):
                    await put(plan, docker, name, existing=existing)
                expected = before
            else:
                report = await put(plan, docker, name, existing=existing)
                assert report.ok
                assert report.in_place == ()
                expected = (before if existing == "merge" else {}) | planned_tree(plan)
            assert read_container(docker, name, DEST) == expected

    @pytest.mark.parametrize("image", ["no-tar", "no-shell"])
    @pytest.mark.parametrize("existing", ["replace", "error"])
    async def test_an_image_without_tar_or_shell_loses_nothing(
        self, docker: Engine, plan: Plan, tmp_path: Path, image: str, existing: Existing
    ) -> None:
        old = plan_skills([make_skill(tmp_path / "old" / "pdf", {"old": b"1"})])
        with docker.container(image) as name:
            await put(old, docker, name)
            try:
                await put(plan, docker, name, existing=existing)
            except (InstallError, DestinationError, ValueError):
                expected = planned_tree(old)
            else:
                assert existing == "replace"
                expected = planned_tree(plan)
            tree = read_container(docker, name, DEST)
            assert {path: entry for path, entry in tree.items() if path.startswith("pdf/")} == {
                path: entry for path, entry in expected.items() if path.startswith("pdf/")
            }


class TestOwnership:
    """The engine works as root on this machine, and the sources belong to 4242: neither counts."""

    @every_strategy
    @every_image
    async def test_files_belong_to_the_user_of_the_container(
        self, docker: Engine, plan: Plan, image: str, strategy: Strategy
    ) -> None:
        with docker.container(image, "--user", "agent") as name:
            await put(plan, docker, name, "/home/agent/.agents/skills", strategy=strategy)
            home = read_container(docker, name, "/home/agent")
            assert home == {f".agents/skills/{p}": e for p, e in planned_tree(plan).items()}
            assert read_owners(docker, name, "/home/agent") == {(1000, 1000)}

    @every_image
    async def test_the_user_can_be_chosen(
        self, docker: Engine, plan: Plan, image: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DOCKER_HOST", docker.host)
        with docker.container(image) as name:
            async with open_runtime(f"docker://{name}/home/agent/skills?user=agent") as runtime:
                await install(plan, runtime)
            assert read_container(docker, name, "/home/agent/skills") == planned_tree(plan)
            assert read_owners(docker, name, "/home/agent") == {(1000, 1000)}

    @every_strategy
    async def test_files_belong_to_root_by_default(
        self, docker: Engine, plan: Plan, busybox: str, strategy: Strategy
    ) -> None:
        await put(plan, docker, busybox, strategy=strategy)
        assert read_owners(docker, busybox, "/root") == {(0, 0)}

    @pytest.mark.parametrize("image", ["busybox", "debian", "no-tar"])
    async def test_where_the_user_may_not_write_every_file_fails(
        self, docker: Engine, plan: Plan, image: str
    ) -> None:
        with docker.container(image, "--user", "agent") as name:
            with pytest.raises(InstallError, match=r"(?i)permission denied") as caught:
                await put(plan, docker, name)
            assert caught.value.report.written == ()
            assert read_container(docker, name, "/root") == {}


class TestRoundTrips:
    @with_tar
    async def test_one_for_the_usual_plan(self, docker: Engine, plan: Plan, image: str) -> None:
        with docker.container(image) as name:
            assert (await put(plan, docker, name)).round_trips == 1
            assert (await put(plan, docker, name, existing="replace")).round_trips == 1

    async def test_four_at_most_for_2600_small_files(
        self, docker: Engine, tmp_path: Path, busybox: str
    ) -> None:
        """Cases 8 and 16: vercel/eve#1601, langchain-ai/deepagents#2117."""
        padding = "p" * 100
        files = {f"{n % 13}/{padding}{n}": (b"%d" % n, True) for n in range(2_600)}
        plan = plan_skills([make_skill(tmp_path / "pdf", files)])
        report = await put(plan, docker, busybox)
        assert report.round_trips <= 4
        assert len(report.written) == 2_601
        assert read_container(docker, busybox, DEST) == planned_tree(plan)

    @pytest.mark.parametrize("image", ["busybox", "debian"])
    async def test_one_unwritable_target_among_200_fails_alone(
        self, docker: Engine, tmp_path: Path, image: str
    ) -> None:
        files: dict[str, Content] = {f"f{n:03}": (b"%d" % n, n % 2 == 0) for n in range(199)}
        plan = plan_skills([make_skill(tmp_path / "pdf", files)])
        with docker.container(image) as name:
            write_files(docker, name, {f"{DEST}/pdf/f077/in the way": b"kept"})
            with pytest.raises(InstallError, match="1 of 200 files failed") as caught:
                await put(plan, docker, name)
            report = caught.value.report
            assert [outcome.target for outcome in report.failed] == ["pdf/f077"]
            assert len(report.written) == 199
            expected = planned_tree(plan)
            del expected["pdf/f077"]
            expected["pdf/f077/in the way"] = (b"kept", False)
            # Bits are set only when every write succeeded, unless they travel with the file.
            tree = read_container(docker, name, DEST)
            assert {path: data for path, (data, _) in tree.items()} == {
                path: data for path, (data, _) in expected.items()
            }
            without_bit = {p for p, entry in expected.items() if tree[p] != entry}
            assert without_bit == set(report.not_executable)


class TestVerifying:
    CHANGES: ClassVar = {
        "content": f"printf 9 > '{DEST}/pdf/a b'",
        "lost execute bit": f"chmod 644 {DEST}/pdf/bin/go",
        "gained execute bit": f"chmod 755 '{DEST}/pdf/a b'",
        "gone": f"rm {DEST}/pdf/bin/go",
        "a link": f"cd {DEST}/pdf && mv 'a b' x && ln -s x 'a b'",
    }
    every_change = pytest.mark.parametrize("change", CHANGES)

    @every_change
    @with_tar
    async def test_what_was_changed_is_found_and_repaired(
        self, docker: Engine, plan: Plan, image: str, change: str
    ) -> None:
        with docker.container(image) as name:
            await put(plan, docker, name)
            docker.run(name, "sh", "-c", self.CHANGES[change])
            report = await put(plan, docker, name, skip_unchanged=True)
            assert len(report.written) == 1
            assert len(report.unchanged) == len(plan.uploads) - 1
            assert report.round_trips == 2
            again = await put(plan, docker, name, skip_unchanged=True)
            assert len(again.unchanged) == len(plan.uploads)
            assert again.round_trips == 1
            tree = read_container(docker, name, DEST)
            tree.pop("pdf/x", None)
            assert tree == planned_tree(plan)

    @every_change
    async def test_what_changes_before_it_was_verified_is_a_failure(
        self, docker: Engine, plan: Plan, busybox: str, change: str
    ) -> None:
        def meddle(event: Event) -> None:
            if isinstance(event, TransferEnded):
                docker.run(busybox, "sh", "-c", self.CHANGES[change])

        with pytest.raises(InstallError, match="1 of 6 files failed") as caught:
            await put(plan, docker, busybox, verify=True, on_event=meddle)
        assert isinstance(caught.value.exceptions[0].__cause__, VerifyError)
        assert caught.value.report.round_trips == 2

    @with_tar
    async def test_one_command_verifies(self, docker: Engine, plan: Plan, image: str) -> None:
        with docker.container(image) as name:
            assert (await put(plan, docker, name, verify=True)).round_trips == 2


class TestRunning:
    async def test_arguments_environment_and_streams_arrive_unchanged(
        self, docker: Engine, busybox: str
    ) -> None:
        words = ["a b", "$(x)", "", "'", '"', "new\nline", "-n", "\\", "é*"]
        async with open_docker(busybox, "/tmp", host=docker.host) as runtime:
            said = await runtime.run(["printf", r"%s\0", *words], {})
            assert said.stdout.decode().split("\0") == [*words, ""]
            script = 'printf %s "$VALUE"; printf err >&2; exit 7'
            ended = await runtime.run(["sh", "-c", script], {"VALUE": "a\nb $(c) '\""})
            assert ended.exit_code == 7
            assert ended.stdout == b"a\nb $(c) '\""
            assert ended.stderr == b"err"
            assert (await runtime.run(["pwd"], {})).stdout == b"/tmp\n"

    async def test_much_output_comes_whole(self, docker: Engine, busybox: str) -> None:
        async with open_docker(busybox, host=docker.host) as runtime:
            many = await runtime.run(["sh", "-c", "head -c 5000000 /dev/zero; echo x >&2"], {})
        assert many.stdout == b"\0" * 5_000_000
        assert many.stderr == b"x\n"

    async def test_a_command_that_is_missing_or_killed_has_not_succeeded(
        self, docker: Engine, busybox: str
    ) -> None:
        async with open_docker(busybox, host=docker.host) as runtime:
            assert (await runtime.run(["no-such-program"], {})).exit_code in (126, 127)
            assert (await runtime.run(["sh", "-c", "kill -9 $$"], {})).exit_code != 0

    async def test_a_command_reads_no_input(self, docker: Engine, busybox: str) -> None:
        async with open_docker(busybox, host=docker.host) as runtime:
            assert (await runtime.run(["cat"], {})).stdout == b""


class TestTheCommandLine:
    @pytest.mark.corpus
    @pytest.mark.parametrize("package", SKILLS)
    def test_installs_a_collection(
        self, docker: Engine, corpus: dict[str, Path], busybox: str, package: str
    ) -> None:
        skills = find_skills(corpus[package])
        expected = {
            path: entry
            for path, entry in source_tree(skills).items()
            if not path.endswith((".pyc", ".DS_Store"))
        }
        to = ["--to", f"docker://{busybox}{DEST}"]
        first = run("install", corpus[package], *to, "--verify", env=docker.environment)
        assert first.returncode == 0, first.stderr
        assert read_container(docker, busybox, DEST) == expected
        again = run("install", corpus[package], *to, "--skip-unchanged", env=docker.environment)
        assert f"{len(expected):,} unchanged" in again.stdout
        assert litter(docker, busybox) == []

    def test_many_writers_and_few_descriptors(
        self, docker: Engine, tmp_path: Path, busybox: str
    ) -> None:
        """Case 25, OpenNeuroOrg/openneuro#2613."""
        make_skill(tmp_path / "pdf", {f"f{n}": b"%d" % n for n in range(399)})
        ended = run(
            *("install", tmp_path / "pdf", "--to", f"docker://{busybox}{DEST}"),
            *("--strategy", "concurrent", "--max-in-flight", "400"),
            before=["sh", "-c", 'ulimit -n 256; exec "$@"', "sh"],
            env=docker.environment,
        )
        assert ended.returncode == 0, ended.stderr + ended.stdout
        expected = read_tree(tmp_path / "pdf")
        assert read_container(docker, busybox, f"{DEST}/pdf") == expected
