"""The group `sandboxes`: real ones, Docker and ssh, on services that it starts."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path

import attrs
import trio

from bench import raw_docker, raw_ssh
from bench.measure import Comparison
from bench.raw_docker import Box
from bench.raw_ssh import Host
from bench.workloads import make_skill, timed
from tests.corpus import collections
from tests.services import Unavailable, docker_engine, ssh_server
from trio_skills import (
    Packing,
    Plan,
    RunResult,
    Runtime,
    find_skills,
    install,
    open_ssh,
    plan_skills,
)
from trio_skills.runtimes.docker import open_docker

_Boxes = Callable[[str], Box]
_Skills = Callable[[int], Path]


@contextmanager
def comparisons(*, quick: bool) -> Iterator[list[Comparison]]:
    """Yield what is compared. Where a service is not available, that is printed instead.

    Services run from the beginning to the end; a container begins with its first comparison.
    """
    small, large = (4, 8) if quick else (32, 128)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trio-skills-bench-")))

        @cache
        def skill(count: int) -> Path:
            # One of the files is its SKILL.md.
            return make_skill(folder / f"skill-{count}", count - 1, 4_096)

        found: list[Comparison] = []
        try:
            engine = stack.enter_context(docker_engine())
        except Unavailable as exc:
            _say(f"without Docker: {exc}")
        else:

            @cache
            def box(image: str) -> Box:
                return Box(engine, stack.enter_context(engine.container(image)))

            found += _docker(box, skill, small, large)
            found += _corpus(box, "writing-skills" if quick else "bitranox-skills")
            found += _less_usual(box, skill, small, large)
        try:
            host = stack.enter_context(raw_ssh.connected(stack.enter_context(ssh_server())))
        except Unavailable as exc:
            _say(f"without ssh: {exc}")
        else:
            found += _ssh(host, skill, large)
        yield found


def _say(reason: str) -> None:
    print(reason, file=sys.stderr)


async def _timed_install(plan: Plan, runtime: Runtime, *, verify: bool = False) -> float:
    start = time.perf_counter()
    await install(plan, runtime, verify=verify)
    return time.perf_counter() - start


def _into(box: Box, make_plan: Callable[[], Plan], *, verify: bool = False) -> float:
    """Install into a container, to which the runtime is open already."""

    async def main(plan: Plan, folder: str) -> float:
        async with open_docker(box.name, folder, host=box.engine.host) as runtime:
            return await _timed_install(plan, runtime, verify=verify)

    plan = make_plan()
    with box.fresh(len(plan.uploads)) as folder:
        return trio.run(main, plan, folder)


def _docker(boxes: _Boxes, skill: _Skills, small: int, large: int) -> Iterator[Comparison]:
    def ours(image: str, count: int) -> float:
        return _into(boxes(image), lambda: plan_skills([skill(count)]))

    def raw(image: str, count: int) -> float:
        return raw_docker.tar_by_exec(boxes(image), skill(count), count)

    def per_file(count: int) -> float:
        return raw_docker.docker_exec_per_file(boxes("debian"), skill(count), count)

    for count, times in ((small, 20), (large, 50)):
        for image, suffix in (("debian", ""), ("busybox", "-busybox")):
            yield Comparison(
                f"docker/{count}{suffix}",
                partial(ours, image, count),
                partial(raw, image, count),
                f"one raw exec of tar -x, a ready tar; {image}, 4 KiB files",
                at_most=1.5,
            )
        yield Comparison(
            f"docker/{count}-exec",
            partial(ours, "debian", count),
            partial(per_file, count),
            "docker exec for each file, all at once",
            at_most=1 / times,
        )


def _corpus(boxes: _Boxes, name: str) -> Iterator[Comparison]:
    try:
        collection = collections()[name]
    except FileNotFoundError as exc:
        _say(f"without {name}: {exc}")
        return

    @cache
    def plan() -> Plan:
        return plan_skills(find_skills(collection))

    def ours(*, verify: bool) -> float:
        return _into(boxes("debian"), plan, verify=verify)

    def command() -> float:
        box = boxes("debian")
        with box.fresh(len(plan().uploads)) as folder:
            url = f"docker://{box.name}{folder}"
            argv = [sys.executable, "-m", "trio_skills", "install", collection, "--to", url]
            run = partial(subprocess.run, argv, env=box.engine.environment, capture_output=True)
            return timed(partial(run, check=True))

    def docker_cp() -> float:
        return raw_docker.docker_cp(boxes("debian"), collection, len(plan().uploads))

    against = f"docker cp of {name}"
    for suffix, work, at_most in (
        ("", partial(ours, verify=False), 1.5),
        ("-verified", partial(ours, verify=True), 1.5),
        ("-cli", command, None),
    ):
        yield Comparison(f"docker/corpus{suffix}", work, docker_cp, against, at_most=at_most)


@attrs.define
class _TwoMethods:
    """What any sandbox has: `write` and `run`, and nothing more."""

    runtime: Runtime
    calls: int = 0

    async def write(self, target: str, data: bytes) -> None:
        self.calls += 1
        await self.runtime.write(target, data)

    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        self.calls += 1
        return await self.runtime.run(argv, env)


def _less_usual(boxes: _Boxes, skill: _Skills, small: int, large: int) -> Iterator[Comparison]:
    """Compare what a sandbox would be with fewer methods, a second install, and a kept shell."""

    def two_methods(*, packing: bool) -> float:
        async def main(plan: Plan, folder: str) -> float:
            async with open_docker(box.name, folder, host=box.engine.host) as runtime:
                bare = _TwoMethods(runtime)
                seconds = await _timed_install(plan, Packing(bare) if packing else bare)
                assert bare.calls <= 2 or not packing, f"{bare.calls} calls"
                return seconds

        box, plan = boxes("debian"), plan_skills([skill(large)])
        with box.fresh(large) as folder:
            return trio.run(main, plan, folder)

    def warm(*, second: bool) -> float:
        async def main(plan: Plan, folder: str) -> float:
            async with open_docker(box.name, folder, host=box.engine.host) as runtime:
                seconds = await _timed_install(plan, runtime)
                if not second:
                    return seconds
                start = time.perf_counter()
                report = await install(plan, runtime, skip_unchanged=True)
                seconds = time.perf_counter() - start
                assert len(report.unchanged) == large
                return seconds

        box, plan = boxes("debian"), plan_skills([skill(large)])
        with box.fresh(large) as folder:
            return trio.run(main, plan, folder)

    yield Comparison(
        f"packing/{large}",
        partial(two_methods, packing=True),
        partial(two_methods, packing=False),
        "the same two methods without Packing: a write for each file",
    )
    yield Comparison(
        "docker/warm",
        partial(warm, second=True),
        partial(warm, second=False),
        f"the first install; this is the next, skip_unchanged, {large} files",
    )
    yield Comparison(
        f"shell/{small}",
        lambda: _into(boxes("debian"), lambda: plan_skills([skill(small)])),
        lambda: raw_docker.tar_by_a_kept_shell(boxes("debian"), skill(small), small),
        "a ready tar into tar -x, by a shell that is kept open there",
    )


def _ssh(host: Host, skill: _Skills, count: int) -> Iterator[Comparison]:
    async def main(folder: Path) -> float:
        server = host.server
        destination = f"{server.user}@127.0.0.1"
        plan = plan_skills([skill(count)])
        async with open_ssh(
            destination, str(folder), port=server.port, command=server.command
        ) as runtime:
            # What it is compared with has a connection over which much has gone already.
            await runtime.write("warm", bytes(2**20))
            await runtime.run(["rm", "warm"], {})
            return await _timed_install(plan, runtime)

    def ours() -> float:
        with host.fresh(count) as folder:
            return trio.run(main, folder)

    yield Comparison(
        f"ssh/{count}",
        ours,
        lambda: raw_ssh.tar_by_ssh(host, skill(count), count),
        "tar -c | ssh tar -x, over a connection that is open",
        at_most=1.5,
    )
    yield Comparison(
        f"ssh/{count}-per-file",
        ours,
        lambda: raw_ssh.ssh_per_file(host, skill(count), count, 1),
        "ssh for each file, one after another, over a connection that is open",
        at_most=1 / 30,
    )
    yield Comparison(
        f"ssh/{count}-{raw_ssh.AT_ONCE}-at-once",
        ours,
        lambda: raw_ssh.ssh_per_file(host, skill(count), count, raw_ssh.AT_ONCE),
        f"the same, {raw_ssh.AT_ONCE} at once, which is what sshd's MaxSessions allows",
    )
