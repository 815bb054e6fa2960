"""Where the Docker engine is: `DOCKER_HOST`, the current context, or the usual socket."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

DEFAULT = "unix:///var/run/docker.sock"


class HostError(ValueError):
    """There is no telling where the engine is; the message says why."""


def docker_host(environ: Mapping[str, str]) -> str:
    """Return the engine's address as the `docker` program finds it. Blocks: it reads files.

    `DOCKER_HOST` comes first, then `DOCKER_CONTEXT`, then the configuration's current context. The
    rules, and where contexts are kept: https://docs.docker.com/engine/manage-resources/contexts/.

    Raises `HostError`.
    """
    if host := environ.get("DOCKER_HOST"):
        return host
    folder = Path(environ.get("DOCKER_CONFIG") or Path(environ.get("HOME") or "/") / ".docker")
    context = environ.get("DOCKER_CONTEXT")
    if not context:
        context = _load(folder / "config.json").get("currentContext") or "default"
    if context == "default":
        return DEFAULT
    name = hashlib.sha256(str(context).encode()).hexdigest()
    path = folder / "contexts" / "meta" / name / "meta.json"
    try:
        host = _load(path)["Endpoints"]["docker"]["Host"]
    except (KeyError, TypeError) as exc:
        raise HostError(f"the Docker context {context!r} has no engine: {path}") from exc
    if not isinstance(host, str):
        raise HostError(f"the Docker context {context!r} has no engine: {path}")
    return host


def _load(path: Path) -> dict[str, Any]:  # Any: what JSON can hold
    try:
        with open(path, encoding="utf-8") as file:
            loaded = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise HostError(f"cannot read {path}: {exc}") from exc
    return loaded if isinstance(loaded, dict) else {}


def engine_url(host: str, environ: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the URL of the engine's interface, and the Unix socket that it is at, if it is.

    Raises `HostError` for an address that cannot be used from here.
    """
    scheme, separator, rest = host.partition("://")
    if separator and scheme == "unix" and rest.startswith("/"):
        return "http://docker", rest
    instead = "use 'exec:docker exec -i CONTAINER' and an absolute --dest instead"
    if separator and scheme in ("tcp", "http") and _is_host_and_port(rest):
        if environ.get("DOCKER_TLS_VERIFY") or environ.get("DOCKER_TLS"):
            raise HostError(f"an engine behind TLS is not supported: {instead} ({host})")
        return f"http://{rest.rstrip('/')}", None
    if separator and scheme == "ssh":
        raise HostError(f"an engine behind ssh is not supported: {instead} ({host})")
    reason = "an engine's address is unix:///path/of/socket or tcp://host:port"
    raise HostError(f"{reason}; DOCKER_HOST, or the Docker context, is {host!r}")


def _is_host_and_port(rest: str) -> bool:
    try:
        parts = urlsplit(f"//{rest}")
        return bool(parts.hostname) and (parts.port or 1) > 0 and parts.path in ("", "/")
    except ValueError:
        return False
