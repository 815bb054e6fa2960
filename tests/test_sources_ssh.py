"""Source archives by way of ssh: over one connection, which may be cut at any byte."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from tests.far_sides import clients, gone
from tests.moments import Moments
from tests.services import SshServer
from tests.sources import (
    archive_of,
    every_compression,
    in_folder,
    leftovers,
    make_small,
    make_source,
    note_of,
    trees_in,
)
from tests.test_ssh_faults import wired
from tests.trees import read_tree
from trio_skills import Archive, Compression, InstallError, install_sources, open_runtime

pytestmark = [pytest.mark.ssh, pytest.mark.usefixtures("ssh_first_in_path")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "far side" / "src"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source" / "pkg")


@pytest.fixture
def archives(tmp_path: Path) -> dict[str, Archive]:
    made = {version: make_small(tmp_path / version / "pkg", version) for version in ("one", "two")}
    return {version: trio.run(archive_of, folder) for version, folder in made.items()}


def whole(root: Path, folder: Path, archives: Mapping[str, Archive]) -> str:
    """Return which version is there: all of it, and what is noted of it is true."""
    there = read_tree(root / "pkg")
    [version] = [v for v in archives if read_tree(folder / v / "pkg") == there]
    assert note_of(root, "pkg") in (None, archives[version].digest)
    return version


@every_compression
@pytest.mark.parametrize("kind", ["port", "banner_port"])
async def test_what_arrives_is_the_source(
    ssh: SshServer, source: Path, root: Path, compression: Compression, kind: str
) -> None:
    archive = await archive_of(source, compression)
    async with open_runtime(ssh.url(str(root), getattr(ssh, kind))) as runtime:
        report = await install_sources(runtime, [archive], "a b")
        again = await install_sources(runtime, [archive], "a b")
    assert trees_in(root / "a b") == in_folder("pkg", read_tree(source))
    assert note_of(root / "a b", "pkg") == archive.digest
    assert (report.summary(), again.summary()) == ("1 written", "1 unchanged")
    # The last account's PATH is the machine's own, which has gzip.
    assert (report.round_trips, again.round_trips) == (2, 1)
    assert leftovers(root) == []


async def test_a_missing_tar_is_named(
    ssh: SshServer, root: Path, archives: dict[str, Archive]
) -> None:
    async with open_runtime(ssh.url(str(root), ssh.no_tar_port)) as runtime:
        with pytest.raises(InstallError, match="pkg: the sandbox has no program 'tar'"):
            await install_sources(runtime, [archives["one"]])
    assert not root.exists() or os.listdir(root) == []


async def test_the_home_folder_is_that_of_the_account(
    ssh: SshServer, source: Path, archives: dict[str, Archive], tmp_path: Path
) -> None:
    async with open_runtime(ssh.url("/~/my src")) as runtime:
        await install_sources(runtime, {"home": archives["one"]})
    assert read_tree(ssh.home / "my src" / "home") == read_tree(tmp_path / "one" / "pkg")


async def test_twenty_at_once_go_over_one_connection(
    ssh: SshServer, root: Path, archives: dict[str, Archive], tmp_path: Path
) -> None:
    """More than sshd lets be open at once."""
    before = ssh.logins
    async with open_runtime(ssh.url(str(root))) as runtime:
        report = await install_sources(runtime, {f"{n:02}": archives["one"] for n in range(20)})
    assert report.summary() == "20 written"
    assert ssh.logins == before + 1
    for n in range(20):
        assert read_tree(root / f"{n:02}") == read_tree(tmp_path / "one" / "pkg")
        assert note_of(root, f"{n:02}") == archives["one"].digest
    assert leftovers(root) == []


async def test_two_race_for_one_name(
    ssh: SshServer, root: Path, archives: dict[str, Archive], tmp_path: Path
) -> None:
    async with open_runtime(ssh.url(str(root))) as runtime:
        for _ in range(4):
            async with trio.open_nursery() as nursery:
                for version in ("one", "two", "one", "two"):
                    nursery.start_soon(install_sources, runtime, [archives[version]])
            version = whole(root, tmp_path, archives)
            assert note_of(root, "pkg") == archives[version].digest
            assert leftovers(root) == []


@every_compression
async def test_a_connection_that_is_cut_anywhere_is_not_seen(
    ssh: SshServer,
    root: Path,
    archives: dict[str, Archive],
    tmp_path: Path,
    compression: Compression,
) -> None:
    new = await archive_of(tmp_path / "two" / "pkg", compression)
    both = {"one": archives["one"], "two": new}
    async with wired(ssh, root.parent / "elsewhere") as (runtime, wire):
        before = wire.sent
        await install_sources(runtime, [new])
        size = wire.sent - before
    chance = random.Random(compression)
    ends = [size - n for n in (1_000, 300, 300, 1)]
    failures = 0
    for number, after in enumerate([1, *(chance.randrange(size) for _ in range(2)), *ends]):
        dest = root / str(number)
        is_new = number % 2 == 1
        async with open_runtime(ssh.url("")) as runtime:
            if not is_new:
                await install_sources(runtime, [archives["one"]], str(dest))
        succeeded = False
        async with wired(ssh, dest) as (runtime, wire):
            wire.cut_after = wire.sent + after
            with trio.fail_after(10), suppress(Exception):
                await install_sources(runtime, [new])
                succeeded = True
        await gone(str(dest))
        if is_new and not (dest / "pkg").exists():
            assert not succeeded
            assert note_of(dest, "pkg") is None
        elif is_new or succeeded:
            assert whole(dest, tmp_path, both) == "two"
        else:
            assert whole(dest, tmp_path, both) == "one" or after > size - 1_500
        assert leftovers(dest) == []
        failures += not succeeded
    assert failures > 3


async def test_cancelled_at_any_moment_it_is_old_or_new(
    ssh: SshServer, root: Path, archives: dict[str, Archive], tmp_path: Path
) -> None:
    async with open_runtime(ssh.url(str(root))) as runtime:
        await install_sources(runtime, [archives["two"]])
        began = trio.current_time()
        await install_sources(runtime, [archives["one"]])
        moments = Moments(trio.current_time() - began, runs=20, strikes=5, after=0.1)
        for number, moment in enumerate(moments):
            with trio.move_on_after(moment) as scope:
                await install_sources(runtime, [archives[("two", "one")[number % 2]]])
            moments.ended(struck=scope.cancelled_caught)
            await gone("write_source", str(root))
            whole(root, tmp_path, archives)
            assert leftovers(root) == []
        await install_sources(runtime, [archives["two"]])
    assert whole(root, tmp_path, archives) == "two"
    assert clients(ssh) == []
