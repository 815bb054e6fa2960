"""A test file of somebody who has a sandbox of his own: run it by `pytest examples`.

It needs `pytest-trio`, with `trio_mode = true`, and `trio-skills[testing]`. See docs/testing.md.
"""

from __future__ import annotations

import os
import random
import secrets
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from trio_skills import (
    InstallError,
    Limits,
    Packing,
    Plan,
    RunResult,
    Runtime,
    TransientError,
    Upload,
    install,
    plan_uploads,
)
from trio_skills.testing import CHECKS, Call, Check, Fault, Latency, MemoryFile, MemoryRuntime
from trio_skills.testing.strategies import plans

# -- the runtime: a folder of this machine


class FolderRuntime:
    """What `install` needs: two methods."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def write(self, target: str, data: bytes) -> None:
        await trio.to_thread.run_sync(self._write, self.root / target, data)

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Of a name of its own, and short: several may write one file, and its name may be long.
        new = path.with_name(secrets.token_hex(8))
        try:
            new.write_bytes(data)
            new.rename(path)
        finally:
            new.unlink(missing_ok=True)

    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        ended = await trio.run_process(
            argv,
            cwd=self.root,
            env={**os.environ, **env},
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        return RunResult(ended.returncode, ended.stdout, ended.stderr)


# -- does it keep its promises?


@asynccontextmanager
async def folder() -> AsyncIterator[Runtime]:
    with tempfile.TemporaryDirectory() as name:
        yield FolderRuntime(Path(name))


@asynccontextmanager
async def packing_folder() -> AsyncIterator[Runtime]:
    """The same by `Packing`: many files in one write and one command."""
    async with folder() as runtime:
        yield Packing(runtime)


@pytest.mark.parametrize("check", CHECKS, ids=str)
async def test_the_runtime_keeps_its_promise(check: Check) -> None:
    await check(folder)


async def test_packed_the_files_of_a_skill_arrive_together() -> None:
    names = {check.name: check for check in CHECKS}
    assert await names["a_plan_arrives"](packing_folder)
    assert await names["cancelled_many_leave_a_folder_as_it_was_or_as_planned"](packing_folder)


# -- an eval loop, as a program of yours has it, and what it does when a sandbox is slow or faulty


async def rollouts(plan: Plan, sandboxes: Sequence[Runtime], seconds: float) -> list[str]:
    """Install into every sandbox at once, and return what became of each."""
    limits = Limits(max_in_flight=16)
    results = ["timed out" for _ in sandboxes]

    async def rollout(number: int, sandbox: Runtime) -> None:
        with trio.move_on_after(seconds):
            try:
                report = await install(plan, sandbox, limits=limits)
            except InstallError as error:
                results[number] = error.report.summary()
            else:
                results[number] = report.summary()

    async with trio.open_nursery() as nursery:
        for number, sandbox in enumerate(sandboxes):
            nursery.start_soon(rollout, number, sandbox)
    return results


async def test_one_bad_sandbox_stops_no_other(autojump_clock: MockClock) -> None:
    def full(call: Call) -> Fault | None:
        return Fault(error=OSError("the disk is full")) if "b" in call.targets else None

    busy = iter([Fault(error=TransientError("503"))])
    sandboxes = [
        MemoryRuntime(latency=Latency.remote()),
        MemoryRuntime(faults=full),
        MemoryRuntime(faults=lambda call: next(busy, None)),
        MemoryRuntime(latency=Latency(round_trip=3600)),
    ]
    plan = plan_uploads([Upload.of("a", b"1"), Upload.of("b", b"2", executable=True)])
    results = await rollouts(plan, sandboxes, seconds=60)
    assert results == ["2 written", "1 written, 1 failed", "2 written", "timed out"]
    assert trio.current_time() == 60  # of which none was waited for
    assert sandboxes[0].files == {"a": MemoryFile(b"1"), "b": MemoryFile(b"2", executable=True)}
    assert sandboxes[3].files == {}


@given(plans(), st.integers(1, 4), st.random_module())
def test_every_plan_arrives_in_every_sandbox(plan: Plan, count: int, seed: random.Random) -> None:
    expected = {
        upload.target: MemoryFile(upload.source, upload.executable)
        for upload in plan.uploads
        if isinstance(upload.source, bytes)
    }

    async def main() -> None:
        sandboxes = [MemoryRuntime(latency=Latency.remote()) for _ in range(count)]
        await rollouts(plan, sandboxes, seconds=3600)
        assert all(sandbox.files == expected for sandbox in sandboxes)

    trio.run(main, clock=MockClock(autojump_threshold=0))
