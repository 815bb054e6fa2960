"""Engines and containers that cannot be reached: the error says what to do."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.containers import DEST, put, read_container
from tests.programs import MINDS_PERMISSIONS, WITHOUT_POWERS, run
from tests.services import Engine
from tests.trees import make_skill, planned_tree
from trio_skills import InstallError, Plan, RuntimeOpenError, install, open_runtime, plan_skills
from trio_skills.runtimes.docker import open_docker

pytestmark = pytest.mark.docker


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return plan_skills([make_skill(tmp_path / "source" / "pdf", {"bin/go": (b"1", True)})])


@pytest.fixture
def container(docker: Engine) -> Iterator[str]:
    with docker.container() as name:
        yield name


async def opening(container: str, host: str | None) -> str:
    """Return why a container cannot be opened."""
    with pytest.raises(RuntimeOpenError) as caught:
        async with open_docker(container, "/skills", host=host):
            pass
    return caught.value.reason


class TestContainers:
    async def test_one_that_is_missing_is_named(self, docker: Engine) -> None:
        reason = await opening("nowhere", docker.host)
        assert "nowhere" in reason
        assert "no such container" in reason.lower()

    async def test_one_that_is_stopped_has_to_be_started(
        self, docker: Engine, container: str
    ) -> None:
        docker.docker("kill", container)
        assert "docker start" in await opening(container, docker.host)

    async def test_one_that_was_never_started_has_to_be_started(
        self, docker: Engine, container: str
    ) -> None:
        created = docker.docker("create", "busybox", "sleep", "1").stdout.decode().strip()
        try:
            assert "docker start" in await opening(created, docker.host)
        finally:
            docker.docker("rm", created)

    async def test_one_that_is_paused_has_to_be_unpaused(
        self, docker: Engine, container: str
    ) -> None:
        docker.docker("pause", container)
        try:
            assert "docker unpause" in await opening(container, docker.host)
        finally:
            docker.docker("unpause", container)

    async def test_one_that_stops_after_it_was_opened_fails_every_file(
        self, docker: Engine, plan: Plan, container: str
    ) -> None:
        async with open_docker(container, "/skills", host=docker.host) as runtime:
            docker.docker("kill", container)
            with pytest.raises(InstallError, match=r"(?i)not running|stopped") as caught:
                await install(plan, runtime)
        assert caught.value.report.written == ()

    async def test_one_that_was_started_again_is_as_good_as_before(
        self, docker: Engine, plan: Plan, container: str
    ) -> None:
        async with open_docker(container, "/skills", host=docker.host) as runtime:
            await install(plan, runtime)
            docker.docker("restart", "--time=0", container)
            await install(plan, runtime, existing="replace")
        assert read_container(docker, container, "/skills") == planned_tree(plan)

    async def test_a_user_that_is_not_there_is_named(
        self, docker: Engine, container: str, plan: Plan
    ) -> None:
        with pytest.raises((RuntimeOpenError, InstallError), match="nobody-at-all"):
            await put(plan, docker, container, user="nobody-at-all")
        assert read_container(docker, container, DEST) == {}


class TestUrls:
    @pytest.mark.parametrize("url", ["docker:", "docker://", "docker:///skills", "docker:name"])
    def test_one_without_a_container_is_refused_by_the_call(self, url: str) -> None:
        with pytest.raises(RuntimeOpenError, match="docker://"):
            open_runtime(url)

    @pytest.mark.parametrize("url", ["docker://a/b?usr=x", "docker://a/b?user="])
    def test_one_that_is_malformed_is_refused_by_the_call(self, url: str) -> None:
        with pytest.raises(RuntimeOpenError, match="cannot open docker://a/"):
            open_runtime(url)


class TestHosts:
    @pytest.mark.parametrize(
        "host",
        ["nonsense", "unix:", "unix://", "tcp://", "tcp://[::1", "tcp://host:port", "ftp://x"],
    )
    async def test_one_that_is_malformed_is_named(
        self, monkeypatch: pytest.MonkeyPatch, host: str
    ) -> None:
        monkeypatch.setenv("DOCKER_HOST", host)
        reason = await opening("any", None)
        assert "DOCKER_HOST" in reason
        assert host in reason

    async def test_a_socket_that_is_missing_is_named(self, tmp_path: Path) -> None:
        reason = await opening("any", f"unix://{tmp_path}/nowhere.sock")
        assert f"{tmp_path}/nowhere.sock" in reason
        assert "No such file" in reason

    async def test_a_socket_that_nobody_answers_is_named(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / "dead.sock"))
        reason = await opening("any", f"unix://{tmp_path}/dead.sock")
        assert f"{tmp_path}/dead.sock" in reason
        assert "refused" in reason

    async def test_a_port_that_is_closed_is_named(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        reason = await opening("any", f"tcp://127.0.0.1:{port}")
        assert f"127.0.0.1:{port}" in reason

    async def test_what_is_no_engine_is_said(self, tmp_path: Path) -> None:
        """A server that answers, but not as an engine does."""
        path = tmp_path / "other.sock"
        with serving(path, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"):
            assert str(path) in await opening("any", f"unix://{path}")
        path = tmp_path / "ssh.sock"
        with serving(path, b"SSH-2.0-OpenSSH_9.2\r\n"):
            assert str(path) in await opening("any", f"unix://{path}")

    def test_the_command_line_says_it(self, plan: Plan, tmp_path: Path) -> None:
        host = f"unix://{tmp_path}/nowhere.sock"
        source = plan.skills[0].folder
        ended = run("install", source, "--to", "docker://any/skills", env={"DOCKER_HOST": host})
        assert ended.returncode == 2
        assert "cannot open docker://any" in ended.stderr
        assert "nowhere.sock" in ended.stderr

    def test_without_one_it_is_the_default_socket(self, plan: Plan, tmp_path: Path) -> None:
        """No such container, where this machine has an engine; else no such engine."""
        command = ["install", plan.skills[0].folder, "--to", "docker://nowhere-at-all/skills"]
        nothing = {"DOCKER_HOST": "", "DOCKER_CONTEXT": "", "DOCKER_CONFIG": str(tmp_path)}
        ended = run(*map(str, command), env=nothing)
        assert ended.returncode == 2
        if Path("/var/run/docker.sock").exists():
            assert "nowhere-at-all" in ended.stderr
        else:
            assert "/var/run/docker.sock" in ended.stderr

    @pytest.mark.skipif(not MINDS_PERMISSIONS, reason="root ignores permissions")
    def test_without_permission_it_says_so(self, plan: Plan, tmp_path: Path) -> None:
        path = tmp_path / "docker.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            path.chmod(0)
            ended = run(
                *("install", plan.skills[0].folder, "--to", "docker://any/skills"),
                before=WITHOUT_POWERS,
                env={"DOCKER_HOST": f"unix://{path}"},
            )
        assert ended.returncode == 2
        assert "ermission denied" in ended.stderr
        assert "docker.sock" in ended.stderr


class TestContexts:
    """https://docs.docker.com/engine/manage-resources/contexts/"""

    @pytest.fixture
    def config(self, docker: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A configuration with a context `ours`, which is not the current one."""
        folder = tmp_path / "config"
        meta = folder / "contexts" / "meta" / hashlib.sha256(b"ours").hexdigest() / "meta.json"
        meta.parent.mkdir(parents=True)
        meta.write_text(
            json.dumps(
                {
                    "Name": "ours",
                    "Metadata": {},
                    "Endpoints": {"docker": {"Host": docker.host, "SkipTLSVerify": False}},
                }
            )
        )
        monkeypatch.delenv("DOCKER_HOST", raising=False)
        monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
        monkeypatch.setenv("DOCKER_CONFIG", str(folder))
        return folder

    async def test_the_current_one_is_used(
        self, docker: Engine, config: Path, container: str, plan: Plan
    ) -> None:
        (config / "config.json").write_text('{"currentContext": "ours"}')
        async with open_runtime(f"docker://{container}/skills") as runtime:
            await install(plan, runtime)
        assert read_container(docker, container, "/skills") == planned_tree(plan)

    async def test_the_one_of_the_environment_comes_before_it(
        self, config: Path, container: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (config / "config.json").write_text('{"currentContext": "another"}')
        monkeypatch.setenv("DOCKER_CONTEXT", "ours")
        async with open_docker(container) as runtime:
            assert (await runtime.run(["true"], {})).exit_code == 0

    async def test_a_host_in_the_environment_comes_before_any(
        self, docker: Engine, config: Path, container: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (config / "config.json").write_text('{"currentContext": "another"}')
        monkeypatch.setenv("DOCKER_HOST", docker.host)
        async with open_docker(container) as runtime:
            assert (await runtime.run(["true"], {})).exit_code == 0

    async def test_one_that_is_missing_is_named(self, config: Path) -> None:
        (config / "config.json").write_text('{"currentContext": "another"}')
        assert "another" in await opening("any", None)

    @pytest.mark.parametrize("text", ["{", "\xff"])
    async def test_a_configuration_that_is_broken_is_named(self, config: Path, text: str) -> None:
        (config / "config.json").write_bytes(text.encode("latin-1"))
        assert "config.json" in await opening("any", None)

    @pytest.mark.parametrize("text", ["", "[]", '{"Endpoints": {}}', '{"Endpoints": 1}'])
    async def test_a_context_that_is_broken_is_named(self, config: Path, text: str) -> None:
        (config / "config.json").write_text('{"currentContext": "ours"}')
        for meta in config.glob("contexts/meta/*/meta.json"):
            meta.write_text(text)
        assert re.search(r"ours|meta\.json", await opening("any", None))


@contextmanager
def serving(path: Path, answer: bytes) -> Iterator[None]:
    """Answer every connection to a Unix socket, whatever it asks for."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    client.recv(65536)
                    client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
