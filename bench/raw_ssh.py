"""What installs over ssh are compared with: `ssh` itself, over a connection that is open."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import trio

from bench.workloads import targets, write_each
from tests.services import SshServer

# Files go there, ours and the others': making 128 of them on a busy disk takes 10 to 70 ms, which
# tells nothing of ssh.
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None

AT_ONCE = 8
"""Commands at once: sshd has at most 10 sessions over one connection (`MaxSessions`)."""


@attrs.frozen
class Host:
    """An ssh server on this machine, and a connection to it that `ssh` shares."""

    server: SshServer
    """The server."""
    command: tuple[str, ...]
    """The `ssh` that uses the connection, with the destination."""
    folder: Path
    """Where files go. It is on this machine: what arrived is seen without ssh."""

    @contextmanager
    def fresh(self, count: int) -> Iterator[Path]:
        """Yield a folder that is empty; in the end `count` files must be there, and are removed."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            yield folder
            there = sum(path.is_file() for path in folder.rglob("*"))
            assert there == count, f"{there} files of {count}"
        finally:
            shutil.rmtree(folder)


@contextmanager
def connected(server: SshServer) -> Iterator[Host]:
    """Open a connection, a `ControlMaster`, and close it in the end."""
    with tempfile.TemporaryDirectory(prefix="ts-bench-", dir=_MEMORY) as name:
        folder = Path(name)
        target = ["-p", str(server.port), f"{server.user}@127.0.0.1"]
        shared = (*server.command, "-o", f"ControlPath={folder}/master")
        # It returns when the connection is open, and leaves a process that holds it.
        master = [*shared, "-o", "ControlMaster=yes", "-N", "-f", *target]
        subprocess.run(master, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            yield Host(server, (*shared, *target), folder)
        finally:
            subprocess.run([*shared, "-O", "exit", *target], check=True, capture_output=True)


def tar_by_ssh(host: Host, skill: Path, count: int) -> float:
    """Run `tar -c | ssh tar -x`."""
    with host.fresh(count) as folder:
        start = time.perf_counter()
        packing = subprocess.Popen(
            ["tar", "-c", "-C", skill.parent, skill.name], stdout=subprocess.PIPE
        )
        with packing:
            remote = shlex.join(["tar", "-x", "-C", str(folder)])
            subprocess.run([*host.command, remote], stdin=packing.stdout, check=True)
        assert packing.returncode == 0
        return time.perf_counter() - start


def ssh_per_file(host: Host, skill: Path, count: int, at_once: int) -> float:
    """Run `ssh` for each file, so many at once. The folders are there already."""
    limiter = trio.CapacityLimiter(at_once)

    async def write(path: Path, target: str) -> None:
        remote = f"cat > {shlex.quote(target)}"
        async with limiter:
            with path.open("rb") as source:
                await trio.run_process([*host.command, remote], stdin=source.fileno())

    with host.fresh(count) as folder:
        files = targets(skill, str(folder))
        for target in files.values():
            os.makedirs(os.path.dirname(target), exist_ok=True)
        return write_each(write, files)
