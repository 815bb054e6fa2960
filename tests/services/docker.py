"""A Docker engine of our own, and images that are made from this machine's programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import attrs

from tests.services.processes import Unavailable, service

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_numbers = count()


@attrs.define(eq=False)
class Engine:
    """A running `dockerd` without a network."""

    folder: Path
    """Where everything of it is."""
    images: set[str] = attrs.Factory(set)
    """The images that were built until now."""

    @property
    def socket(self) -> Path:
        return self.folder / "docker.sock"

    @property
    def host(self) -> str:
        """What `DOCKER_HOST` has to be."""
        return f"unix://{self.socket}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment for programs that talk to it."""
        return {**os.environ, "DOCKER_HOST": self.host, "DOCKER_CONFIG": str(self.folder / "none")}

    def docker(
        self,
        *arguments: str,
        input: bytes | None = None,  # noqa: A002  # as in `subprocess`
        check: bool = True,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the `docker` program."""
        done = subprocess.run(
            ["docker", *arguments],
            env=self.environment,
            input=input,
            capture_output=True,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"docker {' '.join(arguments)}: {done.stderr.decode()}")
        return done

    def image(self, name: str) -> str:
        """Build an image, once: `busybox`, `debian`, `no-tar`, `no-shell`, `with-skill`.

        `with-skill` is `debian` with a skill in the image itself: /root/.agents/skills/baked, which
        an overlay file system cannot rename.
        """
        if name not in self.images:
            archive = image_archive(name, self.folder)
            self.docker("import", "--change", f"ENV PATH={PATH}", "-", name, input=archive)
            self.images.add(name)
        return name

    @contextmanager
    def container(
        self,
        image: str = "busybox",
        *options: str,
        command: Sequence[str] = ("sleep", "1000000"),
        named: str | None = None,
    ) -> Iterator[str]:
        """Start a container without a network, and remove it in the end. Yields its name."""
        name = named or f"sandbox-{os.getpid()}-{next(_numbers)}"
        options = ("--name", name, "--network", "none", *options)
        try:
            self.docker("run", "--detach", *options, self.image(image), *command)
            yield name
        finally:
            self.docker("rm", "--force", "--volumes", name, check=False)

    def run(self, name: str, *command: str, user: str = "0") -> bytes:
        """Run a command in a container and return what it prints."""
        return self.docker("exec", "--user", user, name, *command).stdout


@contextmanager
def docker_engine() -> Iterator[Engine]:
    """Run an engine. Raises `Unavailable` where this machine cannot have one."""
    for program in ("dockerd", "docker", "/bin/busybox"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed (docker.io, busybox-static)")
    # Short: the path of a Unix socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ts-docker-", ignore_cleanup_errors=True) as folder:
        engine = Engine(Path(folder))
        command = [
            "dockerd",
            f"--host={engine.host}",
            f"--data-root={folder}/data",
            f"--exec-root={folder}/exec",
            f"--pidfile={folder}/pid",
            "--bridge=none",
            "--iptables=false",
            "--ip6tables=false",
        ]

        def is_up() -> bool:
            return engine.docker("version", check=False).returncode == 0

        try:
            with service(command, engine.folder / "log", is_up):
                yield engine
        finally:
            # It stays mounted, and the folder could not be removed.
            mounted = engine.folder / "exec" / "netns" / "default"
            subprocess.run(["umount", "--lazy", mounted], capture_output=True, check=False)


def image_archive(name: str, folder: Path) -> bytes:
    """Return the files of an image as a tar; they are made in a folder of `folder`."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        tree = Path(made) / name
        make_tree(name, tree)
        command = ["tar", "-C", str(tree), "-c", "."]
        return subprocess.run(command, capture_output=True, check=True).stdout


def make_tree(name: str, tree: Path) -> None:
    """Make the file system of an image."""
    _TREES[name](tree)


def _busybox(tree: Path) -> None:
    _common(tree)
    (tree / "bin").mkdir()
    shutil.copy("/bin/busybox", tree / "bin" / "busybox")
    applets = subprocess.run(
        ["/bin/busybox", "--list"], capture_output=True, text=True, check=True
    ).stdout.split()
    for applet in applets:
        if applet != "busybox":
            (tree / "bin" / applet).symlink_to("busybox")


def _no_tar(tree: Path) -> None:
    _debian(tree)
    (tree / "usr/bin/tar").unlink()


def _no_shell(tree: Path) -> None:
    _common(tree)
    (tree / "bin").mkdir()
    shutil.copy("/bin/busybox", tree / "bin" / "sleep")


def _debian(tree: Path) -> None:
    """Copy dash, bash, GNU tar, coreutils and findutils, with their libraries."""
    _common(tree)
    for folder in ("bin", "lib", "lib64", "sbin"):
        (tree / "usr" / folder).mkdir(parents=True)
        (tree / folder).symlink_to(f"usr/{folder}")
    listed = subprocess.run(
        ["dpkg", "-L", "dash", "bash", "tar", "coreutils", "findutils", "procps", "util-linux"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    programs = [
        path
        for path in map(Path, listed)
        if path.parent in (Path("/bin"), Path("/usr/bin")) and path.is_file()
    ]
    for path in programs:
        target = tree / "usr/bin" / path.name
        if path.is_symlink():
            target.symlink_to(os.readlink(path))
        else:
            shutil.copy(path, target)
    if not (tree / "usr/bin/sh").exists():
        (tree / "usr/bin/sh").symlink_to("dash")
    for library in _libraries(programs):
        target = (
            tree / "usr" / library.relative_to("/usr" if library.is_relative_to("/usr") else "/")
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library.resolve(), target)


def _libraries(programs: Sequence[Path]) -> set[Path]:
    found = subprocess.run(
        ["ldd", *programs], capture_output=True, text=True, check=False
    ).stdout.split()
    return {Path(word) for word in found if word.startswith("/") and ".so" in word}


def _with_skill(tree: Path) -> None:
    _debian(tree)
    skill = tree / "root/.agents/skills/baked"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: baked\ndescription: In the image.\n---\nold\n")
    (skill / "only-old.txt").write_text("old\n")


def _common(tree: Path) -> None:
    for folder in ("tmp", "etc", "root", "home/agent", "proc", "sys", "dev"):
        (tree / folder).mkdir(parents=True)
    (tree / "tmp").chmod(0o1777)
    os.chown(tree / "home/agent", 1000, 1000)
    (tree / "etc/passwd").write_text(
        "root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n"
    )
    (tree / "etc/group").write_text("root:x:0:\nagent:x:1000:\n")


_TREES: dict[str, Callable[[Path], None]] = {
    "busybox": _busybox,
    "debian": _debian,
    "no-tar": _no_tar,
    "no-shell": _no_shell,
    "with-skill": _with_skill,
}
