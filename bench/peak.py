"""A process of its own: install a skill under 64 MiB in flight, print the peak memory in KiB."""

from __future__ import annotations

import sys
from typing import get_args

import trio

from trio_skills import Limits, Strategy, install, open_local, plan_skills


async def main(source: str, root: str, strategy: str) -> None:
    (chosen,) = (known for known in get_args(Strategy) if known == strategy)
    plan = await trio.to_thread.run_sync(plan_skills, [source])
    async with open_local(root) as runtime:
        await install(plan, runtime, strategy=chosen, limits=Limits(max_bytes=64 * 2**20))


def _peak() -> int:
    """Return the most that was resident of this program, in KiB."""
    # Not `ru_maxrss`: on Linux that begins with what the parent held before it started this one.
    with open("/proc/self/status") as status:
        (peak,) = (line.split()[1] for line in status if line.startswith("VmHWM:"))
    return int(peak)


if __name__ == "__main__":
    _, source, root, strategy = sys.argv
    trio.run(main, source, root, strategy)
    print(_peak())
