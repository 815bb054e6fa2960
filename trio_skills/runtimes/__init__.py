"""The kinds of sandboxes, one module each, and `open_runtime`, which turns a URL into one."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager

from trio_skills._errors import RuntimeOpenError
from trio_skills._runtime import Runtime
from trio_skills.runtimes.local import open_local

SCHEMES = ("local",)
"""What a URL may begin with; a path without a scheme is `local`."""


def open_runtime(url: str | os.PathLike[str]) -> AbstractAsyncContextManager[Runtime]:
    """Return an async context manager that opens the sandbox which `url` names, and closes it.

    | URL | sandbox |
    |---|---|
    | a path, `local:/path`, `local:path`, `local:~/path` | a directory of this machine |

    The URL's path is where a plan's relative targets go.

    Raises:
        RuntimeOpenError: The URL is of no known kind (raised by the call itself), or the sandbox
            cannot be reached (raised when the context is entered).
    """
    url = os.fspath(url)
    scheme, colon, rest = url.partition(":")
    if not colon or "/" in scheme:
        scheme, rest = "local", url
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}:" for name in SCHEMES)
        hint = "" if rest.startswith("//") else f" (or a path: ./{url})"
        reason = f"unknown kind of sandbox {scheme!r}; known: {known}{hint}"
        raise RuntimeOpenError(url, reason)
    if rest.startswith("///"):  # a host that is empty
        rest = rest[2:]
    if not rest:
        raise RuntimeOpenError(url, "it names no directory")
    if rest.startswith("//"):
        raise RuntimeOpenError(url, f"a directory has no host: write local:/{rest.lstrip('/')}")
    return open_local(os.path.expanduser(rest) if url.startswith("local:") else rest)
