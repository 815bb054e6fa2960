"""What goes wrong at the edges: said clearly, ended in time, and nothing is kept or left."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.sources import archive_of, make_small, make_source
from tests.trees import make_skill, read_tree, write_tree
from trio_skills import (
    Archive,
    ArchiveCache,
    ArchiveError,
    ExecRuntime,
    InstallError,
    PlanError,
    Traits,
    install,
    install_sources,
    open_local,
    plan_skills,
    write_archive,
)
from trio_skills._compress import compressor, decompressed
from trio_skills.testing import Call, Fault, PackingMemoryRuntime


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    write_tree(root, {"a": b"1", "b/c": b"2"})
    return root


class TestUnpacking:
    """It takes as long as there is to unpack, and ends when it is told to."""

    def test_gzip_takes_time_by_its_length_and_not_by_its_square(self) -> None:
        data = os.urandom(96 * 2**20)
        chosen = compressor("gzip")
        packed = chosen.compress(data) + chosen.flush()
        start = time.perf_counter()
        pieces = [len(piece) for piece in decompressed(packed, "gzip", 2**20)]
        assert time.perf_counter() - start < 1.3  # it was 2.6 s, and is 0.04
        assert sum(pieces) == len(data)
        assert min(pieces) > 0

    async def test_a_large_member_is_given_up_within_it(self, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.mkdir()
        with open(source / "huge", "wb") as file:
            file.truncate(2**30)
        archive = await archive_of(source)
        async with open_local(tmp_path / "box") as runtime:
            start = time.monotonic()
            with trio.move_on_after(0.3) as scope:
                await install_sources(runtime, {"x": archive})
            assert scope.cancelled_caught
            assert time.monotonic() - start < 1.5
            assert os.listdir(tmp_path / "box") in ([], [".trio-skills.sources"])

    def test_names_arrive_in_any_locale(self, tmp_path: Path) -> None:
        source = make_source(tmp_path / "source")
        program = (
            "import sys, trio\n"
            "from trio_skills import ArchiveCache, install_sources, open_local\n"
            "async def main():\n"
            "    archive = await ArchiveCache().source_archive(sys.argv[1])\n"
            "    async with open_local(sys.argv[2]) as runtime:\n"
            "        for summary in ('1 written', '1 unchanged'):\n"
            "            report = await install_sources(runtime, {'n\\xe9': archive})\n"
            "            assert report.summary() == summary, report.summary()\n"
            "trio.run(main)\n"
        )
        subprocess.run(
            [sys.executable, "-c", program, source, tmp_path / "box"],
            env={
                "LC_ALL": "C",
                "PYTHONCOERCECLOCALE": "0",
                "PYTHONUTF8": "0",
                "PYTHONPATH": os.getcwd(),
            },
            check=True,
        )
        assert read_tree(tmp_path / "box" / "né") == read_tree(source)
        assert os.listdir(tmp_path / "box" / ".trio-skills.sources") == ["né"]


class TestFifo:
    """Nobody may read from it, or go on reading: who has waited enough is let go."""

    @pytest.mark.parametrize("reads", [False, True])
    async def test_waiting_for_its_reader_can_be_cancelled(
        self, tmp_path: Path, *, reads: bool
    ) -> None:
        write_tree(tmp_path / "tree", {"x": os.urandom(2**20)})
        os.mkfifo(tmp_path / "fifo")
        reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK) if reads else None
        start = time.monotonic()
        with trio.move_on_after(0.3) as scope:
            await write_archive(tmp_path / "tree", tmp_path / "fifo")
        assert scope.cancelled_caught
        assert time.monotonic() - start < 1.3
        if reader is not None:
            assert os.read(reader, 2) == b"\x1f\x8b"
            os.close(reader)


class TestNotes:
    """What is noted of a folder is not said of the next one in its place."""

    @pytest.mark.parametrize("kind", ["local", "exec"])
    async def test_a_skill_that_replaced_a_source_is_no_source(
        self, tmp_path: Path, kind: str
    ) -> None:
        source = make_small(tmp_path / "source" / "x", "one")
        archive = await archive_of(source)
        plan = plan_skills([make_skill(tmp_path / "skills" / "x")])
        box = tmp_path / "box"
        async with open_local(box) as local:
            runtime = local if kind == "local" else ExecRuntime(["env"], str(box))
            await install_sources(runtime, [archive])
            await install(plan, runtime, existing="replace")
            assert os.listdir(box / "x") == ["SKILL.md"]
            report = await install_sources(runtime, [archive])
        assert report.summary() == "1 written"
        assert read_tree(box / "x") == read_tree(source)


class TestErrors:
    """They name what is wrong, and hold no content."""

    async def test_a_file_that_fails_while_it_is_read_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ArchiveError, match=r"/proc/\d+/mem: cannot be read: Input/output"):
            await ArchiveCache().source_archive("/proc/self", ["mem"])
        command = [sys.executable, "-m", "trio_skills", "archive", "/proc/self", "mem", "-o"]
        ended = subprocess.run([*command, tmp_path / "x"], capture_output=True, check=False)
        assert ended.returncode == 2
        assert b"mem: cannot be read: Input/output error" in ended.stderr

    def test_a_working_directory_that_is_gone_is_named(self, tmp_path: Path) -> None:
        command = 'cd "$1" && rmdir "$1" && exec "$2" -P -m trio_skills archive tree -o /dev/null'
        (tmp_path / "gone").mkdir()
        ended = subprocess.run(
            ["sh", "-c", command, "sh", tmp_path / "gone", sys.executable],
            env={**os.environ, "PYTHONPATH": os.fspath(Path(__file__).parent.parent)},
            capture_output=True,
            check=False,
        )
        assert ended.returncode == 2
        assert b"tree: the working directory cannot be found" in ended.stderr

    async def test_an_output_that_names_a_folder_is_refused(
        self, tree: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(IsADirectoryError):
            await write_archive(tree, f"{tmp_path}/new/")
        assert sorted(os.listdir(tmp_path)) == ["tree"]

    async def test_a_member_is_not_lost_to_the_output(self, tree: Path) -> None:
        with pytest.raises(ArchiveError, match="a: it is what the archive is written to"):
            await write_archive(tree, tree / "a", members=["a", "b"])
        assert (tree / "a").read_bytes() == b"1"
        info = await write_archive(tree, tree / "x.tar")
        assert info.member_count == 3

    async def test_names_that_are_one_for_the_sandbox_are_refused(self, tree: Path) -> None:
        archive = await archive_of(tree)
        runtime = PackingMemoryRuntime(traits=Traits(folds_case=True))
        with pytest.raises(PlanError, match="Src"):
            await install_sources(runtime, {"Src": archive, "src": archive})
        assert runtime.log == []
        report = await install_sources(PackingMemoryRuntime(), {"Src": archive, "src": archive})
        assert report.summary() == "2 written"

    async def test_a_failure_that_is_kept_keeps_no_archive(self, tmp_path: Path) -> None:
        archive = await archive_of(make_small(tmp_path / "x", "one"))

        def faults(call: Call) -> Fault | None:
            is_it = call.method == "extract"
            return Fault(error=OSError("refused"), after=True) if is_it else None

        with pytest.raises(InstallError) as caught:
            await install_sources(PackingMemoryRuntime(faults=faults), {"x": archive})
        assert not list(_held(caught.value.exceptions[0].__cause__))

    async def test_nor_does_one_of_a_build(self, tree: Path) -> None:
        cache = ArchiveCache()

        def work() -> None:
            content = b"secret" * 1_000
            raise OSError(f"failed with {len(content)}")

        with pytest.raises(OSError, match="failed with 6000") as caught:
            await cache._once("key", work)
        assert not list(_held(caught.value.__cause__))


def _held(error: BaseException | None) -> Iterator[object]:
    """Yield the contents, and archives, that the frames of an error hold."""
    while error is not None:
        traceback = error.__traceback__
        while traceback is not None:
            for value in traceback.tb_frame.f_locals.values():
                if isinstance(value, Archive) or (isinstance(value, bytes) and len(value) > 1_000):
                    yield value
            traceback = traceback.tb_next
        error = error.__cause__ or error.__context__


class TestCache:
    """Nobody waits for what does not come, and no other run is drawn into it."""

    async def test_what_was_never_begun_keeps_nobody_waiting(self, tree: Path) -> None:
        cache = ArchiveCache()
        asking = cache.source_archive(tree)

        def outside_of_trio() -> None:
            with pytest.raises(RuntimeError, match="async context"):
                asking.send(None)

        thread = threading.Thread(target=outside_of_trio)
        thread.start()
        thread.join()
        with trio.fail_after(5):
            assert (await cache.source_archive(tree)).member_count == 3

    async def test_an_error_that_cannot_be_copied_is_told_as_it_is(self) -> None:
        class OddError(Exception):
            def __init__(self, *, word: str) -> None:
                super().__init__(word)

        def work() -> None:
            raise OddError(word="odd")

        with pytest.raises(OddError, match="odd"):
            await ArchiveCache()._once("key", work)

    async def test_an_error_of_a_build_that_began_before_one_asked_is_not_his(self) -> None:
        """Of a tree that was mended in the meantime."""
        cache = ArchiveCache()
        may_end = threading.Event()

        def fail() -> str:
            assert may_end.wait(10)
            raise OSError("not mended yet")

        async def ask_early() -> None:
            with pytest.raises(OSError, match="not mended yet"):
                await cache._once("key", fail)

        made: list[str] = []

        async def ask_late() -> None:
            made.append(await cache._once("key", lambda: "made", asked=time.monotonic()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_early)
            await wait_all_tasks_blocked()
            nursery.start_soon(ask_late)
            await wait_all_tasks_blocked()
            may_end.set()
        assert made == ["made"]

    async def test_nor_is_a_look_that_began_before(self, tree: Path) -> None:
        """It may have passed what changed in the meantime."""
        cache = ArchiveCache()
        old = await cache.source_archive(tree, refresh="stat")
        [held] = cache._held.values()
        may_end = threading.Event()

        def look() -> tuple[float, bool]:
            began = time.monotonic()
            assert may_end.wait(10)
            return began, True

        new: list[Archive] = []

        async def ask_late() -> None:
            new.append(await cache.source_archive(tree, refresh="stat"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cache._once, ("look", held, "stat"), look)
            await wait_all_tasks_blocked()
            (tree / "a").write_bytes(b"changed")
            nursery.start_soon(ask_late)
            while cache.statistics().tasks_waiting < 2:
                await trio.lowlevel.checkpoint()
            may_end.set()
        assert new[0].digest != old.digest

    async def test_two_runs_at_once_are_refused_and_the_first_goes_on(self) -> None:
        cache = ArchiveCache()
        began, may_end = threading.Event(), threading.Event()

        def work() -> str:
            began.set()
            assert may_end.wait(10)
            return "made"

        def other_run() -> None:
            with pytest.raises(RuntimeError, match="one Trio run at a time"):
                trio.run(cache._once, "key", work)
            may_end.set()

        made: list[str] = []

        async def ask() -> None:
            made.append(await cache._once("key", work))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while not began.is_set():
                await trio.sleep(0.01)
            await trio.to_thread.run_sync(other_run)
        assert made == ["made"]
