"""Source archives that are cut, killed, raced or hostile: the old tree or the new one, whole."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from tests.far_sides import gone, make_world, processes, two_worlds
from tests.moments import Moments
from tests.programs import MINDS_PERMISSIONS, WITHOUT_POWERS
from tests.sources import (
    CLIENT,
    HOSTILE_MEMBERS,
    NOTES,
    STEPS,
    Sandbox,
    Versions,
    archive_of,
    every_compression,
    every_kind,
    hand_made,
    leftovers,
    member,
    note_of,
    trees_in,
)
from tests.test_exec_kills import KILLS_AT
from tests.test_packing import Folder
from tests.trees import read_tree, write_tree
from trio_skills import (
    Archive,
    CommandError,
    Compression,
    ExecRuntime,
    InstallError,
    Limits,
    Runtime,
    install_sources,
)


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions.make(tmp_path / "versions")


@pytest.fixture
def archives(versions: Versions) -> dict[str, Archive]:
    return {version: versions.archive(version) for version in ("one", "two")}


@pytest.fixture
def sandbox(tmp_path: Path, kind: str) -> Sandbox:
    return Sandbox(kind, tmp_path / "far side" / "root")


# Cuts the input of the command that unpacks after $1 bytes; others have it whole.
_CUT = 'n=$1; shift; case $6 in write_source) head -c "$n" | "$@" ;; *) exec "$@" ;; esac'


def positions(archive: Archive, size: int) -> list[int]:
    """Return where to cut: at the ends, at random, and at the borders of members."""
    chance = random.Random(archive.digest)
    around = [0, 1, 10, 511, 512, 513, *(chance.randrange(size) for _ in range(10))]
    ending = [size - n for n in (10240, 2048, 1536, 1025, 1024, 513, 512, 511, 9, 8, 4, 1)]
    borders = [n // 512 * 512 for n in (size // 3, size // 2)]
    return sorted({n for n in (*around, *ending, *borders) if 0 <= n < size})


class TestCut:
    @two_worlds
    @every_compression
    async def test_an_archive_that_is_cut_anywhere_is_not_seen(
        self, versions: Versions, tmp_path: Path, compression: Compression, world: str
    ) -> None:
        root = tmp_path / "root"
        prefix = make_world(tmp_path / "programs", world)
        if (gzip := shutil.which("gzip")) and world == "dash":
            (tmp_path / "programs" / "gzip").symlink_to(gzip)
        elif world == "busybox":
            (tmp_path / "programs" / "gzip").symlink_to(shutil.which("busybox") or "")
        new = await archive_of(versions.folder / "two" / "pkg", compression)
        old = await archive_of(versions.folder / "one" / "pkg", compression)
        # Uncompressed, there is a last member of its own and the end.
        sent = new.size if compression == "gzip" else new.tar_size + 512
        failures = 0
        for number, after in enumerate(positions(new, sent)):
            if number % 2:  # nothing was there
                shutil.rmtree(root, ignore_errors=True)
            else:
                await install_sources(ExecRuntime(prefix, str(root)), [old])
            script = ("sh", "-c", _CUT, "sh", str(after))
            runtime = ExecRuntime((*prefix, *script), str(root))
            with suppress(InstallError):
                await install_sources(runtime, [new])
                # All that belongs to the tree had arrived, and what shows that.
                assert compression != "gzip"
                assert after >= sent - 1024, after
                continue
            failures += 1
            await gone(str(root))
            assert versions.check(root, {"one": old}) == (None if number % 2 else "one"), after
            assert leftovers(root) == []
        assert failures > 12
        await install_sources(ExecRuntime(prefix, str(root)), [new])
        assert versions.check(root, {"two": new}) == "two"

    @every_compression
    @pytest.mark.parametrize("keeps", [0.0, 0.5, 0.9, 0.99])
    async def test_a_runtime_that_loses_bytes_and_says_nothing_is_not_believed(
        self, versions: Versions, tmp_path: Path, compression: Compression, keeps: float
    ) -> None:
        (tmp_path / "root").mkdir()
        folder = Folder(tmp_path / "root")
        old = await archive_of(versions.folder / "one" / "pkg", compression)
        new = await archive_of(versions.folder / "two" / "pkg", compression)
        await install_sources(folder, [old])
        folder.keeps = keeps
        with pytest.raises(InstallError, match=r"pkg: .*(cut off|tar failed)"):
            await install_sources(folder, [new])
        assert versions.check(folder.root, {"one": old}) == "one"
        assert note_of(folder.root, "pkg") == old.digest
        assert leftovers(folder.root) == []


class TestMissingPrograms:
    @pytest.mark.parametrize("two_methods", [False, True])
    async def test_without_gzip_it_is_sent_uncompressed(
        self, versions: Versions, archives: Mapping[str, Archive], tmp_path: Path, two_methods: bool
    ) -> None:
        # It has no gzip.
        runtime, calls = self.without(tmp_path, two_methods=two_methods)
        report = await install_sources(runtime, [archives["one"]])
        assert versions.check(tmp_path / "root", archives) == "one"
        assert report.summary() == "1 written"
        # The look, an attempt, and what works: each of one call, or of a write and a command.
        assert report.round_trips == (5 if two_methods else 3)
        if calls is not None:
            assert report.round_trips == len([c for c in calls if c != "run rm"])
        assert leftovers(tmp_path / "root") == []
        assert (await install_sources(runtime, [archives["one"]])).round_trips == 1

    @pytest.mark.parametrize("two_methods", [False, True])
    @pytest.mark.parametrize("compression", ["gzip", "none"])
    async def test_a_missing_tar_is_named(
        self, versions: Versions, tmp_path: Path, compression: Compression, two_methods: bool
    ) -> None:
        runtime, _ = self.without(tmp_path, "tar", two_methods=two_methods)
        archive = await archive_of(versions.folder / "one" / "pkg", compression)
        with pytest.raises(InstallError, match="pkg: the sandbox has no program 'tar'"):
            await install_sources(runtime, [archive])
        assert trees_in(tmp_path / "root") == {}
        assert leftovers(tmp_path / "root") == []

    async def test_a_missing_shell_is_named(
        self, archives: Mapping[str, Archive], tmp_path: Path
    ) -> None:
        runtime, _ = self.without(tmp_path, "sh")
        with pytest.raises(CommandError, match="'sh'"):
            await install_sources(runtime, [archives["one"]])

    @pytest.mark.parametrize("two_methods", [False, True])
    async def test_a_missing_sha256sum_is_named(
        self, archives: Mapping[str, Archive], tmp_path: Path, two_methods: bool
    ) -> None:
        """Without it nobody can see what is there: so nothing is written."""
        runtime, _ = self.without(tmp_path, "sha256sum", two_methods=two_methods)
        with suppress(CommandError):  # two methods need it only where a file is
            await install_sources(runtime, [archives["one"]])
        with pytest.raises(CommandError, match="sha256sum"):
            await install_sources(runtime, [archives["two"]])

    @staticmethod
    def without(
        folder: Path, *programs: str, two_methods: bool = False
    ) -> tuple[Runtime, list[str] | None]:
        prefix = make_world(folder / "programs", "dash", programs)
        (folder / "root").mkdir(exist_ok=True)
        if two_methods:
            runtime = Folder(folder / "root", env={"PATH": str(folder / "programs")})
            return runtime, runtime.calls
        return ExecRuntime(prefix, str(folder / "root")), None


@every_kind
class TestCancelled:
    async def test_at_any_moment(
        self, sandbox: Sandbox, versions: Versions, archives: dict[str, Archive]
    ) -> None:
        limits = Limits()
        began = trio.current_time()
        await sandbox.put([archives["one"]], limits=limits)
        moments = Moments(trio.current_time() - began, runs=30, strikes=6)
        for number, moment in enumerate(moments):
            with trio.move_on_after(moment) as scope:
                await sandbox.put([archives[("two", "one")[number % 2]]], limits=limits)
            moments.ended(struck=scope.cancelled_caught)
            assert versions.check(sandbox.root, archives) is not None
            assert limits.statistics().in_flight == limits.statistics().bytes_in_flight == 0
            assert processes(str(sandbox.root)) == []
            assert leftovers(sandbox.root) == []
        await sandbox.put([archives["two"]])
        assert versions.check(sandbox.root, archives) == "two"
        assert leftovers(sandbox.root) == []

    async def test_before_it_begins(
        self, sandbox: Sandbox, archives: Mapping[str, Archive]
    ) -> None:
        async with sandbox.open() as runtime:
            for given in ([archives["one"]], []):
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await install_sources(runtime, given)
                assert scope.cancelled_caught
        assert not sandbox.root.exists() or os.listdir(sandbox.root) == []


async def left_alone(folder: Path) -> None:
    """Wait until no process of any sandbox works in a folder, or is about to."""
    await gone(str(folder))

    def is_inside(process: Path) -> bool:
        with suppress(OSError):  # it has ended
            return (process / "cwd").readlink().is_relative_to(folder)
        return False

    with trio.fail_after(10):
        while any(map(is_inside, Path("/proc").glob("[1-9]*"))):
            await trio.sleep(0.005)


@every_kind
async def test_killed_at_any_moment(
    sandbox: Sandbox, versions: Versions, archives: dict[str, Archive]
) -> None:
    """The client alone: what it had started has to notice, or to end well."""
    chance = random.Random(2)
    sources = [str(versions.folder / version) for version in ("one", "two")]
    command = [sys.executable, "-c", CLIENT, sandbox.kind, str(sandbox.root), *sources]
    await sandbox.put([archives["one"]])
    for number in range(12):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"ready\n"
            await trio.sleep(chance.uniform(0, 0.2))
            client.send_signal(signal.SIGKILL)
        await left_alone(sandbox.root)
        versions.check(sandbox.root, archives)
        # Moved aside: whoever installs next, whatever it is, puts it back.
        for tar in sandbox.root.glob("*.tar"):  # whose it is cannot be seen: it stays for a day
            os.utime(tar, (0, 0))
        await sandbox.put({f"other {number}": archives["one"]})
        assert versions.check(sandbox.root, archives) is not None
        assert [path for path in leftovers(sandbox.root) if path.parent.name != NOTES] == []
    await sandbox.put([archives["two"]])
    assert versions.check(sandbox.root, archives) == "two"


def test_a_client_that_is_killed_at_any_step_of_a_local_install(tmp_path: Path) -> None:
    Versions.make(tmp_path / "versions", 1)
    command = [sys.executable, "-c", STEPS, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


@pytest.mark.parametrize("no_rename", ["no", "yes"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_the_far_side_is_killed_at_every_program(
    versions: Versions, archives: dict[str, Archive], tmp_path: Path, when: str, no_rename: str
) -> None:
    """Also where a folder cannot be renamed, as one that is in a container's image."""
    env, path = make_world(tmp_path / "programs", "dash")
    killing, counter, root = tmp_path / "killing", tmp_path / "counter", tmp_path / "root"
    for program in ("mv", "rm", "mkdir", "tar"):
        script = KILLS_AT.format(program=f"{tmp_path}/programs/{program}")
        write_tree(killing, {program: (script.encode(), True)})
    plain = {name: await archive_of(versions.folder / name / "pkg", "none") for name in archives}
    calls = number = 0
    path = path.replace("PATH=", f"PATH={killing}:")
    variables = (f"COUNTER={counter}", f"NO_RENAME={no_rename}")
    for number in range(1, 60):
        new = ("one", "two")[number % 2]
        await install_sources(ExecRuntime(("env",), str(root)), [plain[("two", "one")[number % 2]]])
        shutil.rmtree(counter, ignore_errors=True)
        counter.mkdir()
        killer = ExecRuntime((env, path, *variables, f"AT={when} {number}"), str(root))
        succeeded = False
        with suppress(InstallError):
            await install_sources(killer, [plain[new]])
            succeeded = True
        calls = len(os.listdir(counter))
        await left_alone(root)
        version = versions.check(root, plain)
        await install_sources(ExecRuntime(("env",), str(root)), {"other": plain[new]})
        version = versions.check(root, plain)
        assert version is not None
        assert leftovers(root) == []
        if succeeded:
            assert version == new
        if number > calls:
            break
    assert 8 < number < 59


@every_kind
class TestAtOnce:
    async def test_ten_install_the_same(
        self, sandbox: Sandbox, versions: Versions, archives: Mapping[str, Archive]
    ) -> None:
        for dest in ("new", "new", "."):
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(sandbox_put, sandbox, archives["one"], dest)
            assert versions.check(sandbox.root / dest, archives) == "one"
            assert note_of(sandbox.root / dest, "pkg") == archives["one"].digest
            assert leftovers(sandbox.root) == []

    async def test_two_archives_race_for_one_name(
        self, sandbox: Sandbox, versions: Versions, archives: Mapping[str, Archive]
    ) -> None:
        for _ in range(8):
            async with trio.open_nursery() as nursery:
                for version in ("one", "two", "one", "two"):
                    nursery.start_soon(sandbox_put, sandbox, archives[version], ".")
            there = versions.check(sandbox.root, archives)
            assert there is not None
            assert note_of(sandbox.root, "pkg") == archives[there].digest
            assert leftovers(sandbox.root) == []


async def sandbox_put(sandbox: Sandbox, archive: Archive, dest: str) -> None:
    async with sandbox.open() as runtime:
        await install_sources(runtime, [archive], dest)


@pytest.mark.skipif(not MINDS_PERMISSIONS, reason="needs setpriv, or not to be root")
async def test_a_destination_that_may_not_be_written_to_is_named(
    archives: dict[str, Archive], tmp_path: Path
) -> None:
    runtime = ExecRuntime((*WITHOUT_POWERS, "env"), str(tmp_path))
    await install_sources(runtime, [archives["one"]], "src")
    before = read_tree(tmp_path / "src")
    (tmp_path / "src").chmod(0o555)
    with pytest.raises(InstallError, match=r"src/other: .*Permission denied") as caught:
        await install_sources(runtime, {"pkg": archives["two"], "other": archives["two"]}, "src")
    assert len(caught.value.report.failed) == 2
    assert read_tree(tmp_path / "src") == before


class TestHostileArchives:
    @pytest.fixture
    def outside(self, tmp_path: Path) -> Path:
        write_tree(tmp_path / "far side" / "root" / "outside", {"secret": b"secret"})
        return tmp_path / "far side" / "root" / "outside"

    @pytest.fixture(params=HOSTILE_MEMBERS)
    def hostile(self, request: pytest.FixtureRequest, outside: Path) -> Archive:
        def filled(m: tarfile.TarInfo) -> tarfile.TarInfo:
            fill = str(outside)
            to = m.linkname.replace("{outside}", fill)
            return member(m.name.replace("{outside}", fill), m.type, to)

        return hand_made("pkg", [filled(m) for m in HOSTILE_MEMBERS[request.param]])

    @every_kind
    async def test_never_write_outside_their_folder(
        self, sandbox: Sandbox, archives: Mapping[str, Archive], hostile: Archive
    ) -> None:
        await sandbox.put([archives["one"]])
        try:
            await sandbox.put([hostile])
        except InstallError:
            assert note_of(sandbox.root, "pkg") in (None, archives["one"].digest)
        # What is in the folder itself may be anything, as a device that cannot be read.
        shutil.rmtree(sandbox.root / "pkg")
        assert trees_in(sandbox.root) == {"outside/secret": (b"secret", False)}
        assert leftovers(sandbox.root) == []

    @pytest.mark.parametrize("kind", ["local"])
    async def test_are_refused_by_a_local_directory(
        self, sandbox: Sandbox, archives: Mapping[str, Archive], hostile: Archive
    ) -> None:
        await sandbox.put([archives["one"]])
        before = read_tree(sandbox.root)
        with pytest.raises(InstallError, match="pkg: "):
            await sandbox.put([hostile])
        assert read_tree(sandbox.root) == before
