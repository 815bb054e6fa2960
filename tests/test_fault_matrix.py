"""Every fault in every phase, in every kind of sandbox: what has to hold, holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.cells import Cell, Kind, cells
from tests.faults.check import OLD, PLAN, Sandbox
from tests.faults.run import run_cell
from tests.faults.sandboxes import docker_sandbox, host_sandbox, ssh_sandbox
from trio_skills import InstallError, install


@pytest.fixture(scope="module")
def sandbox(
    kind: Kind, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    folder: Path = tmp_path_factory.mktemp(kind)
    with ExitStack() as stack:
        if kind == "docker":
            engine = request.getfixturevalue("docker")
            yield stack.enter_context(docker_sandbox(engine, folder))
        elif kind == "ssh":
            server = request.getfixturevalue("ssh")
            yield stack.enter_context(ssh_sandbox(server, folder))
        else:
            yield stack.enter_context(host_sandbox(kind, folder))


def _parameters() -> Iterator[object]:
    for cell in cells():
        if cell.impossible is None:
            marks = [getattr(pytest.mark, cell.kind)] if cell.kind in ("docker", "ssh") else []
            yield pytest.param(cell.kind, cell, id=str(cell), marks=marks)


@pytest.mark.parametrize(("kind", "cell"), list(_parameters()), scope="module")
def test_a_fault(cell: Cell, sandbox: Sandbox) -> None:
    letter = run_cell(cell, sandbox)
    if cell.fault == "slow" and cell.phase != "clean-up":
        assert letter == "W"


async def test_an_archive_that_cannot_be_moved_fails_with_the_cause(tmp_path: Path) -> None:
    """`Packing` moves it into the workspace: where that fails, it is there all the same."""
    with host_sandbox("packing", tmp_path) as sandbox:
        sandbox.reset(OLD)
        mv = tmp_path / "world" / "mv"
        mv.unlink()
        mv.write_text("#!/bin/sh\necho 'Permission denied' >&2\nexit 1\n")
        mv.chmod(0o755)
        async with sandbox.sound() as runtime:
            with pytest.raises(InstallError, match="Permission denied"):
                await install(PLAN, runtime)
