"""An ssh server of our own on 127.0.0.1, with keys of its own, and the client's configuration."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from getpass import getuser
from pathlib import Path

import attrs

from tests.services.processes import Unavailable, service


@attrs.define(eq=False)
class SshServer:
    """A running `sshd` with its default `MaxSessions`, which is 10."""

    folder: Path
    """Where everything of it is."""
    port: int
    """Where it listens: a plain account."""
    banner_port: int
    """The same account with a login shell that prints a banner before anything else."""
    no_tar_port: int
    """The same account with a PATH that has no `tar`."""
    world_port: int
    """The same account with a PATH that is `world`."""
    user: str = attrs.field(factory=getuser, kw_only=True)
    """Who may log in."""

    @property
    def config(self) -> Path:
        """The client's configuration: its key, and the hosts that it knows."""
        return self.folder / "client"

    @property
    def command(self) -> tuple[str, ...]:
        """The `ssh` that may log in."""
        return ("ssh", "-F", str(self.config))

    @property
    def home(self) -> Path:
        """The account's home folder, as its shell sees it."""
        return self.folder / "home"

    @property
    def world(self) -> Path:
        """A folder of programs, to be changed: at first it has none."""
        return self.folder / "world"

    @property
    def path(self) -> Path:
        """A folder for the front of PATH whose `ssh` is `command`."""
        return self.folder / "bin"

    def url(self, path: str, port: int | None = None) -> str:
        return f"ssh://{self.user}@127.0.0.1:{port or self.port}{path}"

    @property
    def log(self) -> str:
        """What the server has logged."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def logins(self) -> int:
        """How many connections were let in until now."""
        return self.log.count("Accepted publickey")


@contextmanager
def ssh_server() -> Iterator[SshServer]:
    """Run a server. Raises `Unavailable` where this machine cannot have one."""
    sshd = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
    if sshd is None or shutil.which("ssh") is None:
        raise Unavailable("ssh is not installed (openssh-server, openssh-client)")
    with tempfile.TemporaryDirectory(prefix="ts-ssh-") as name:
        folder = Path(name)
        ports = _free_ports(4)
        server = SshServer(folder, *ports)
        for key in ("host", "user", "wrong"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(command, check=True)
        _configure(server)
        Path("/run/sshd").mkdir(exist_ok=True)  # where it drops its privileges
        command = [sshd, "-D", "-e", "-f", str(folder / "server")]
        with service(command, folder / "log", lambda: all(map(_listens, ports))):
            yield server


def _configure(server: SshServer) -> None:
    folder = server.folder
    server.home.mkdir()
    server.world.mkdir()
    without_tar = folder / "without-tar"
    without_tar.mkdir()
    programs = ("sh", "cat", "mkdir", "mv", "rm", "chmod", "sha256sum", "wc", "ls", "stat", "head")
    for program in (*programs, "sleep", "setsid", "cp", "find", "env"):
        (without_tar / program).symlink_to(shutil.which(program) or f"/bin/{program}")
    ports = (server.port, server.banner_port, server.no_tar_port, server.world_port)
    (folder / "server").write_text(
        "\n".join(
            [
                *(f"ListenAddress 127.0.0.1:{port}" for port in ports),
                f"HostKey {folder}/host",
                f"AuthorizedKeysFile {folder}/user.pub",
                f"PidFile {folder}/pid",
                "StrictModes no",
                "UsePAM no",
                "PasswordAuthentication no",
                "KbdInteractiveAuthentication no",
                "PermitRootLogin prohibit-password",
                "LogLevel VERBOSE",
                "MaxStartups 100",
                f"SetEnv HOME={folder}/home",
                f"Match LocalPort {server.banner_port}",
                (
                    "  ForceCommand echo 'Welcome! $(date) is a fine day'; echo careful >&2; "
                    'eval "$SSH_ORIGINAL_COMMAND"'
                ),
                f"Match LocalPort {server.no_tar_port}",
                f'  ForceCommand PATH={without_tar} eval "$SSH_ORIGINAL_COMMAND"',
                f"Match LocalPort {server.world_port}",
                f'  ForceCommand PATH={server.world} eval "$SSH_ORIGINAL_COMMAND"',
                "",
            ]
        )
    )
    host_key = (folder / "host.pub").read_text().strip()
    (folder / "known").write_text("".join(f"[127.0.0.1]:{port} {host_key}\n" for port in ports))
    (folder / "client").write_text(
        f"IdentityFile {folder}/user\nIdentitiesOnly yes\n"
        f"UserKnownHostsFile {folder}/known\nGlobalKnownHostsFile none\n"
    )
    server.path.mkdir()
    wrapper = server.path / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {server.config} "$@"\n')
    wrapper.chmod(0o755)


def _free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
