"""From a URL to an opened sandbox."""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from urllib.parse import parse_qsl, unquote

import attrs
import trio

from trio_skills._errors import RuntimeOpenError
from trio_skills._runtime import Runtime
from trio_skills.runtimes.exec import ExecRuntime
from trio_skills.runtimes.local import open_local
from trio_skills.runtimes.ssh import open_ssh

Opened = AbstractAsyncContextManager[Runtime]


def open_runtime(url: str | os.PathLike[str]) -> Opened:
    """Return an async context manager that opens the sandbox which `url` names, and closes it.

    | URL | sandbox |
    |---|---|
    | a path, `local:/path`, `local:path`, `local:~/path` | a directory of this machine |
    | `docker://CONTAINER/path?user=USER` | a running container, by the Docker engine's interface |
    | `ssh://USER@HOST:PORT/path` | a host, by the user's own `ssh` |
    | `podman://CONTAINER/path?user=USER` | a running container, by `podman exec` |
    | `kubectl://POD/path?namespace=N&container=C&context=X` | a pod, by `kubectl exec` |
    | `apptainer://INSTANCE/path` | a running instance, by `apptainer exec` |
    | `exec:COMMAND WORDS` | anything: the words, split as a shell does, come before a command |

    The URL's path is where a plan's relative targets go; `/~/path` is in the home folder there, and
    without a path they go to where commands start. In a URL with `//`, `%20` is a space.

    Raises:
        RuntimeOpenError: The URL is malformed or of no known kind (raised by the call itself), or
            the sandbox cannot be reached (raised when the context is entered).
    """
    url = os.fspath(url)
    scheme, colon, rest = url.partition(":")
    if not colon or "/" in scheme:
        return _local(url, url)
    if scheme not in _OPENERS:
        known = ", ".join(f"{name}:" for name in SCHEMES)
        hint = "" if rest.startswith("//") else f" (or a path: ./{url})"
        reason = f"unknown kind of sandbox {scheme!r}; known: {known}{hint}"
        raise RuntimeOpenError(url, reason)
    return _OPENERS[scheme](url, rest)


@attrs.frozen
class _Address:
    """The parts of a URL with `//`."""

    url: str
    """All of it."""
    name: str
    """What comes before the path."""
    path: str
    """The path, as a runtime takes it."""
    options: Mapping[str, str]
    """What comes after `?`."""


def _address(url: str, rest: str, *options: str) -> _Address:
    """Take a URL apart. Raises `RuntimeOpenError` for an option that is none of `options`."""
    scheme = url.partition(":")[0]
    if not rest.startswith("//"):
        raise RuntimeOpenError(url, f"a name comes after two slashes: {scheme}://NAME/path")
    rest, _, query = rest[2:].partition("?")
    name, _, path = rest.partition("/")
    name, path = unquote(name), unquote(path)
    if not name or name.startswith("-") or "\0" in name + path:
        raise RuntimeOpenError(url, f"it names no sandbox: {scheme}://NAME/path")
    given = dict(parse_qsl(query, keep_blank_values=True))
    for option, value in given.items():
        if option not in options:
            known = ", ".join(options) or "none"
            raise RuntimeOpenError(url, f"unknown option {option!r}; known: {known}")
        if not value or value.startswith("-") or "\0" in value:
            raise RuntimeOpenError(url, f"the option {option!r} has no value that can be used")
    if path and not path.startswith("~/") and path != "~":
        path = "/" + path
    return _Address(url, name, path, given)


def _local(url: str, rest: str) -> Opened:
    if rest.startswith("///"):  # a host that is empty
        rest = rest[2:]
    if not rest:
        raise RuntimeOpenError(url, "it names no directory")
    if rest.startswith("//"):
        raise RuntimeOpenError(url, f"a directory has no host: write local:/{rest.lstrip('/')}")
    return open_local(os.path.expanduser(rest) if url.startswith("local:") else rest)


def _docker(url: str, rest: str) -> Opened:
    address = _address(url, rest, "user")
    # Here, because its HTTP client takes longer to import than all else together.
    from trio_skills.runtimes.docker import open_docker  # noqa: PLC0415

    return open_docker(address.name, address.path, user=address.options.get("user"))


def _ssh(url: str, rest: str) -> Opened:
    address = _address(url, rest)
    user, at, host = address.name.rpartition("@")
    name, colon, port = host.rpartition(":")
    if host.startswith("["):  # an IPv6 address: [::1]:22
        name, _, port = host[1:].partition("]")
        colon, port = port[:1], port[1:]
    if not colon:
        name, port = host, ""
    if not name or name.startswith("-") or (colon and not port.isdecimal()):
        raise RuntimeOpenError(url, "it names no host and port: ssh://USER@HOST:PORT/path")
    return open_ssh(user + at + name, address.path, port=int(port) if port else None)


def _podman(url: str, rest: str) -> Opened:
    address = _address(url, rest, "user")
    return _ready(["podman", "exec", "-i", *_flags(address), address.name], address.path)


def _kubectl(url: str, rest: str) -> Opened:
    address = _address(url, rest, "namespace", "container", "context")
    return _ready(["kubectl", "exec", "-i", *_flags(address), address.name, "--"], address.path)


def _apptainer(url: str, rest: str) -> Opened:
    address = _address(url, rest)
    return _ready(["apptainer", "exec", f"instance://{address.name}"], address.path)


def _exec(url: str, rest: str) -> Opened:
    try:
        words = shlex.split(rest)
    except ValueError as exc:
        raise RuntimeOpenError(url, f"its words cannot be told apart: {exc}") from exc
    if not words:
        raise RuntimeOpenError(url, "it names no command: exec:kubectl exec -i POD --")
    return _ready(words, "")


def _flags(address: _Address) -> list[str]:
    return [f"--{option}={value}" for option, value in address.options.items()]


@asynccontextmanager
async def _ready(prefix: list[str], path: str) -> AsyncIterator[Runtime]:
    """Reach a sandbox by a prefix; whether it is there is asked once."""
    runtime = ExecRuntime(prefix, path)
    await runtime.greet()
    yield runtime
    await trio.lowlevel.checkpoint()


_OPENERS: Mapping[str, Callable[[str, str], Opened]] = {
    "local": _local,
    "docker": _docker,
    "ssh": _ssh,
    "podman": _podman,
    "kubectl": _kubectl,
    "apptainer": _apptainer,
    "exec": _exec,
}

SCHEMES = tuple(_OPENERS)
"""What a URL may begin with; a path without a scheme is `local`."""
