"""Where file systems are mounted: what is there must be neither renamed nor removed."""

from __future__ import annotations

import os
import re

_MOUNTS = "/proc/self/mountinfo"


def holds_mount(folder: int, name: str) -> bool:
    """Whether a file system is mounted at the entry `name` of an open folder, or beneath it.

    A folder that is moved aside takes such a one along, which is then emptied with the rest.
    """
    try:
        with open(_MOUNTS, "rb") as file:
            points = [_unescape(line.split(b" ")[4]) for line in file]
        path = os.fsencode(os.readlink(f"/proc/self/fd/{folder}")).rstrip(b"/")
    except OSError:  # not Linux: then only what is mounted at the entry itself can be seen
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return there.st_dev != os.fstat(folder).st_dev
    path += b"/" + os.fsencode(name)
    return any(point == path or point.startswith(path + b"/") for point in points)


def _unescape(path: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), path)
