"""A directory as a sandbox: whole files, no way out of the root, nothing left behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from property_tests.test_install_properties import CancelAtStep
from tests.trees import Tree, make_skill, planned_tree, read_tree, write_tree
from tests.ways import STRATEGIES, every_strategy
from trio_skills import (
    DestinationError,
    Event,
    InstallError,
    Plan,
    RuntimeOpenError,
    Strategy,
    TransferEnded,
    Upload,
    install,
    open_local,
    open_runtime,
    plan_skills,
    plan_uploads,
)
from trio_skills.runtimes._files import Files
from trio_skills.runtimes._staging import TEMPORARY


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    pdf = make_skill(tmp_path / "source" / "pdf", {"bin/go": (b"#!/bin/sh\n", True), "a b": b"1"})
    return plan_skills([pdf, make_skill(tmp_path / "source" / "xlsx", {"x/y/z": b"2" * 9_999})])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


async def put(plan: Plan, root: Path, **options: object) -> None:
    async with open_local(root) as runtime:
        await install(plan, runtime, **options)  # type: ignore[arg-type]


class TestInstalling:
    @every_strategy
    async def test_puts_the_plan_there_and_nothing_else(
        self, plan: Plan, root: Path, strategy: Strategy
    ) -> None:
        await put(plan, root, strategy=strategy, verify=True)
        assert read_tree(root) == planned_tree(plan)

    @every_strategy
    async def test_again_repairs_bytes_and_modes(
        self, plan: Plan, root: Path, strategy: Strategy
    ) -> None:
        """Case 2, cli/cli#14086: an update undoes a repair."""
        await put(plan, root, strategy=strategy)
        (root / "pdf" / "bin" / "go").chmod(0o644)
        (root / "pdf" / "a b").write_bytes(b"changed")
        (root / "pdf" / "a b").chmod(0o755)
        write_tree(root / "pdf", {"mine": b"kept"})
        await put(plan, root, strategy=strategy)
        assert read_tree(root) == planned_tree(plan) | {"pdf/mine": (b"kept", False)}

    async def test_an_absolute_target_lies_in_the_root_too(
        self, tmp_path: Path, root: Path
    ) -> None:
        await put(plan_skills([make_skill(tmp_path / "pdf")], "/root/.agents/skills"), root)
        assert list(read_tree(root)) == ["root/.agents/skills/pdf/SKILL.md"]

    async def test_single_files_need_no_skill(self, root: Path) -> None:
        plan = plan_uploads([Upload.of("a/b", b"1", executable=True), Upload.of("c", b"2")])
        await put(plan, root)
        assert read_tree(root) == planned_tree(plan)

    async def test_a_program_finds_the_one_beside_it(self, tmp_path: Path, root: Path) -> None:
        """Case 1, vercel-labs/skills#1140: a dispatcher that starts a helper."""
        files = {
            "bin/go": (b'#!/bin/sh\nexec "${0%/*}/lib/h"\n', True),
            "bin/lib/h": (b"#!/bin/sh\necho started\n", True),
        }
        await put(plan_skills([make_skill(tmp_path / "pdf", files)]), root)
        assert subprocess.check_output([root / "pdf/bin/go"]) == b"started\n"

    async def test_execute_bits_survive_any_umask(self, plan: Plan, root: Path) -> None:
        before = os.umask(0o177)
        try:
            async with open_local(root) as runtime:
                os.umask(0o111)
                await install(plan, runtime)
        finally:
            os.umask(before)
        assert (root / "pdf" / "bin" / "go").stat().st_mode & 0o100

    async def test_a_deep_tree_is_installed_replaced_and_removed(
        self, tmp_path: Path, root: Path
    ) -> None:
        deep = "/".join(["0"] * 1_500)
        plan = plan_uploads([Upload.of(f"pdf/{deep}/x", b"1")])
        whole = Plan(plan.uploads, folders=("pdf",))
        await put(whole, root)
        await put(whole, root, existing="replace")
        subprocess.run(["rm", "-r", root / "pdf"], check=True)

    async def test_two_installs_of_one_plan_at_once_both_end_well(
        self, plan: Plan, root: Path
    ) -> None:
        async with open_local(root) as runtime, trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(install, plan, runtime)
        assert read_tree(root) == planned_tree(plan)

    async def test_many_tasks_replace_one_folder_without_a_failure(
        self, plan: Plan, root: Path
    ) -> None:
        async def again(root: Path) -> None:
            for _ in range(30):
                await put(plan, root, existing="replace")

        write_tree(root, {"pdf/old": b""})
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(again, root)
        assert read_tree(root) == planned_tree(plan)


class TestExisting:
    async def test_replace_leaves_the_plan_alone(self, plan: Plan, root: Path) -> None:
        write_tree(root, {"pdf/old/x": b"", "other/y": b"kept"})
        await put(plan, root, existing="replace")
        assert read_tree(root) == planned_tree(plan) | {"other/y": (b"kept", False)}

    async def test_error_writes_nothing(self, plan: Plan, root: Path) -> None:
        write_tree(root, {"xlsx/y": b""})
        with pytest.raises(DestinationError, match="xlsx: it is there already"):
            await put(plan, root, existing="error")
        assert read_tree(root) == {"xlsx/y": (b"", False)}

    async def test_replace_with_a_failure_leaves_the_old_folder(
        self, plan: Plan, root: Path
    ) -> None:
        old: Tree = {"pdf/old": (b"1", False), "xlsx/old": (b"2", False)}
        write_tree(root, {path: data for path, (data, _) in old.items()})
        source = plan.uploads[1].source
        assert isinstance(source, Path)
        source.write_bytes(b"changed after planning")
        with pytest.raises(InstallError, match="3 of 5 files failed") as caught:
            await put(plan, root, existing="replace")
        reasons = [str(error) for error in caught.value.exceptions]
        assert sum("changed after it was planned" in reason for reason in reasons) == 1
        assert sum("other files of its skill failed" in reason for reason in reasons) == 2
        kept = {"pdf/old": (b"1", False)}
        assert read_tree(root) == kept | {
            path: entry for path, entry in planned_tree(plan).items() if path.startswith("xlsx")
        }

    async def test_a_rename_that_fails_at_the_last_step_puts_the_old_folder_back(
        self, plan: Plan, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Case 21, QwenLM/qwen-code#10187: both versions lost."""
        write_tree(root, {"pdf/old": b"1"})
        rename = os.rename
        calls: list[str] = []

        def failing(source: str, target: str, **where: int) -> None:
            calls.append(target)
            if calls.count("pdf") == 2:  # aside, then into place
                raise OSError(5, "Input/output error")
            rename(source, target, **where)

        monkeypatch.setattr(os, "rename", failing)
        with pytest.raises(InstallError, match="failed"):
            await put(plan, root, existing="replace")
        monkeypatch.undo()
        assert read_tree(root / "pdf") == {"old": (b"1", False)}
        assert not any(name.startswith(TEMPORARY) for name in os.listdir(root))

    async def test_what_a_killed_process_moved_aside_is_put_back(
        self, plan: Plan, root: Path
    ) -> None:
        litter = root / f"{TEMPORARY}0123456789abcdef"
        write_tree(litter, {"aside/other/x": b"1", "new/xlsx/half": b"", "aside/pdf/old": b"2"})
        write_tree(root, {"pdf/there": b"3"})
        await put(plan, root)
        assert read_tree(root) == planned_tree(plan) | {
            "other/x": (b"1", False),
            "pdf/there": (b"3", False),
        }

    async def test_a_workspace_in_use_is_left_alone(self, plan: Plan, root: Path) -> None:
        """Two processes install into one folder: neither removes the other's work."""
        script = (
            "import fcntl, os, sys\n"
            f"os.makedirs(sys.argv[1] + '/{TEMPORARY}{'b' * 16}/new')\n"
            f"folder = os.open(sys.argv[1] + '/{TEMPORARY}{'b' * 16}', os.O_RDONLY)\n"
            "fcntl.flock(folder, fcntl.LOCK_EX)\n"
            "print('locked', flush=True)\n"
            "sys.stdin.read()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as busy:
            assert busy.stdout is not None
            assert busy.stdout.readline() == b"locked\n"
            await put(plan, root)
            assert (root / f"{TEMPORARY}{'b' * 16}" / "new").is_dir()
            assert busy.stdin is not None
            busy.stdin.close()
        await put(plan, root)
        assert not (root / f"{TEMPORARY}{'b' * 16}").exists()


class TestFailures:
    @every_strategy
    async def test_a_partial_result_is_a_failure_with_its_list(
        self, plan: Plan, root: Path, strategy: Strategy
    ) -> None:
        """Case 14, bit-team/backintime#1555."""
        source = plan.uploads[1].source
        assert isinstance(source, Path)
        source.unlink()
        with pytest.raises(InstallError) as caught:
            await put(plan, root, strategy=strategy)
        assert [o.target for o in caught.value.report.failed] == [plan.uploads[1].target]
        whole = planned_tree(Plan((plan.uploads[0], *plan.uploads[2:])))
        assert {path: data for path, (data, _) in read_tree(root).items()} == {
            path: data for path, (data, _) in whole.items()
        }

    @every_strategy
    async def test_what_stands_in_the_way_fails_alone(
        self, plan: Plan, root: Path, strategy: Strategy
    ) -> None:
        write_tree(root, {"pdf/a b/folder": b"1", "pdf/bin": b"a file"})
        with pytest.raises(InstallError) as caught:
            await put(plan, root, strategy=strategy)
        assert {str(error) for error in caught.value.exceptions} == {
            "pdf/a b: Is a directory",
            "pdf/bin/go: Not a directory",
        }
        assert read_tree(root)["pdf/a b/folder"] == (b"1", False)
        assert (root / "xlsx" / "SKILL.md").exists()

    async def test_a_destination_that_is_a_file_is_refused(self, plan: Plan, root: Path) -> None:
        root.write_bytes(b"1")
        with pytest.raises(RuntimeOpenError, match="it is a file, not a directory"):
            await put(plan, root)
        assert root.read_bytes() == b"1"

    @pytest.mark.parametrize("dest", ["file", "file/below"])
    async def test_a_dest_that_is_or_lies_below_a_file_is_refused(
        self, tmp_path: Path, root: Path, dest: str
    ) -> None:
        write_tree(root, {"file": b"1"})
        with pytest.raises(DestinationError, match="not a folder"):
            await put(plan_skills([make_skill(tmp_path / "pdf")], dest), root)
        assert read_tree(root) == {"file": (b"1", False)}

    @pytest.mark.parametrize("url", ["", "local:", "local://host/x", "ftp://x/y", "a:b"])
    async def test_a_url_that_means_nothing_is_refused(self, url: str) -> None:
        with pytest.raises(RuntimeOpenError):
            async with open_runtime(url):
                pass

    async def test_a_directory_that_was_made_in_vain_is_removed(self, root: Path) -> None:
        async with open_runtime(f"local:{root}/a/b"):
            assert (root / "a" / "b").is_dir()
        assert not root.exists()

    async def test_a_runtime_that_was_closed_writes_nowhere(
        self, tmp_path: Path, root: Path
    ) -> None:
        async with open_local(root) as closed:
            await closed.write("x", b"")
        async with open_local(tmp_path / "other"):
            for _ in range(20):  # the number of the closed descriptor is somebody else's soon
                with pytest.raises(trio.ClosedResourceError):
                    await closed.write("escaped", b"")
        assert not (tmp_path / "other").exists()

    async def test_every_file_that_can_be_made_executable_is(self, root: Path) -> None:
        async with open_local(root) as runtime:
            for name in "ac":
                await runtime.write(name, b"")
            with pytest.raises(FileNotFoundError):
                await runtime.set_executable(["a", "b", "c"])
            states = await runtime.inspect(["a", "c"])
        assert all(state.executable for state in states.values())

    async def test_a_directory_that_was_removed_meanwhile_is_an_error(
        self, plan: Plan, root: Path
    ) -> None:
        async with open_local(root) as runtime:
            root.rmdir()
            with trio.fail_after(10), pytest.raises(InstallError, match="No such file"):
                await install(plan, runtime)

    async def test_a_skill_with_a_strange_name_is_not_taken_for_litter(
        self, tmp_path: Path, plan: Plan, root: Path
    ) -> None:
        strange = make_skill(tmp_path / f"{TEMPORARY}{'a' * 16}")
        await put(plan_skills([strange]), root)
        await put(plan, root)
        assert (root / strange.name / "SKILL.md").exists()


class TestLinks:
    @every_strategy
    @pytest.mark.parametrize("link", ["pdf", "pdf/bin"])
    async def test_in_the_root_are_never_followed(
        self, tmp_path: Path, plan: Plan, root: Path, strategy: Strategy, link: str
    ) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (root / link).parent.mkdir(parents=True)
        (root / link).symlink_to(outside)
        with pytest.raises(InstallError, match="failed") as caught:
            await put(plan, root, strategy=strategy)
        assert "links are not followed" in str(caught.value.exceptions[0])
        assert read_tree(outside) == {}

    @every_strategy
    async def test_at_the_place_of_a_file_are_replaced(
        self, tmp_path: Path, plan: Plan, root: Path, strategy: Strategy
    ) -> None:
        outside = tmp_path / "outside"
        outside.write_bytes(b"1")
        (root / "pdf").mkdir(parents=True)
        (root / "pdf" / "a b").symlink_to(outside)
        await put(plan, root, strategy=strategy)
        assert read_tree(root) == planned_tree(plan)
        assert outside.read_bytes() == b"1"

    @pytest.mark.parametrize("packed", [False, True])
    def test_that_are_swapped_in_meanwhile_lead_nowhere(
        self, tmp_path: Path, root: Path, *, packed: bool
    ) -> None:
        outside = tmp_path / "outside"
        for folder in (outside, root / "pdf"):
            folder.mkdir(parents=True)
        stop = threading.Event()

        def swap() -> None:
            # Each step may lose against the library, which makes the folder where it is missing.
            while not stop.is_set():
                with suppress(OSError):
                    os.rename(root / "pdf", root / "real")
                with suppress(OSError):
                    os.symlink(outside, root / "pdf")
                with suppress(OSError):
                    os.unlink(root / "pdf")
                shutil.rmtree(root / "real", ignore_errors=True)

        swapper = threading.Thread(target=swap)
        swapper.start()
        descriptor = os.open(root, os.O_RDONLY)
        files = Files(descriptor)
        upload = Upload.of("pdf/x", b"1", executable=True)
        refused = 0
        try:
            for _ in range(1_000):
                try:
                    if packed:
                        result = files.write_many([upload], ["pdf"], "merge", lambda: None)
                        refused += result.errors != [None]
                    else:
                        files.write("pdf/x", [b"1"])
                        files.set_executable(["pdf/x"])
                except OSError:
                    refused += 1
        finally:
            stop.set()
            swapper.join()
            os.close(descriptor)
        assert os.listdir(outside) == []
        assert refused  # else nothing was raced


class TestAbandonedFiles:
    """What a killed single write left goes; what another process is writing stays."""

    NAME = f"{TEMPORARY}{'0' * 16}"

    @every_strategy
    async def test_the_next_install_into_the_folder_removes_it(
        self, root: Path, plan: Plan, strategy: Strategy
    ) -> None:
        write_tree(
            root, {f"pdf/{self.NAME}": b"half", f"pdf/bin/{self.NAME}": b"", "pdf/own": b"1"}
        )
        async with open_local(root) as runtime:
            await install(plan, runtime, strategy=strategy)
        assert read_tree(root) == {**planned_tree(plan), "pdf/own": (b"1", False)}

    @every_strategy
    async def test_it_stays_while_it_is_locked(
        self, root: Path, plan: Plan, strategy: Strategy
    ) -> None:
        write_tree(root, {f"pdf/{self.NAME}": b"half"})
        with open(root / "pdf" / self.NAME, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            async with open_local(root) as runtime:
                await install(plan, runtime, strategy=strategy)
        assert read_tree(root) == {**planned_tree(plan), f"pdf/{self.NAME}": (b"half", False)}

    async def test_many_that_write_into_one_folder_disturb_nobody(self, root: Path) -> None:
        """Each sweeps there, while the others write."""
        async with trio.open_nursery() as nursery:
            for number in range(20):

                @nursery.start_soon
                async def write(number: int = number) -> None:
                    for again in range(20):
                        async with open_local(root) as runtime:
                            await runtime.write(f"x/{number}-{again}", b"%d" % number)

        expected = {f"x/{n}-{again}": (b"%d" % n, False) for n in range(20) for again in range(20)}
        assert read_tree(root) == expected


class TestInterrupted:
    async def test_a_packed_write_is_cancelled_between_files_and_leaves_nothing(
        self, tmp_path: Path, root: Path
    ) -> None:
        files = {f"f{number:04}": b"x" * 4_096 for number in range(3_000)}
        plan = plan_skills([make_skill(tmp_path / "big", files)])
        with trio.CancelScope() as scope:

            async def cancel_soon() -> None:
                while not any(root.glob(f"{TEMPORARY}*/new/big/f0*")):
                    await trio.sleep(0.001)
                scope.cancel()

            async with open_local(root) as runtime, trio.open_nursery() as nursery:
                nursery.start_soon(cancel_soon)
                await install(plan, runtime)
                nursery.cancel_scope.cancel()
        assert scope.cancelled_caught
        assert not root.exists()

    async def test_while_the_directory_is_opened_leaves_none(self, root: Path) -> None:
        for step in range(1, 20):
            instrument = CancelAtStep(step)
            with instrument.scope:
                trio.lowlevel.add_instrument(instrument)
                async with open_local(root / "below"):
                    pass
            trio.lowlevel.remove_instrument(instrument)
            assert not root.exists()

    async def test_single_files_are_reported_as_they_are(self, root: Path) -> None:
        plan = plan_uploads(Upload.of(f"{n:03}", b"x" * 100) for n in range(250))
        events: list[Event] = []
        with trio.CancelScope() as scope:

            async def cancel_soon() -> None:
                while not (root / "000").exists():
                    await trio.lowlevel.checkpoint()
                scope.cancel()

            async with open_local(root) as runtime, trio.open_nursery() as nursery:
                nursery.start_soon(cancel_soon)
                await install(plan, runtime, on_event=events.append)
                nursery.cancel_scope.cancel()
        report = events[-1].report  # type: ignore[union-attr]  # the last one is InstallEnded
        assert {outcome.target for outcome in report.written} == set(read_tree(root))

    async def test_reports_exactly_what_is_there(self, tmp_path: Path, root: Path) -> None:
        skills = [make_skill(tmp_path / f"s{n:03}", {"x": b"1"}) for n in range(200)]
        plan = plan_skills(skills)
        events: list[Event] = []
        with trio.CancelScope() as scope:

            def watch(event: Event) -> None:
                events.append(event)
                if isinstance(event, TransferEnded) and event.transfer == 20:
                    scope.cancel()

            async with open_local(root) as runtime:
                await install(plan, runtime, strategy="concurrent", on_event=watch)
        assert scope.cancelled_caught
        report = events[-1].report  # type: ignore[union-attr]  # the last one is InstallEnded
        assert {outcome.target for outcome in report.written} == set(read_tree(root))
        assert 0 < len(report.written) < 400

    def test_killed_leaves_each_folder_whole_or_not_there(self, tmp_path: Path) -> None:
        skills = tmp_path / "skills"
        for number in range(10):
            files = {f"f{n:02}": bytes(2_000) for n in range(50)}
            make_skill(skills / f"s{number}", files)
        root = tmp_path / "root"
        whole = read_tree(skills)
        command = [sys.executable, "-m", "trio_skills", "install", str(skills), "--to", str(root)]
        seen_partial = False
        for attempt in range(8):
            with subprocess.Popen([*command, "--existing", "replace"], stdout=subprocess.DEVNULL):
                pass
            with subprocess.Popen(
                [*command, "--existing", "replace"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as process:
                # The start of Python takes most of the time, so look for the work itself.
                for _ in range(2_000):
                    if process.poll() is not None or any(root.glob(f"{TEMPORARY}*")):
                        break
                    threading.Event().wait(0.001)
                threading.Event().wait(attempt * 0.002)
                process.send_signal(signal.SIGKILL)
            there = read_tree(root)
            visible = {path for path in there if not path.startswith(TEMPORARY)}
            seen_partial |= len(visible) != len(there)
            for skill in {path.split("/")[0] for path in visible}:
                expected = {path for path in whole if path.startswith(skill + "/")}
                assert {path for path in visible if path.startswith(skill + "/")} == expected
        subprocess.run(command, check=True, capture_output=True)
        assert read_tree(root) == whole
        assert seen_partial  # else nothing was killed in the midst of it


class TestRun:
    async def test_returns_what_a_command_printed_and_its_exit_code(self, root: Path) -> None:
        async with open_local(root) as runtime:
            result = await runtime.run(["sh", "-c", "pwd; echo $X >&2; exit 3"], {"X": "a b"})
        assert result.exit_code == 3
        assert result.stdout == f"{root}\n".encode()
        assert result.stderr == b"a b\n"

    async def test_a_missing_command_is_127_and_one_that_may_not_run_126(self, root: Path) -> None:
        async with open_local(root) as runtime:
            assert (await runtime.run(["no-such-command"], {})).exit_code == 127
            await runtime.write("plain", b"")
            assert (await runtime.run(["./plain"], {})).exit_code == 126
            assert (await runtime.run(["sh", "-c", "kill -9 $$"], {})).exit_code == 137

    async def test_a_cancelled_command_is_gone_with_what_it_started(self, root: Path) -> None:
        async with open_local(root) as runtime:
            with trio.CancelScope() as scope:

                async def cancel_soon() -> None:
                    while not (root / "child").exists():
                        await trio.sleep(0.001)
                    scope.cancel()

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel_soon)
                    script = (
                        "trap '' TERM; sleep 1000 & echo $! > child.tmp; mv child.tmp child; wait"
                    )
                    await runtime.run(["sh", "-c", script], {})
            assert scope.cancelled_caught
            child = int((root / "child").read_text())
            with trio.fail_after(5):  # it is killed, and its new parent must reap it
                while Path(f"/proc/{child}").exists():
                    if "Z" in Path(f"/proc/{child}/stat").read_text().split(")")[1][:3]:
                        break
                    await trio.sleep(0.01)


@pytest.mark.mounts
class TestMounts:
    async def test_a_full_disk_names_exactly_what_failed_and_leaves_no_temporary_file(
        self, tmp_path: Path, small_disk: Path
    ) -> None:
        files = {f"f{number:03}": bytes(10_000) for number in range(200)}
        plan = plan_skills([make_skill(tmp_path / "big", files), make_skill(tmp_path / "small")])
        for strategy in STRATEGIES:
            with pytest.raises(InstallError) as caught:
                await put(plan, small_disk / strategy, strategy=strategy)
            report = caught.value.report
            assert report.failed
            assert all("No space left" in str(error) for error in caught.value.exceptions)
            there = read_tree(small_disk / strategy)
            there = {path: entry for path, entry in there.items() if path not in ("big", "small")}
            assert set(there) == {outcome.target for outcome in report.written}
            whole = planned_tree(plan)
            assert all(there[o.target][0] == whole[o.target][0] for o in report.written)
            subprocess.run(["rm", "-r", small_disk / strategy], check=True)

    async def test_a_skill_folder_that_is_a_mount_is_merged_into(
        self, plan: Plan, small_disk: Path
    ) -> None:
        root = small_disk.parent
        write_tree(small_disk, {"mine": b"kept"})
        renamed = Plan(
            tuple(
                Upload(u.target.replace("pdf", small_disk.name), *_rest(u)) for u in plan.uploads
            ),
            folders=(small_disk.name, "xlsx"),
        )
        await put(renamed, root)
        assert read_tree(small_disk) == {"mine": (b"kept", False)} | {
            path.removeprefix(f"{small_disk.name}/"): entry
            for path, entry in planned_tree(renamed).items()
            if path.startswith(small_disk.name)
        }


def _rest(upload: Upload) -> tuple[Path | bytes, int, bool, str | None]:
    return upload.source, upload.size, upload.executable, upload.digest
