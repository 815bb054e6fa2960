"""Source archives into sandboxes that need no service: each tree is there, whole, or was before."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import attrs
import pytest
import trio

from tests.sources import (
    NOTES,
    Sandbox,
    archive_of,
    every_compression,
    every_kind,
    in_folder,
    inode,
    leftovers,
    make_small,
    make_source,
    note_of,
    trees_in,
)
from tests.trees import read_tree, write_tree
from trio_skills import (
    Archive,
    CommandError,
    Compression,
    ExecRuntime,
    InstallError,
    Limits,
    PlanError,
    install_sources,
)
from trio_skills.testing import Call, Fault, MemoryRuntime, PackingMemoryRuntime


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source" / "pkg")


@pytest.fixture
def archive(source: Path) -> Archive:
    return trio.run(archive_of, source)


@pytest.fixture
def old(tmp_path: Path) -> Archive:
    return trio.run(archive_of, make_small(tmp_path / "old" / "pkg", "old", 2))


@pytest.fixture
def sandbox(tmp_path: Path, kind: str) -> Sandbox:
    return Sandbox(kind, tmp_path / "far side" / "root")


def memory_tree(runtime: MemoryRuntime, folder: str) -> dict[str, object]:
    prefix = folder + "/"
    files = {path: (file.data, file.executable) for path, file in runtime.files.items()}
    links = {path: (b"a link to " + to.encode(), False) for path, to in runtime.links.items()}
    there = {**files, **links}
    return {path.removeprefix(prefix): e for path, e in there.items() if path.startswith(prefix)}


@every_kind
class TestInstalling:
    @every_compression
    async def test_what_arrives_is_the_source(
        self, sandbox: Sandbox, source: Path, compression: Compression
    ) -> None:
        archive = await archive_of(source, compression)
        report = await sandbox.put([archive], "src")
        assert trees_in(sandbox.root / "src") == in_folder("pkg", read_tree(source))
        assert note_of(sandbox.root / "src", "pkg") == archive.digest
        assert leftovers(sandbox.root) == []
        assert report.summary() == "1 written"
        assert report.round_trips == {"local": 2, "exec": 2, "two methods": 3}[sandbox.kind]

    async def test_its_times_are_the_archives(self, sandbox: Sandbox, archive: Archive) -> None:
        await sandbox.put([archive])
        for path in ("pkg/bin/go", "pkg/pyproject.toml", "pkg/src/pkg", "pkg/empty/deep"):
            assert os.stat(sandbox.root / path).st_mtime == 315_532_800

    async def test_again_sends_nothing(self, sandbox: Sandbox, archive: Archive) -> None:
        await sandbox.put([archive], "src")
        before = inode(sandbox.root / "src" / "pkg")
        report = await sandbox.put([archive], "src")
        assert (report.round_trips, report.bytes_written) == (1, 0)
        assert report.summary() == "1 unchanged"
        assert inode(sandbox.root / "src" / "pkg") == before

    async def test_another_digest_replaces_the_whole_folder(
        self, sandbox: Sandbox, source: Path, archive: Archive, old: Archive
    ) -> None:
        await sandbox.put([old])
        write_tree(sandbox.root / "pkg", {"mine": b"gone, too"})
        assert (await sandbox.put([archive])).summary() == "1 written"
        assert trees_in(sandbox.root) == in_folder("pkg", read_tree(source))
        assert note_of(sandbox.root, "pkg") == archive.digest
        assert leftovers(sandbox.root) == []

    async def test_several_at_once_have_an_outcome_each(
        self, sandbox: Sandbox, source: Path, archive: Archive, old: Archive
    ) -> None:
        named = {"b": archive, "a": old, "-rf": old, "new\nline": old, "n" * 255: archive}
        report = await sandbox.put(named, "src")
        assert [outcome.target for outcome in report.outcomes] == sorted(f"src/{n}" for n in named)
        assert {outcome.transfer for outcome in report.outcomes} == set(range(5))
        assert report.bytes_written == sum(archive.size for archive in named.values())
        there = trees_in(sandbox.root / "src")
        for name, sent in named.items():
            tree = (
                read_tree(source) if sent is archive else read_tree(source.parents[1] / "old/pkg")
            )
            assert in_folder(name, tree).items() <= there.items()
            assert note_of(sandbox.root / "src", name) == sent.digest
        again = await sandbox.put(named, "src")
        assert (again.summary(), again.round_trips) == ("5 unchanged", 1)

    async def test_the_calls_of_several_at_once_are_all_counted(
        self, sandbox: Sandbox, old: Archive
    ) -> None:
        report = await sandbox.put({str(n): old for n in range(5)})
        assert report.round_trips == sandbox.calls or sandbox.kind == "local"

    async def test_only_what_is_not_there_is_sent(
        self, sandbox: Sandbox, archive: Archive, old: Archive
    ) -> None:
        await sandbox.put({"one": archive})
        report = await sandbox.put({"one": archive, "two": old})
        assert [(o.target, o.state) for o in report.outcomes] == [
            ("one", "unchanged"),
            ("two", "written"),
        ]

    async def test_an_absolute_destination_is_where_it_says(
        self, sandbox: Sandbox, source: Path, archive: Archive, tmp_path: Path
    ) -> None:
        dest = tmp_path / "elsewhere" / "src"
        report = await sandbox.put([archive], str(dest))
        assert report.outcomes[0].target == f"{dest}/pkg"
        # A local directory is a root: every target lies beneath it.
        there = sandbox.root / str(dest)[1:] if sandbox.kind == "local" else dest
        assert trees_in(there) == in_folder("pkg", read_tree(source))
        assert (await sandbox.put([archive], str(dest))).summary() == "1 unchanged"

    async def test_the_report_can_be_kept(self, sandbox: Sandbox, archive: Archive) -> None:
        report = await sandbox.put([archive])
        loaded = json.loads(report.to_json())
        assert loaded["ok"]
        assert loaded["bytes_written"] == archive.size
        assert [outcome["target"] for outcome in loaded["outcomes"]] == ["pkg"]
        [event] = json.loads(report.chrome_trace())["traceEvents"]
        assert (event["name"], event["args"]["bytes"]) == ("pkg", archive.size)
        assert 0 < event["dur"] <= report.seconds * 1e6

    @every_compression
    @pytest.mark.parametrize("over", [-512, 0, 512])
    async def test_a_tar_that_ends_where_a_piece_does_arrives(
        self, sandbox: Sandbox, tmp_path: Path, compression: Compression, over: int
    ) -> None:
        """A tar is 512 bytes of header, the content, 1024 zeros; it is sent in pieces of 1 MiB."""
        for zeros in (0, 1024):
            content = bytes(2**20 - 512 - zeros + over)
            write_tree(tmp_path / f"pkg{zeros}", {"data": content})
            archive = await archive_of(tmp_path / f"pkg{zeros}", compression)
            assert archive.tar_size == 2**20 + 1024 - zeros + over
            await sandbox.put([archive])
            assert (sandbox.root / archive.name / "data").read_bytes() == content


async def test_a_home_folder_is_the_runtimes(
    source: Path, archive: Archive, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    runtime = ExecRuntime(("env", f"HOME={home}"), "~/my src")
    await install_sources(runtime, [archive], "a b")
    assert trees_in(home / "my src" / "a b") == in_folder("pkg", read_tree(source))
    assert (await install_sources(runtime, [archive], "a b")).summary() == "1 unchanged"


@every_kind
class TestUnchanged:
    """Only what is noted and is there is left as it is."""

    @pytest.fixture(autouse=True)
    def there(self, sandbox: Sandbox, archive: Archive) -> None:
        trio.run(sandbox.put, [archive])

    async def check(self, sandbox: Sandbox, source: Path, archive: Archive) -> None:
        assert (await sandbox.put([archive])).summary() == "1 written"
        assert trees_in(sandbox.root) == in_folder("pkg", read_tree(source))
        assert note_of(sandbox.root, "pkg") == archive.digest
        assert leftovers(sandbox.root) == []

    async def test_a_folder_that_was_removed_is_sent_again(
        self, sandbox: Sandbox, source: Path, archive: Archive
    ) -> None:
        shutil.rmtree(sandbox.root / "pkg")
        await self.check(sandbox, source, archive)

    @pytest.mark.parametrize("what", ["note", "notes"])
    async def test_without_its_note_it_is_sent_again(
        self, sandbox: Sandbox, source: Path, archive: Archive, what: str
    ) -> None:
        if what == "note":
            (sandbox.root / NOTES / "pkg").unlink()
        else:
            shutil.rmtree(sandbox.root / NOTES)
        await self.check(sandbox, source, archive)

    @pytest.mark.parametrize(
        "note", ["0" * 64 + "\n", "", "{digest}", "{digest}\n\n", "{digest}\nx"]
    )
    async def test_with_another_note_it_is_sent_again(
        self, sandbox: Sandbox, source: Path, archive: Archive, note: str
    ) -> None:
        (sandbox.root / NOTES / "pkg").write_text(note.format(digest=archive.digest))
        await self.check(sandbox, source, archive)

    async def test_a_note_that_is_a_link_is_not_followed(
        self, sandbox: Sandbox, source: Path, archive: Archive, tmp_path: Path
    ) -> None:
        (tmp_path / "note").write_text(archive.digest + "\n")
        (sandbox.root / NOTES / "pkg").unlink()
        (sandbox.root / NOTES / "pkg").symlink_to(tmp_path / "note")
        await self.check(sandbox, source, archive)
        assert (tmp_path / "note").read_text() == archive.digest + "\n"

    async def test_a_file_in_its_place_is_replaced(
        self, sandbox: Sandbox, source: Path, archive: Archive
    ) -> None:
        shutil.rmtree(sandbox.root / "pkg")
        (sandbox.root / "pkg").write_bytes(b"a file")
        await self.check(sandbox, source, archive)

    async def test_a_link_in_its_place_is_replaced_and_not_followed(
        self, sandbox: Sandbox, source: Path, archive: Archive, tmp_path: Path
    ) -> None:
        (sandbox.root / "pkg").rename(tmp_path / "moved")
        (sandbox.root / "pkg").symlink_to(tmp_path / "moved")
        write_tree(tmp_path / "moved", {"mine": b"kept"})
        await self.check(sandbox, source, archive)
        assert (tmp_path / "moved" / "mine").read_bytes() == b"kept"

    async def test_what_was_changed_in_it_is_left_alone(
        self, sandbox: Sandbox, archive: Archive
    ) -> None:
        write_tree(sandbox.root / "pkg", {"pyproject.toml": b"changed", "build/x": b"built"})
        (sandbox.root / "pkg" / "link").unlink()
        before = read_tree(sandbox.root)
        assert (await sandbox.put([archive])).summary() == "1 unchanged"
        assert read_tree(sandbox.root) == before


class TestMemory:
    @every_compression
    async def test_what_arrives_is_the_source(self, source: Path, compression: Compression) -> None:
        archive = await archive_of(source, compression)
        runtime = PackingMemoryRuntime()
        report = await install_sources(runtime, [archive], "/opt/src")
        wanted = {p: e for p, e in read_tree(source).items() if e[0] != b"an empty folder"}
        assert memory_tree(runtime, "/opt/src/pkg") == wanted
        assert report.round_trips == len(runtime.log) == 2
        again = await install_sources(runtime, [archive], "/opt/src")
        assert (again.summary(), again.round_trips) == ("1 unchanged", 1)
        assert [call.method for call in runtime.log] == ["run", "extract", "run"]

    async def test_another_digest_replaces_the_whole_folder(
        self, source: Path, archive: Archive, old: Archive
    ) -> None:
        runtime = PackingMemoryRuntime()
        await install_sources(runtime, [archive])
        await install_sources(runtime, [old])
        old_tree = read_tree(source.parents[1] / "old" / "pkg")
        assert memory_tree(runtime, "pkg") == old_tree

    async def test_calls_that_overlap_are_all_counted(self, old: Archive) -> None:
        runtime = PackingMemoryRuntime(latency=lambda call: 0.01)
        report = await install_sources(runtime, {str(n): old for n in range(5)})
        assert runtime.peak_in_flight == 5
        assert report.round_trips == len(runtime.log) == 6

    async def test_one_at_a_time_where_no_more_is_allowed(self, old: Archive) -> None:
        runtime = PackingMemoryRuntime(latency=lambda call: 0.01)
        limits = Limits(max_in_flight=1)
        await install_sources(runtime, {str(n): old for n in range(5)}, limits=limits)
        assert runtime.peak_in_flight == 1
        assert limits.statistics().in_flight == limits.statistics().bytes_in_flight == 0

    async def test_no_more_bytes_than_allowed(self, old: Archive) -> None:
        runtime = PackingMemoryRuntime(latency=lambda call: 0.01)
        limits = Limits(max_bytes=2 * old.size + 1)
        await install_sources(runtime, {str(n): old for n in range(5)}, limits=limits)
        assert runtime.peak_bytes == 2 * old.size

    async def test_one_that_fails_does_not_stop_its_siblings(self, old: Archive) -> None:
        def faults(call: Call) -> Fault | None:
            return Fault(ConnectionError()) if call.targets == ("src/2",) else None

        runtime = PackingMemoryRuntime(faults=faults, latency=lambda call: 0.01)
        limits = Limits(max_in_flight=2)
        named = {str(n): old for n in range(5)}
        with pytest.raises(InstallError, match=r"1 of 5 .* src/2: ConnectionError") as caught:
            await install_sources(runtime, named, "src", limits=limits)
        report = caught.value.report
        assert [outcome.target for outcome in report.failed] == ["src/2"]
        assert len(report.written) == 4
        assert isinstance(caught.value.exceptions[0].__cause__, ConnectionError)
        assert limits.statistics().in_flight == limits.statistics().bytes_in_flight == 0
        assert report.round_trips == len(runtime.log)

    async def test_a_look_that_fails_is_raised_and_nothing_is_written(self, old: Archive) -> None:
        runtime = PackingMemoryRuntime(faults=lambda call: Fault(exit_code=127))
        limits = Limits()
        with pytest.raises(CommandError):
            await install_sources(runtime, [old], limits=limits)
        assert [call.method for call in runtime.log] == ["run"]
        assert limits.statistics().in_flight == 0

    @pytest.mark.parametrize("when", [0.0, 0.005, 0.015, 0.025, 0.035])
    async def test_cancelled_the_limits_are_whole(
        self, old: Archive, when: float, autojump_clock: trio.testing.MockClock
    ) -> None:
        runtime = PackingMemoryRuntime(latency=lambda call: 0.01)
        limits = Limits(max_in_flight=2)
        with trio.move_on_after(when) as scope:
            await install_sources(runtime, {str(n): old for n in range(9)}, limits=limits)
        assert scope.cancelled_caught
        statistics = limits.statistics()
        assert statistics.in_flight == statistics.bytes_in_flight == statistics.tasks_waiting == 0
        assert runtime.in_flight == 0


class TestArguments:
    BAD = ("", ".", "..", "a/b", "/a", "a\0b", ".trio-skills.sources", ".trio-skills@x", "n" * 256)

    async def test_all_that_is_wrong_is_named_before_any_call(self, old: Archive) -> None:
        runtime = PackingMemoryRuntime()
        with pytest.raises(PlanError) as caught:
            await install_sources(runtime, dict.fromkeys(self.BAD, old), "a/../b")
        assert [problem.path for problem in caught.value.problems] == ["a/../b", *self.BAD]
        assert runtime.log == []

    @pytest.mark.parametrize("name", [*BAD, "\udcff", "é" * 128])
    async def test_each_is_refused(self, old: Archive, name: str) -> None:
        with pytest.raises(PlanError) as caught:
            await install_sources(PackingMemoryRuntime(), {name: old})
        assert [problem.path for problem in caught.value.problems] == [name]
        with pytest.raises(PlanError):
            await install_sources(PackingMemoryRuntime(), [attrs.evolve(old, name=name)])

    @pytest.mark.parametrize("dest", ["..", "a/../b", "/..", "a\0b", "\udcff"])
    async def test_a_destination_stays_where_it_is(self, old: Archive, dest: str) -> None:
        runtime = PackingMemoryRuntime()
        with pytest.raises(PlanError):
            await install_sources(runtime, [old], dest)
        assert runtime.log == []

    async def test_two_archives_of_one_name_are_a_collision(
        self, archive: Archive, old: Archive
    ) -> None:
        with pytest.raises(PlanError, match="pkg: two archives have this name"):
            await install_sources(PackingMemoryRuntime(), [archive, old])

    async def test_the_same_archive_twice_is_one(self, old: Archive) -> None:
        report = await install_sources(PackingMemoryRuntime(), [old, old])
        assert report.summary() == "1 written"

    @pytest.mark.parametrize("wrong", ["archive", b"archive", 1, None])
    async def test_what_is_no_archive_is_a_type_error(self, wrong: object) -> None:
        with pytest.raises(TypeError):
            await install_sources(PackingMemoryRuntime(), {"a": wrong})  # type: ignore[arg-type]  # that

    async def test_no_archives_are_no_call(self) -> None:
        runtime = PackingMemoryRuntime()
        empty: list[dict[str, Archive] | list[Archive]] = [[], {}]
        for nothing in empty:
            report = await install_sources(runtime, nothing)
            assert report.outcomes == ()
            assert report.ok
        assert runtime.log == []


@every_kind
class TestFailures:
    async def test_one_whose_note_cannot_be_written_fails_alone(
        self, sandbox: Sandbox, source: Path, archive: Archive, old: Archive
    ) -> None:
        await sandbox.put({"one": old, "two": old})
        before = read_tree(sandbox.root / "two")
        (sandbox.root / NOTES / "two").unlink()
        write_tree(sandbox.root / NOTES / "two", {"in the way": b""})
        with pytest.raises(InstallError, match="1 of 2 source archives failed; first two: ") as e:
            await sandbox.put({"one": archive, "two": archive})
        assert [outcome.target for outcome in e.value.report.written] == ["one"]
        assert read_tree(sandbox.root / "one") == read_tree(source)
        assert note_of(sandbox.root, "one") == archive.digest
        assert read_tree(sandbox.root / "two") == before
        assert leftovers(sandbox.root) == []

    async def test_a_file_above_it_is_named(self, sandbox: Sandbox, archive: Archive) -> None:
        write_tree(sandbox.root, {"src": b"a file"})
        with pytest.raises(InstallError, match=r"src/deep/pkg: .*(file|[Nn]ot a directory)"):
            await sandbox.put([archive], "src/deep")
        assert trees_in(sandbox.root) == {"src": (b"a file", False)}

    async def test_a_link_above_it_is_not_followed(
        self, sandbox: Sandbox, archive: Archive, tmp_path: Path
    ) -> None:
        if sandbox.kind == "two methods":
            return  # where its files go is the inner runtime's own affair
        (tmp_path / "elsewhere").mkdir()
        sandbox.root.mkdir(parents=True)
        (sandbox.root / "src").symlink_to(tmp_path / "elsewhere")
        for dest in ("src", "src/deep"):
            with pytest.raises(InstallError, match=f"{dest}/pkg: .*a link is in the way"):
                await sandbox.put([archive], dest)
        assert read_tree(tmp_path / "elsewhere") == {}
        assert leftovers(sandbox.root) == []

    async def test_a_link_in_place_of_the_notes_is_not_written_through(
        self, sandbox: Sandbox, archive: Archive, old: Archive, tmp_path: Path
    ) -> None:
        await sandbox.put([old])
        before = trees_in(sandbox.root)
        (sandbox.root / NOTES).rename(tmp_path / "elsewhere")
        (sandbox.root / NOTES).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(InstallError, match=r"pkg: .*a link is in the way"):
            await sandbox.put([archive])
        assert trees_in(sandbox.root) == before
        assert (tmp_path / "elsewhere" / "pkg").read_text() == old.digest + "\n"
        assert leftovers(sandbox.root) == []

    async def test_a_link_in_place_of_the_notes_is_not_believed(
        self, sandbox: Sandbox, archive: Archive, tmp_path: Path
    ) -> None:
        await sandbox.put([archive])
        (sandbox.root / NOTES).rename(tmp_path / "elsewhere")
        (sandbox.root / NOTES).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(InstallError, match=r"pkg: .*a link is in the way"):
            await sandbox.put([archive])
