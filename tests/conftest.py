from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.corpus import collections
from tests.services import (
    Engine,
    Podman,
    SshServer,
    Unavailable,
    docker_engine,
    podman_engine,
    ssh_server,
)

# What a shell runs in the background ignores it, and so would every program that the tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def unavailable(what: str, reason: str) -> None:
    """Skip, or fail where CI says that it must be there (`TRIO_SKILLS_REQUIRE`)."""
    if what in os.environ.get("TRIO_SKILLS_REQUIRE", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def corpus() -> dict[str, Path]:
    """The published skill collections."""
    try:
        return collections()
    except FileNotFoundError as exc:
        unavailable("corpus", str(exc))
        raise


@pytest.fixture(scope="session")
def docker() -> Iterator[Engine]:
    """A Docker engine of our own."""
    with ExitStack() as stack:
        try:
            engine = stack.enter_context(docker_engine())
        except Unavailable as exc:
            unavailable("docker", str(exc))
            raise
        yield engine


@pytest.fixture(scope="session")
def ssh() -> Iterator[SshServer]:
    """An ssh server of our own."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(ssh_server())
        except Unavailable as exc:
            unavailable("ssh", str(exc))
            raise
        yield server


@pytest.fixture
def ssh_first_in_path(ssh: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ssh` is the one that may log in there."""
    monkeypatch.setenv("PATH", f"{ssh.path}:{os.environ['PATH']}")


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """Podman with storage of its own."""
    with ExitStack() as stack:
        try:
            engine = stack.enter_context(podman_engine())
        except Unavailable as exc:
            unavailable("podman", str(exc))
            raise
        yield engine


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of this machine's temporary files: empty, and with a short name for sockets."""
    with tempfile.TemporaryDirectory(prefix="ts-") as folder:
        for name in ("TMPDIR", "XDG_RUNTIME_DIR"):
            monkeypatch.setenv(name, folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own, of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        unavailable("mounts", f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
