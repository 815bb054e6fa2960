"""Many installs at once stay within bounds, and many one after another leave nothing behind."""

from __future__ import annotations

import itertools
import mmap
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import attrs
import pytest
import trio

from bench.load import (
    MAX_BYTES,
    SLOWEST,
    Figure,
    Load,
    Watch,
    containers,
    docker_load,
    figures,
    in_memory,
    limits,
    local_load,
    make_plan,
    memory_load,
)
from bench.soak import KINDS, fast_disk, growth, soak
from tests.services import Engine
from trio_skills import ArchiveCache, Limits, Plan, Report, Strategy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is only there on Linux")

UNLIMITED = 10**9


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return make_plan(tmp_path_factory.mktemp("skills"))


def missed(found: list[Figure]) -> dict[str, float]:
    return {figure.name: figure.measured for figure in found if not figure.kept}


def pages(size: int) -> mmap.mmap:
    """Return memory that was nobody's before, as freed memory of earlier tests is."""
    memory = mmap.mmap(-1, size)
    memory.write(bytes(size))
    return memory


class TestWatch:
    def test_it_sees_descriptors_threads_processes_and_memory(self) -> None:
        ended = threading.Event()
        threads = [threading.Thread(target=ended.wait, daemon=True) for _ in range(3)]
        with Watch() as watch:
            pipes = [os.pipe() for _ in range(10)]
            for thread in threads:
                thread.start()
            process = subprocess.Popen(["sleep", "1000"])
            held = pages(20_000_000)
        # It looks for the last time when the block ends.
        process.kill()
        process.wait()
        ended.set()
        for descriptor in itertools.chain(*pipes):
            os.close(descriptor)
        assert (watch.peak.descriptors, watch.peak.processes) == (20, 1)
        assert watch.peak.threads >= 3  # the test runner may have started one of its own
        assert watch.peak.memory >= len(held)


@pytest.mark.slow
class TestBounds:
    """What installs take at once follows from their `Limits`, not from how many they are."""

    @pytest.mark.parametrize("strategy", ["packed", "concurrent"])
    def test_a_thousand_remote_sandboxes(self, plan: Plan, strategy: Strategy) -> None:
        load = memory_load(in_memory(plan), 1_000, strategy, limits())
        assert missed(figures(load)) == {}
        assert load.wait <= SLOWEST
        if strategy == "packed":  # what holds them back is the bytes, else it is the number
            assert load.bytes_in_flight > 0.9 * MAX_BYTES
        else:
            assert load.in_flight == Limits().statistics().max_in_flight

    @pytest.mark.parametrize(
        ("strategy", "archives"),
        [("packed", None), ("concurrent", None), ("packed", ArchiveCache())],
        ids=["packed", "concurrent", "one cache"],
    )
    def test_two_hundred_directories(
        self, plan: Plan, strategy: Strategy, archives: ArchiveCache | None, tmp_path: Path
    ) -> None:
        load = local_load(plan, 200, strategy, limits(), tmp_path, archives)
        assert missed(figures(load)) == {}
        if archives is not None:
            assert archives.statistics().builds == 1

    @pytest.mark.docker
    def test_twenty_containers(self, plan: Plan, docker: Engine) -> None:
        with containers(docker, 20) as names:
            load = docker_load(plan, docker, names, limits())
        assert missed(figures(load)) == {}

    def test_without_limits_transfers_bytes_and_tasks_exceed_them(self, plan: Plan) -> None:
        load = memory_load(in_memory(plan), 50, "concurrent", Limits(UNLIMITED, UNLIMITED))
        load = attrs.evolve(load, limits=limits())
        expected = {"transfers in flight", "bytes in flight", "tasks"}
        assert missed(figures(load)).keys() == expected

    def test_without_limits_memory_exceeds_them(self, tmp_path: Path) -> None:
        """Files wait for a thread that writes them, when they have been read."""
        large = make_plan(tmp_path / "skills", size=65_536)
        load = local_load(large, 20, "concurrent", Limits(UNLIMITED, UNLIMITED), tmp_path / "to")
        load = attrs.evolve(load, limits=limits())
        assert missed(figures(load)).keys() > {"memory, MiB", "bytes in flight"}


class LastFirst:
    """Limits that starve: of those who wait, who came last is served first."""

    max_bytes = UNLIMITED

    def __init__(self, places: int) -> None:
        self.free = places
        self.waiting: list[trio.Event] = []

    async def acquire(self, size: int) -> None:
        await trio.lowlevel.checkpoint()
        if self.free:
            self.free -= 1
        else:
            self.waiting.append(trio.Event())
            await self.waiting[-1].wait()

    def release(self, size: int) -> None:
        if self.waiting:
            self.waiting.pop().set()
        else:
            self.free += 1


class TestNobodyStarves:
    """Installs that begin one after another, faster than they can be served."""

    def staggered(self, plan: Plan, shared: Limits) -> Load:
        return memory_load(in_memory(plan), 300, "packed", shared, every=0.004)

    def test_who_begins_later_does_not_keep_the_others_waiting(self, plan: Plan) -> None:
        load = self.staggered(plan, Limits(max_in_flight=30))
        assert load.in_flight == 30
        assert load.took <= SLOWEST
        assert load.wait <= SLOWEST

    def test_a_queue_that_serves_the_last_first_is_found(self, plan: Plan) -> None:
        unfair = cast("Limits", LastFirst(30))  # it has what `install` needs
        assert self.staggered(plan, unfair).took > SLOWEST


class TestSoak:
    """Many installs, good, failed and cancelled ones, leave this process as it was."""

    @pytest.fixture
    def folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=fast_disk()) as folder:
            yield Path(folder)

    @pytest.mark.slow
    def test_nothing_grows(self, folder: Path) -> None:
        done = soak(folder, 500)
        assert sum(done.ended.values()) == 500
        assert min(done.ended.values()) >= 500 // len(KINDS)
        assert missed(growth(done)) == {}

    def test_every_leak_is_found(self, folder: Path) -> None:
        ended = threading.Event()
        reports: list[tuple[Report, mmap.mmap]] = []
        descriptors: list[int] = []
        processes: list[subprocess.Popen[bytes]] = []

        def leak(report: Report) -> None:
            reports.append((report, pages(100_000)))
            descriptors.append(os.open("/dev/null", os.O_RDONLY))
            processes.append(subprocess.Popen(["true"]))  # which nobody waits for
            threading.Thread(target=ended.wait, daemon=True).start()
            trio.lowlevel.spawn_system_task(trio.sleep_forever)
            (folder / f".trio-skills-{len(reports)}").mkdir()

        try:
            done = soak(folder, 200, leak)
        finally:
            ended.set()
            for descriptor in descriptors:
                os.close(descriptor)
            for process in processes:
                process.wait()
        assert missed(growth(done)).keys() == {figure.name for figure in growth(done)}


def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False)


def test_all_worker_threads_fit_into_64_descriptors(plan: Plan, tmp_path: Path) -> None:
    """Each manages with its share of `ulimit -n 64`: then they do, however they are scheduled."""
    program = """
import os, resource, sys, trio
from trio_skills import ArchiveCache, install, install_sources, open_local, plan_skills
from trio_skills._threads import MAX_THREADS
async def main(source, to):
    archive = await ArchiveCache().source_archive(source)
    async with open_local(to) as runtime:
        held = len(os.listdir("/proc/self/fd")) - 1
        share = (64 - held) // MAX_THREADS
        resource.setrlimit(resource.RLIMIT_NOFILE, (held + share, held + share))
        for existing in ("merge", "merge", "replace"):
            await install(plan, runtime, strategy="packed", existing=existing)
        for _ in range(2):
            await install_sources(runtime, [archive], "sources")
plan = plan_skills([sys.argv[1]])
trio.run(main, *sys.argv[1:])
"""
    source = plan.skills[0].folder
    ended = run(program, source, tmp_path / "to")
    assert (ended.returncode, ended.stderr.decode()) == (0, "")


def test_a_retry_prints_nothing() -> None:
    """What the library that does the waiting logs has no reader, unless the program has one."""
    program = """
import itertools, trio
from trio_skills import TransientError, Upload, install, plan_uploads
from trio_skills.testing import Fault, MemoryRuntime
numbers = itertools.count()
error = TransientError("busy")
error.retry_after = 0.0
runtime = MemoryRuntime(faults=lambda call: Fault(error=error) if next(numbers) < 1 else None)
report = trio.run(install, plan_uploads([Upload.of("file", b"content")]), runtime)
assert report.retries == 1
"""
    ended = run(program)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
