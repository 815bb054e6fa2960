"""Source archives into containers, with and without `tar` and `gzip`, as root and as a user."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from tests.containers import (
    gone,
    litter,
    processes,
    read_container,
    read_owners,
    wired,
    write_files,
)
from tests.moments import Moments
from tests.services import Engine
from tests.sources import (
    COMPRESSIONS,
    NOTES,
    archive_of,
    in_folder,
    make_small,
    make_source,
)
from tests.trees import Tree, read_tree
from tests.ways import with_shell
from trio_skills import Archive, CommandError, Compression, InstallError, Report, install_sources
from trio_skills.runtimes.docker import open_docker

pytestmark = pytest.mark.docker

DEST = "/home/agent/src"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    make_source(folder / "all" / "pkg")
    for version in ("one", "two"):
        make_small(folder / version / "pkg", version)
    return folder


@pytest.fixture(scope="module")
def archives(folder: Path) -> dict[str, Archive]:
    return {name: trio.run(archive_of, folder / name / "pkg") for name in ("all", "one", "two")}


@pytest.fixture
def container(docker: Engine, image: str) -> Iterator[str]:
    with docker.container(image) as name:
        yield name


async def put(
    docker: Engine,
    container: str,
    archives: Sequence[Archive] | Mapping[str, Archive],
    dest: str = DEST,
    *,
    path: str = "",
    user: str | None = None,
) -> Report:
    async with open_docker(container, path, host=docker.host, user=user) as runtime:
        return await install_sources(runtime, archives, dest)


def read_trees(docker: Engine, container: str, dest: str = DEST) -> tuple[Tree, dict[str, str]]:
    """Return what is in a folder, and what is noted of it."""
    there = read_container(docker, container, dest)
    notes = {p.removeprefix(f"{NOTES}/"): e[0] for p, e in there.items() if p.startswith(NOTES)}
    trees = {path: entry for path, entry in there.items() if not path.startswith(NOTES)}
    return trees, {name: data.decode().removesuffix("\n") for name, data in notes.items()}


def leftovers(docker: Engine, container: str) -> list[str]:
    return [path for path in litter(docker, container) if not path.endswith(NOTES)]


@with_shell
class TestInstalling:
    @pytest.mark.parametrize("user", [None, "agent"])
    async def test_what_arrives_is_the_source_and_the_users(
        self, docker: Engine, container: str, folder: Path, image: str, user: str | None
    ) -> None:
        for compression in COMPRESSIONS:
            archive = await archive_of(folder / "all" / "pkg", compression)
            dest = f"{DEST}/{compression}"
            report = await put(docker, container, [archive], dest, user=user)
            trees, notes = read_trees(docker, container, dest)
            assert trees == in_folder("pkg", read_tree(folder / "all/pkg"))
            assert notes == {"pkg": archive.digest}
            # A look, and a command; one that needs gzip fails before it is known to be missing.
            if image != "no-tar":
                tried = compression == "gzip" and image == "debian"
                assert report.round_trips == 2 + tried
            again = await put(docker, container, [archive], dest, user=user)
            assert (again.summary(), again.round_trips) == ("1 unchanged", 1)
        assert read_owners(docker, container, DEST) == {(1000, 1000) if user else (0, 0)}
        assert processes(docker, container) == []
        assert leftovers(docker, container) == []

    async def test_another_digest_replaces_the_whole_folder(
        self, docker: Engine, container: str, folder: Path, archives: dict[str, Archive]
    ) -> None:
        for name in ("all", "one", "two"):
            await put(docker, container, [archives[name]])
            write_files(docker, container, {f"{DEST}/pkg/mine": b"gone with the next"})
        await put(docker, container, [archives["one"]])
        trees, notes = read_trees(docker, container)
        assert trees == in_folder("pkg", read_tree(folder / "one/pkg"))
        assert notes == {"pkg": archives["one"].digest}
        assert leftovers(docker, container) == []

    async def test_only_what_is_noted_and_there_is_left_as_it_is(
        self, docker: Engine, container: str, folder: Path, archives: dict[str, Archive]
    ) -> None:
        one = archives["one"]
        await put(docker, container, [one])
        for command in (
            ["rm", "-rf", f"{DEST}/pkg"],
            ["rm", f"{DEST}/{NOTES}/pkg"],
            ["rm", "-r", f"{DEST}/{NOTES}"],
            ["sh", "-c", f"rm -r {DEST}/pkg && echo file > {DEST}/pkg"],
            ["sh", "-c", f"echo other > {DEST}/{NOTES}/pkg"],
        ):
            docker.run(container, *command)
            assert (await put(docker, container, [one])).summary() == "1 written"
            trees, notes = read_trees(docker, container)
            assert trees == in_folder("pkg", read_tree(folder / "one/pkg"))
            assert notes == {"pkg": one.digest}
        write_files(docker, container, {f"{DEST}/pkg/same": b"changed"})
        assert (await put(docker, container, [one])).summary() == "1 unchanged"

    async def test_several_at_once_are_all_there_and_counted(
        self, docker: Engine, container: str, folder: Path, archives: dict[str, Archive], image: str
    ) -> None:
        plain = await archive_of(folder / "one" / "pkg", "none")
        async with open_docker(container, host=docker.host) as runtime:
            await install_sources(runtime, {"first": plain}, DEST)
            report = await install_sources(runtime, {str(n): plain for n in range(5)}, DEST)
        assert report.summary() == "5 written"
        trees, notes = read_trees(docker, container)
        for n in range(5):
            assert in_folder(str(n), read_tree(folder / "one/pkg")).items() <= trees.items()
            assert notes[str(n)] == plain.digest
        assert report.round_trips == 1 + 5 * (2 if image == "no-tar" else 1)

    async def test_a_relative_destination_is_below_the_path(
        self, docker: Engine, container: str, folder: Path, archives: dict[str, Archive]
    ) -> None:
        for path in ("~", "~/a b", "/tmp/'x'"):
            await put(docker, container, [archives["one"]], "my src", path=path, user="agent")
            there = path.replace("~", "/home/agent") + "/my src"
            trees, _ = read_trees(docker, container, there)
            assert trees == in_folder("pkg", read_tree(folder / "one/pkg"))

    async def test_where_the_user_may_not_write_is_an_error(
        self, docker: Engine, container: str, archives: dict[str, Archive]
    ) -> None:
        with pytest.raises(InstallError, match=r"/opt/src/pkg: .*Permission denied"):
            await put(docker, container, [archives["one"]], "/opt/src", user="agent")
        assert leftovers(docker, container) == []

    async def test_ten_at_once_are_one(
        self, docker: Engine, container: str, folder: Path, archives: dict[str, Archive]
    ) -> None:
        async with open_docker(container, host=docker.host) as runtime, trio.open_nursery() as n:
            for _ in range(10):
                n.start_soon(install_sources, runtime, [archives["one"]], DEST)
        trees, notes = read_trees(docker, container)
        assert trees == in_folder("pkg", read_tree(folder / "one/pkg"))
        assert notes == {"pkg": archives["one"].digest}
        assert leftovers(docker, container) == []

    async def test_two_race_for_one_name(
        self, docker: Engine, container: str, folder: Path, archives: dict[str, Archive]
    ) -> None:
        for _ in range(2):
            async with (
                open_docker(container, host=docker.host) as runtime,
                trio.open_nursery() as nursery,
            ):
                for version in ("one", "two", "one", "two"):
                    nursery.start_soon(install_sources, runtime, [archives[version]], DEST)
            whole(docker, container, folder, archives)
            assert read_trees(docker, container)[1].keys() == {"pkg"}
            assert leftovers(docker, container) == []


def whole(
    docker: Engine, container: str, folder: Path, archives: Mapping[str, Archive]
) -> str | None:
    """Return which version is there: all of it, and what is noted of it is true."""
    trees, notes = read_trees(docker, container)
    there = {path: entry for path, entry in trees.items() if path.split("/")[0] == "pkg"}
    if there == {}:
        assert "pkg" not in notes
        return None
    [version] = [v for v in archives if in_folder("pkg", read_tree(folder / v / "pkg")) == there]
    assert notes.get("pkg") in (None, archives[version].digest)
    return version


@pytest.mark.parametrize("image", ["no-shell"])
async def test_without_a_shell_it_is_a_clear_error(
    docker: Engine, container: str, archives: dict[str, Archive]
) -> None:
    with pytest.raises(InstallError, match=r"pkg: .*only where the sandbox has a shell") as caught:
        await put(docker, container, [archives["one"]])
    assert isinstance(caught.value.exceptions[0].__cause__, CommandError)
    assert read_container(docker, container, DEST) == {}


@pytest.mark.parametrize("image", ["with-skill"])
async def test_a_folder_of_the_image_that_cannot_be_renamed_is_replaced(
    docker: Engine, container: str, folder: Path, archives: dict[str, Archive]
) -> None:
    dest = "/root/.agents/skills"
    report = await put(docker, container, {"baked": archives["one"]}, dest)
    assert report.summary() == "1 written"
    trees, notes = read_trees(docker, container, dest)
    assert trees == in_folder("baked", read_tree(folder / "one/pkg"))
    assert notes == {"baked": archives["one"].digest}


@pytest.mark.parametrize("image", ["busybox", "no-tar"])
async def test_what_is_mounted_there_is_not_replaced(
    docker: Engine, archives: dict[str, Archive], image: str
) -> None:
    mounted = ("--tmpfs", f"{DEST}/pkg", "--tmpfs", "/tmp/in")
    with docker.container(image, *mounted) as container:
        with pytest.raises(InstallError, match=r"src/pkg: .*mounted there"):
            await put(docker, container, [archives["one"]])
        assert read_trees(docker, container) == ({"pkg": (b"an empty folder", False)}, {})


class TestCutting:
    @pytest.mark.parametrize(
        ("image", "compression"),
        [("busybox", "gzip"), ("busybox", "none"), ("debian", "zstd"), ("no-tar", "gzip")],
    )
    async def test_a_transfer_that_is_cut_anywhere_is_not_seen(
        self,
        docker: Engine,
        container: str,
        folder: Path,
        archives: dict[str, Archive],
        tmp_path: Path,
        image: str,
        compression: Compression,
    ) -> None:
        one = archives["one"]
        new = await archive_of(folder / "two" / "pkg", compression)
        both = {"one": one, "two": new}
        async with wired(docker, container, tmp_path, "") as (runtime, wire):
            await runtime.extract(one, "/tmp/first")  # so that what it lacks is known
            before = wire.sent
            await runtime.extract(new, "/tmp/first")
            size = wire.sent - before
        chance = random.Random(f"{image} {compression}")
        ends = [size - n for n in (1_000, 300, 1)]
        failures = 0
        for number, after in enumerate([1, *(chance.randrange(size) for _ in range(2)), *ends]):
            await put(docker, container, [one])
            socket = tmp_path / str(number)
            socket.mkdir()
            succeeded = False
            async with wired(docker, container, socket, "") as (runtime, wire):
                if image == "no-tar":
                    await runtime.extract(one, "/tmp/first")
                wire.cut_after = wire.sent + after
                with suppress(Exception):
                    await runtime.extract(new, f"{DEST}/pkg")
                    succeeded = True
            await gone(docker, container)
            version = whole(docker, container, folder, both)
            assert version == "two" if succeeded else version is not None
            assert version == "one" or after > size * 0.9
            if image == "no-tar":  # the engine may go on unpacking: the next install tidies up
                await put(docker, container, {"other": (one, new)[number % 2]})
            failures += not succeeded
        assert leftovers(docker, container) == []
        assert failures > 2
        await put(docker, container, [new])
        assert whole(docker, container, folder, both) == "two"

    @with_shell
    async def test_cancelled_at_any_moment_it_is_old_or_new(
        self, docker: Engine, container: str, folder: Path, archives: dict[str, Archive], image: str
    ) -> None:
        await put(docker, container, [archives["two"]])
        began = trio.current_time()
        await put(docker, container, [archives["one"]])
        moments = Moments(trio.current_time() - began, runs=5, strikes=2, after=0.1)
        for number, moment in enumerate(moments):
            with trio.move_on_after(moment) as scope:
                await put(docker, container, [archives[("two", "one")[number % 2]]])
            moments.ended(struck=scope.cancelled_caught)
            await gone(docker, container)
            assert whole(docker, container, folder, archives) in ("one", "two")
            if image == "no-tar":  # as above
                await put(docker, container, {"other": archives[("one", "two")[number % 2]]})
        assert leftovers(docker, container) == []
        await put(docker, container, [archives["two"]])
        assert whole(docker, container, folder, archives) == "two"
