"""A host that is reached by the user's own `ssh`, with its configuration, keys and agent."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import final

import trio

from trio_skills import _far_side
from trio_skills._errors import CommandError, RuntimeOpenError
from trio_skills._far_side import Call
from trio_skills._printable import printable
from trio_skills._runtime import RunResult
from trio_skills._threads import in_thread
from trio_skills.runtimes._commanded import CommandedRuntime, Payload
from trio_skills.runtimes._processes import converse, end

_MAX_GREETING = 2**16
"""Bytes that a login may print before a command runs."""

_ATTEMPTS = 50
"""How often a command is sent, 0.1 s apart, that the server had no session for."""

MAX_CHANNELS = 8
"""Commands at once over one connection: sshd's default `MaxSessions` is 10, and what is beyond it
fails (ronf/asyncssh#244). The connection itself takes one."""

# Nothing may be asked, and nothing else of the user's configuration may begin with the connection.
_OPTIONS = (
    "-T",
    "-oIgnoreUnknown=ForkAfterAuthentication,SessionType,StdinNull",  # before OpenSSH 8.7
    "-oBatchMode=yes",
    "-oClearAllForwardings=yes",
    "-oControlPersist=no",
    "-oForkAfterAuthentication=no",
    "-oPermitLocalCommand=no",
    "-oRemoteCommand=none",
    "-oSessionType=default",
    "-oStdinNull=no",
)

_HINTS = {
    "IDENTIFICATION HAS CHANGED": "its key is not the one that is known: another host may answer",
    "Host key verification failed": "connect once by hand to see and accept its key",
    "Permission denied": "no key that it accepts is in the agent or the configuration",
}


@final
class SshRuntime(CommandedRuntime):
    """A host over one connection, which `open_ssh` opens and closes."""

    def __init__(
        self, prefix: Sequence[str], path: str, connection: trio.Process, log: str
    ) -> None:
        """Not public: `open_ssh` makes it."""
        super().__init__(path, MAX_CHANNELS)
        self._prefix = tuple(prefix)
        self._connection = connection
        self._log = log

    async def _execute(self, call: Call, payload: Payload) -> RunResult:
        result = RunResult(255)
        for _ in range(_ATTEMPTS):
            await trio.lowlevel.checkpoint()
            if self._connection.poll() is not None:
                break
            # A login shell reads it: this is the one place that quotes for a shell.
            command = [*self._prefix, shlex.join(call.argv)]
            result = await converse(command, payload, call.end)
            # 255 is `ssh`'s own, unless the command's: then its answer is whole.
            if result.exit_code != 255 or call.end in result.stdout:
                return result
            # The server counts a session for a moment after it has ended. Nothing was run.
            if b"open failed" not in result.stderr and b"refused by peer" not in result.stderr:
                break
            await trio.sleep(0.1)
        # What a command printed itself is nobody's business.
        own = result.stderr.partition(call.nonce.encode())[0]
        complaint = _last_lines(self._log) or own.decode("utf-8", "replace")
        raise CommandError(f"the ssh connection was lost: {_one_line(complaint)}")


@asynccontextmanager
async def open_ssh(
    destination: str,
    path: str = "",
    *,
    port: int | None = None,
    command: Sequence[str] = ("ssh",),
) -> AsyncIterator[SshRuntime]:
    """Open a connection, over which every command goes, and close it.

    Args:
        destination: `user@host`, or a name of the user's configuration.
        path: Where relative targets go; `~/skills` is in the home folder. By default that.
        port: The server's port, if it is not the configuration's.
        command: The ssh client and its options, as `("ssh", "-F", "config")`.

    The login shell there must be a POSIX shell; it may print what it likes. Nothing is asked on the
    terminal: keys come from the agent or the configuration, and the host's key must be known.

    Raises:
        RuntimeOpenError: The host cannot be reached, or does not let the user in.
    """
    url = f"ssh://{destination}" + (f":{port}" if port else "")
    if destination.startswith("-") or not destination:
        raise RuntimeOpenError(url, "no host's name begins with '-'")
    folder = await in_thread(_make_folder)
    try:
        shared = [*command, *_OPTIONS, "-S", f"{folder}/c", *(["-p", str(port)] if port else [])]
        connection = await _connect([*shared, "-M"], destination, url, f"{folder}/log")
        try:
            # Were the connection gone, `ssh` would make a new one for each command.
            prefix = [*shared, "-oControlMaster=no", "-oProxyCommand=exit 255", "--", destination]
            yield SshRuntime(prefix, path, connection, f"{folder}/log")
        finally:
            with trio.CancelScope(shield=True):
                await end(connection)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_folder() -> str:
    folder = tempfile.mkdtemp(prefix="trio-skills-")
    # A socket's path has at most 103 bytes, and ssh adds to it; and it expands what begins so.
    if len(folder) > 70 or "%" in folder or "$" in folder:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="trio-skills-", dir="/tmp")
    return folder


async def _connect(command: list[str], destination: str, url: str, log: str) -> trio.Process:
    """Return the process that holds the connection, when it is there.

    It holds a session of its own, whose input this process holds open: should this process be
    killed, that ends, and the connection with it.
    """
    # Every character that a shell could treat in another way than sh does.
    proof = "'\"\\ $x `y` *!\t#" + secrets.token_hex(4)
    call = _far_side.call("hold", ".", "", proof)
    with open(log, "wb") as file:  # noqa: ASYNC230  # a new file in a folder of its own
        try:
            process = await trio.lowlevel.open_process(
                [*command, "--", destination, shlex.join(call.argv)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,
            )
        except OSError as exc:
            raise RuntimeOpenError(url, f"cannot run {command[0]}: {exc.strerror}") from exc
    try:
        output = b""
        assert process.stdout  # noqa: S101  # a pipe
        async for chunk in process.stdout:
            output += chunk
            if call.end in output:
                break
            if len(output) > _MAX_GREETING:
                raise RuntimeOpenError(url, "the login there prints without an end")
        else:
            with trio.move_on_after(1):
                await process.wait()
            raise RuntimeOpenError(url, _reason(_last_lines(log)))
        answer = call.body(RunResult(0, output))
        if answer != proof.encode():
            reason = "the login shell there does not pass arguments on as they are; is it POSIX?"
            raise RuntimeOpenError(url, reason)
    except BaseException:
        with trio.CancelScope(shield=True):
            await end(process)
        raise
    return process


def _reason(complaint: str) -> str:
    hints = [hint for text, hint in _HINTS.items() if text in complaint]
    return "; ".join([_one_line(complaint) or "ssh ended without a reason", *hints[:1]])


def _last_lines(log: str) -> str:
    with suppress(OSError), open(log, errors="replace") as file:
        return file.read()[-1_000:]
    return ""


def _one_line(text: str) -> str:
    words = " ".join(text.split())
    return printable(words if len(words) < 500 else "… " + words[-500:].partition(" ")[2])
