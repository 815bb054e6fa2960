"""Hosts that cannot be reached, and connections that end: at once, clearly, and nothing is lost."""

from __future__ import annotations

import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from property_tests.test_install_properties import CancelAtStep
from tests.far_sides import a_long_time, clients, gone, litter, running
from tests.programs import PROGRAM
from tests.services import SshServer
from tests.services.cutting import Wire, tcp_wire
from tests.trees import make_skill, planned_tree, read_tree
from trio_skills import (
    InstallError,
    Plan,
    Runtime,
    RuntimeOpenError,
    TrioSkillsError,
    Upload,
    install,
    open_runtime,
    open_ssh,
    plan_skills,
)

pytestmark = [pytest.mark.ssh, pytest.mark.usefixtures("ssh_first_in_path")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "far side" / "skills"


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    noise = random.Random(1).randbytes(300_000)
    files = {f"x/{n}": noise for n in range(10)}
    return plan_skills([make_skill(tmp_path / "new" / "pdf", files)])


@pytest.fixture
def old(tmp_path: Path) -> Plan:
    return plan_skills([make_skill(tmp_path / "old" / "pdf", {"x/0": b"old", "only-old": b"1"})])


def configured(ssh: SshServer, tmp_path: Path, **changes: str) -> tuple[str, ...]:
    """Return an ssh command with another configuration than the server's own."""
    options = {
        "IdentityFile": f"{ssh.folder}/user",
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": f"{ssh.folder}/known",
        "GlobalKnownHostsFile": "none",
        **changes,
    }
    config = tmp_path / "config"
    config.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
    return ("ssh", "-F", str(config))


async def refused(
    *command: str, host: str = "127.0.0.1", port: int | None = None, within: float = 5
) -> str:
    """Return the reason for which a host could not be opened."""
    with trio.fail_after(within), pytest.raises(RuntimeOpenError) as caught:
        async with open_ssh(host, "/nowhere", port=port, command=command):
            pytest.fail("it was opened")
    return caught.value.reason


class TestOpening:
    async def test_an_unknown_host_key(self, ssh: SshServer, tmp_path: Path) -> None:
        command = configured(ssh, tmp_path, UserKnownHostsFile=f"{tmp_path}/none")
        reason = await refused(*command, port=ssh.port)
        assert "Host key verification failed" in reason
        assert re.search("by hand|known_hosts|ssh-keyscan", reason)
        assert not (tmp_path / "none").exists()

    async def test_an_unknown_host_key_is_not_accepted_since_the_user_would(
        self, ssh: SshServer, tmp_path: Path
    ) -> None:
        """`ask` is the default; with BatchMode it must be a refusal, not a question."""
        options = {"UserKnownHostsFile": f"{tmp_path}/none", "StrictHostKeyChecking": "ask"}
        command = configured(ssh, tmp_path, **options)
        assert "Host key verification failed" in await refused(*command, port=ssh.port)

    async def test_a_host_key_that_has_changed(self, ssh: SshServer, tmp_path: Path) -> None:
        other = (ssh.folder / "wrong.pub").read_text()
        (tmp_path / "known").write_text(f"[127.0.0.1]:{ssh.port} {other}")
        command = configured(ssh, tmp_path, UserKnownHostsFile=f"{tmp_path}/known")
        reason = await refused(*command, port=ssh.port)
        assert "has changed" in reason
        assert "accept" not in reason

    async def test_a_key_that_is_not_accepted(self, ssh: SshServer, tmp_path: Path) -> None:
        command = configured(ssh, tmp_path, IdentityFile=f"{ssh.folder}/wrong")
        reason = await refused(*command, port=ssh.port)
        assert "Permission denied" in reason
        assert re.search("key.*(agent|configuration)", reason)

    async def test_a_key_with_a_passphrase_is_not_asked_for(
        self, ssh: SshServer, tmp_path: Path
    ) -> None:
        key = tmp_path / "key"
        key.write_bytes((ssh.folder / "user").read_bytes())
        key.chmod(0o600)
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", key], check=True)
        reason = await refused(*configured(ssh, tmp_path, IdentityFile=str(key)), port=ssh.port)
        assert "Permission denied" in reason

    async def test_a_port_that_is_closed(self, ssh: SshServer) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        await listener.aclose()
        reason = await refused(*ssh.command, port=port)
        assert "Connection refused" in reason
        assert str(port) in reason

    async def test_a_host_that_does_not_resolve(self, ssh: SshServer) -> None:
        reason = await refused(*ssh.command, host="no-such-host.invalid", within=20)
        assert "Could not resolve hostname no-such-host.invalid" in reason

    async def test_a_user_who_does_not_exist(self, ssh: SshServer) -> None:
        reason = await refused(*ssh.command, host="no-such-user@127.0.0.1", port=ssh.port)
        assert "Permission denied" in reason

    async def test_no_ssh_program(self) -> None:
        assert "no-such-ssh" in await refused("no-such-ssh")

    async def test_what_is_no_ssh_server(self, ssh: SshServer) -> None:
        async def answer(stream: trio.SocketStream) -> None:
            await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await stream.aclose()

        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, answer, listeners)
            port = listeners[0].socket.getsockname()[1]
            assert re.search("(?i)connection|banner", await refused(*ssh.command, port=port))
            nursery.cancel_scope.cancel()

    async def test_an_account_that_may_run_nothing(self, ssh: SshServer, tmp_path: Path) -> None:
        """`/usr/sbin/nologin` says so and ends."""
        command = configured(ssh, tmp_path)
        nologin = tmp_path / "ssh"
        nologin.write_text(
            "#!/bin/sh\n"
            'for last; do :; done\nexec /usr/bin/env echo "This account is not available."\n'
        )
        nologin.chmod(0o755)
        assert await refused(str(nologin), *command[1:])

    async def test_nothing_is_left_after_a_refusal(self, ssh: SshServer, temporary: Path) -> None:
        await refused(*ssh.command, host="no-such-user@127.0.0.1", port=ssh.port)
        assert os.listdir(temporary) == []
        assert clients(ssh) == []

    @pytest.mark.parametrize("changes", [{"UserKnownHostsFile": "/dev/null"}, {"IdentityFile": ""}])
    def test_nothing_is_asked_on_a_terminal(
        self, ssh: SshServer, tmp_path: Path, changes: dict[str, str]
    ) -> None:
        """`ssh` asks there even where input and output are pipes."""
        if "IdentityFile" in changes:
            changes = {"IdentityFile": f"{ssh.folder}/wrong"}
        command = configured(ssh, tmp_path, **changes)
        folder = tmp_path / "bin"
        folder.mkdir()
        path = os.environ["PATH"]
        script = f'#!/bin/sh\nPATH={path}\nexec {" ".join(command)} "$@"\n'
        (folder / "ssh").write_text(script)
        (folder / "ssh").chmod(0o755)
        make_skill(tmp_path / "pdf")
        program = [*PROGRAM, "install", f"{tmp_path}/pdf", "--to", ssh.url("/nowhere")]
        code, shown = on_a_terminal(program, {"PATH": f"{folder}:{path}"})
        assert code == 2, shown
        assert "cannot open ssh://" in shown
        assert not re.search(r"yes/no|password:|passphrase", shown)


def on_a_terminal(command: list[str], env: dict[str, str]) -> tuple[int, str]:
    """Run a command that has a terminal of its own, on which nobody types."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, {**os.environ, **env})
    shown = b""
    deadline = time.monotonic() + 20
    try:
        while time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.1)[0]:
                chunk = os.read(terminal, 10_000)
                shown += chunk
                if not chunk:
                    break
    except OSError:  # it has ended
        pass
    else:
        os.kill(pid, signal.SIGKILL)
    finally:
        os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


@asynccontextmanager
async def wired(ssh: SshServer, root: Path) -> AsyncIterator[tuple[Runtime, Wire]]:
    """Open a connection by way of a wire."""
    alias = f"-oHostKeyAlias=[127.0.0.1]:{ssh.port}"
    async with tcp_wire(ssh.port) as wire:
        host = f"{ssh.user}@127.0.0.1"
        command = (*ssh.command, alias)
        async with open_ssh(host, str(root), port=wire.port, command=command) as runtime:
            yield runtime, wire


class TestCutting:
    @pytest.fixture(autouse=True)
    def whole(self, old: Plan, root: Path) -> None:
        async def put() -> None:
            async with open_runtime(root) as runtime:
                await install(old, runtime)

        trio.run(put)

    async def measure(self, ssh: SshServer, plan: Plan, root: Path) -> int:
        """Return how many bytes the client sends for an install."""
        async with wired(ssh, root.parent / "elsewhere") as (runtime, wire):
            before = wire.sent
            await install(plan, runtime, existing="replace")
            return wire.sent - before

    @pytest.mark.parametrize("percent", [0, 50, 99])
    async def test_a_packed_write_is_a_failure_and_the_old_folder_stays(
        self, ssh: SshServer, plan: Plan, old: Plan, root: Path, percent: int
    ) -> None:
        size = await self.measure(ssh, plan, root)
        async with wired(ssh, root) as (runtime, wire):
            wire.cut_after = wire.sent + 1 + size * percent // 100
            with trio.fail_after(10):
                with pytest.raises(InstallError) as caught:
                    await install(plan, runtime, existing="replace")
                report = caught.value.report
                assert {o.target for o in report.failed} == {u.target for u in plan.uploads}
                assert re.search("connection", str(caught.value.exceptions[0]))
                with pytest.raises((TrioSkillsError, OSError), match="connection"):
                    await runtime.run(["true"], {})
        await gone(str(root))
        assert read_tree(root) == planned_tree(old)
        assert litter(root) == []

    async def test_after_the_last_byte_it_is_old_or_new_and_no_success_that_is_none(
        self, ssh: SshServer, plan: Plan, old: Plan, root: Path
    ) -> None:
        """What is sent last is the end of the archive, the end of input, and the farewell."""
        size = await self.measure(ssh, plan, root)
        failures = 0
        for before_the_end in (2_000, 600, 300, 150, 100, 60, 30, 0):
            async with wired(ssh, root) as (runtime, wire):
                wire.cut_after = wire.sent + size - before_the_end
                succeeded = False
                with trio.fail_after(10), suppress(InstallError):
                    await install(plan, runtime, existing="replace")
                    succeeded = True
            await gone(str(root))
            there = read_tree(root)
            new = planned_tree(plan)
            assert there == new or (not succeeded and there == planned_tree(old))
            assert litter(root) == []
            failures += not succeeded
            async with open_runtime(ssh.url(str(root))) as runtime:
                await install(old, runtime, existing="replace")
        assert failures >= 2

    async def test_single_files_are_whole_and_the_report_says_which(
        self, ssh: SshServer, plan: Plan, old: Plan, root: Path
    ) -> None:
        size = await self.measure(ssh, plan, root)
        async with wired(ssh, root) as (runtime, wire):
            wire.cut_after = wire.sent + size // 2
            with trio.fail_after(20), pytest.raises(InstallError) as caught:
                await install(plan, runtime, strategy="sequential")
        await gone(str(root))
        there, planned = read_tree(root), planned_tree(plan)
        for outcome in caught.value.report.written:
            assert there[outcome.target] == planned[outcome.target]
        # Without their bits: those are set when all was written.
        for target, content in there.items():
            assert content in (planned.get(target), planned_tree(old).get(target))
        assert litter(root) == []

    async def test_a_command_fails(self, ssh: SshServer, root: Path) -> None:
        long = a_long_time()
        async with wired(ssh, root) as (runtime, wire), trio.open_nursery() as nursery:

            @nursery.start_soon
            async def cut() -> None:
                await running("sleep", long)
                wire.cut()

            with trio.fail_after(5), pytest.raises(TrioSkillsError, match="connection"):
                await runtime.run(["sleep", long], {})
        await gone(long)


class TestClosing:
    async def test_nothing_is_left(
        self, ssh: SshServer, plan: Plan, root: Path, temporary: Path
    ) -> None:
        descriptors = len(os.listdir("/proc/self/fd"))
        async with open_runtime(ssh.url(str(root))) as runtime:
            await install(plan, runtime, verify=True)
            assert clients(ssh) != []
        assert clients(ssh) == []
        assert os.listdir(temporary) == []
        assert len(os.listdir("/proc/self/fd")) == descriptors
        await gone(str(root), within=2)

    async def test_what_still_runs_there_ends_with_it(
        self, ssh: SshServer, root: Path, temporary: Path
    ) -> None:
        """As when a test or a rollout is cancelled as a whole."""
        long = a_long_time()
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def use() -> None:
                async with open_runtime(ssh.url(str(root))) as runtime:
                    await runtime.run(["sleep", long], {})

            await running("sleep", long)
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began < 2
        assert clients(ssh) == []
        assert os.listdir(temporary) == []
        await gone(long, within=1)

    async def test_cancelled_while_it_is_opened(self, ssh: SshServer, temporary: Path) -> None:
        """The server accepts, and says nothing."""
        reached = trio.Event()

        async def say_nothing(stream: trio.SocketStream) -> None:
            reached.set()
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, say_nothing, listeners)
            port = listeners[0].socket.getsockname()[1]

            @nursery.start_soon
            async def use() -> None:
                async with open_runtime(ssh.url("/nowhere", port)):
                    pytest.fail("it was opened")

            with trio.fail_after(10):
                await reached.wait()
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began < 1
        assert clients(ssh) == []
        assert os.listdir(temporary) == []

    def test_cancelled_at_any_step(
        self, ssh: SshServer, plan: Plan, root: Path, temporary: Path
    ) -> None:
        async def main(instrument: CancelAtStep) -> None:
            with instrument.scope:
                async with open_runtime(ssh.url(str(root))) as runtime:
                    await install(plan, runtime, existing="replace")

        whole = CancelAtStep(10**9)
        trio.run(main, whole, instruments=[whole])
        steps = 10**9 - whole.left
        for step in sorted(random.Random(1).sample(range(1, steps), min(25, steps - 1))):
            instrument = CancelAtStep(step)
            trio.run(main, instrument, instruments=[instrument])
            assert clients(ssh) == []
            assert os.listdir(temporary) == []
        trio.run(gone, str(root))
        assert read_tree(root) == planned_tree(plan)
        assert litter(root) == []

    async def test_killed_the_process_takes_its_connection_with_it(
        self, ssh: SshServer, root: Path, temporary: Path
    ) -> None:
        long = a_long_time()
        program = (
            "import sys, trio, trio_skills\n"
            "async def main():\n"
            "    async with trio_skills.open_runtime(sys.argv[1]) as runtime:\n"
            "        await runtime.run(['sleep', sys.argv[2]], {})\n"
            "trio.run(main)\n"
        )
        with subprocess.Popen([sys.executable, "-c", program, ssh.url(str(root)), long]) as process:
            try:
                await running("sleep", long)
                assert clients(ssh) != []
            finally:
                process.kill()
        await gone("ssh", str(ssh.config), within=5)
        await gone(long, within=5)
        await gone(str(root), within=5)

    async def test_a_connection_that_is_killed_in_between_is_an_error(
        self, ssh: SshServer, plan: Plan, old: Plan, root: Path, temporary: Path
    ) -> None:
        async with open_runtime(ssh.url(str(root))) as runtime:
            await install(old, runtime)
            before = ssh.logins
            for pid in clients(ssh):
                os.kill(pid, signal.SIGKILL)
            with trio.fail_after(5):
                with pytest.raises(InstallError, match="connection"):
                    await install(plan, runtime, existing="replace")
                with pytest.raises(InstallError, match="connection"):
                    await install(plan, runtime)
                with pytest.raises(TrioSkillsError, match="connection"):
                    await runtime.run(["true"], {})
            assert ssh.logins == before
        assert read_tree(root) == planned_tree(old)
        assert os.listdir(temporary) == []

    async def test_a_connection_that_is_killed_while_a_command_runs_is_an_error(
        self, ssh: SshServer, root: Path
    ) -> None:
        long = a_long_time()
        async with open_runtime(ssh.url(str(root))) as runtime, trio.open_nursery() as nursery:
            master = clients(ssh)

            @nursery.start_soon
            async def cut() -> None:
                await running("sleep", long)
                for pid in master:
                    os.kill(pid, signal.SIGKILL)

            with trio.fail_after(5), pytest.raises(TrioSkillsError, match="connection"):
                await runtime.run(["sleep", long], {})
        await gone(long, within=2)

    async def test_two_connections_to_one_host_know_nothing_of_each_other(
        self, ssh: SshServer, root: Path
    ) -> None:
        upload = Upload.of("a", b"1")
        async with open_runtime(ssh.url(str(root / "one"))) as one:
            async with open_runtime(ssh.url(str(root / "two"))) as two:
                await two.write("a", b"2")
            await one.write(upload.target, b"1")
        assert {path: data for path, (data, _) in read_tree(root).items()} == {
            "one/a": b"1",
            "two/a": b"2",
        }
