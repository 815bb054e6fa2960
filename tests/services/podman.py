"""Podman with storage of its own, and the images of the Docker engine, made of the same trees."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import attrs

from tests.services.docker import PATH, image_archive
from tests.services.processes import Unavailable

_numbers = count()

# Podman's own are higher than those of this process may be, and not everybody may raise them.
_OPEN_FILES = min(1_024, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
_LIMITS = (f"--ulimit=nofile={_OPEN_FILES}:{_OPEN_FILES}", "--ulimit=nproc=4096:4096")


@attrs.define(eq=False)
class Podman:
    """A podman that shares nothing with any other: there is no server."""

    folder: Path
    """Where everything of it is."""
    driver: str = "overlay"
    """How it stores layers."""
    images: set[str] = attrs.Factory(set)
    """The images that were built until now."""

    @property
    def command(self) -> tuple[str, ...]:
        """The `podman` with that storage."""
        return (
            shutil.which("podman") or "podman",
            f"--root={self.folder}/root",
            f"--runroot={self.folder}/runroot",
            f"--tmpdir={self.folder}/tmp",
            f"--storage-driver={self.driver}",
            "--cgroup-manager=cgroupfs",
            "--events-backend=file",
        )

    @property
    def path(self) -> Path:
        """A folder for the front of PATH whose `podman` is `command`."""
        return self.folder / "bin"

    def podman(
        self, *arguments: str, stdin: bytes | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the `podman` program."""
        command = [*self.command, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"podman {' '.join(arguments)}: {done.stderr.decode()}")
        return done

    def image(self, name: str) -> str:
        """Build an image, once: any of the Docker engine's."""
        if name not in self.images:
            archive = image_archive(name, self.folder)
            self.podman("import", "--change", f"ENV PATH={PATH}", "-", name, stdin=archive)
            self.images.add(name)
        return f"localhost/{name}"

    @contextmanager
    def container(
        self, image: str = "busybox", *options: str, command: Sequence[str] = ("sleep", "1000000")
    ) -> Iterator[str]:
        """Start a container without a network, and remove it in the end. Yields its name."""
        name = f"sandbox-{os.getpid()}-{next(_numbers)}"
        options = ("--name", name, "--network=none", *_LIMITS, *options)
        try:
            self.podman("run", "--detach", *options, self.image(image), *command)
            yield name
        finally:
            self.podman("rm", "--force", "--time=0", "--volumes", name, check=False)

    def run(self, name: str, *command: str, user: str = "0") -> bytes:
        """Run a command in a container and return what it prints."""
        return self.podman("exec", "--user", user, name, *command).stdout


@contextmanager
def podman_engine() -> Iterator[Podman]:
    """Set up a podman. Raises `Unavailable` where it cannot start a container here."""
    for program in ("podman", "/bin/busybox"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed (podman, busybox-static)")
    with tempfile.TemporaryDirectory(prefix="ts-podman-", ignore_cleanup_errors=True) as folder:
        reasons = []
        for driver in ("overlay", "vfs"):
            engine = Podman(Path(folder, driver), driver)
            engine.path.mkdir(parents=True)
            wrapper = engine.path / "podman"
            wrapper.write_text(f'#!/bin/sh\nexec {" ".join(engine.command)} "$@"\n')
            wrapper.chmod(0o755)
            try:
                with engine.container() as name:
                    engine.run(name, "true")
            except AssertionError as exc:
                reasons.append(str(exc))
                continue
            try:
                yield engine
            finally:
                engine.podman("rm", "--all", "--force", "--time=0", check=False)
                engine.podman("rmi", "--all", "--force", check=False)
            return
        raise Unavailable("; ".join(reasons))
