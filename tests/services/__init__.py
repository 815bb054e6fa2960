"""Real sandboxes for the tests and the benchmark: an engine, an ssh server, and what cuts wires.

Each is a context manager that starts programs of its own, under a temporary folder, and ends
exactly those. `Unavailable` says what this machine lacks.
"""

from tests.services.docker import Engine, docker_engine
from tests.services.podman import Podman, podman_engine
from tests.services.processes import Unavailable
from tests.services.ssh import SshServer, ssh_server

__all__ = [
    "Engine",
    "Podman",
    "SshServer",
    "Unavailable",
    "docker_engine",
    "podman_engine",
    "ssh_server",
]
