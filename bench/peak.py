"""A process of its own: run the command line quietly, and print the process's peak in KiB."""

from __future__ import annotations

import resource
import sys

from trio_skills.cli import main


def _peak() -> int:
    """Return the most that was resident of this program, in KiB. Page cache does not count."""
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024  # macOS counts bytes
    # Not `ru_maxrss`: here that begins with what the parent held before it started this one.
    with open("/proc/self/status") as status:
        (peak,) = (line.split()[1] for line in status if line.startswith("VmHWM:"))
    return int(peak)


if __name__ == "__main__":
    try:
        main([*sys.argv[1:], "--quiet"])
    except SystemExit as exc:
        if exc.code != 0:
            raise
    print(_peak())
