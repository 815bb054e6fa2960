"""Where files go in containers: every kind of file system, every name, never compressed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.containers import DEST, Inside, noise, put, read_container, wired, write_files
from tests.services import Engine
from tests.trees import Content, make_skill, planned_tree, read_tree, two_skills
from tests.ways import every_image, every_strategy, with_tar
from trio_skills import (
    DestinationError,
    Existing,
    InstallError,
    Plan,
    Strategy,
    install,
    plan_skills,
)

pytestmark = pytest.mark.docker


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return plan_skills(two_skills(tmp_path / "source"))


class TestFileSystems:
    """Case 19, moby/moby#22020: copied into a tmpfs mount: exit 0, and nothing is there."""

    @every_strategy
    @with_tar
    async def test_a_read_only_root_with_a_writable_volume(
        self, docker: Engine, plan: Plan, image: str, strategy: Strategy
    ) -> None:
        with docker.container(image, "--read-only", "--volume", "/skills") as name:
            await put(plan, docker, name, "/skills", strategy=strategy)
            assert read_container(docker, name, "/skills") == planned_tree(plan)

    @every_image
    async def test_a_read_only_root_refuses_every_file(
        self, docker: Engine, plan: Plan, image: str
    ) -> None:
        with docker.container(image, "--read-only") as name:
            with pytest.raises(InstallError, match=r"(?i)read-only") as caught:
                await put(plan, docker, name, "/skills")
            assert caught.value.report.written == ()

    @every_strategy
    @pytest.mark.parametrize("mount", ["/skills", "/"])
    async def test_a_tmpfs_at_the_destination_or_above_it(
        self, docker: Engine, plan: Plan, mount: str, strategy: Strategy
    ) -> None:
        with docker.container("busybox", "--tmpfs", f"/mnt{mount.rstrip('/')}") as name:
            for _ in range(2):
                await put(plan, docker, name, "/mnt/skills", strategy=strategy)
            assert read_container(docker, name, "/mnt/skills") == planned_tree(plan)

    async def test_a_tmpfs_is_replaced_in_too(self, docker: Engine, plan: Plan) -> None:
        with docker.container("busybox", "--tmpfs", "/skills") as name:
            write_files(docker, name, {"/skills/pdf/old": b"old"})
            report = await put(plan, docker, name, "/skills", existing="replace")
            assert report.in_place == ()
            assert read_container(docker, name, "/skills") == planned_tree(plan)

    @pytest.mark.parametrize("image", ["no-tar", "no-shell"])
    @pytest.mark.parametrize("strategy", ["packed", "concurrent"])
    async def test_nothing_is_called_written_that_a_mount_hides(
        self, docker: Engine, plan: Plan, image: str, strategy: Strategy
    ) -> None:
        with docker.container(image, "--tmpfs", "/skills") as name:
            try:
                await put(plan, docker, name, "/skills", strategy=strategy)
            except InstallError as error:
                assert error.report.written == ()  # noqa: PT017  # either is right
            else:
                skills = Inside.of(docker, name).root / "skills"
                assert read_tree(skills) == planned_tree(plan)

    @with_tar
    @pytest.mark.parametrize("existing", ["merge", "replace"])
    @pytest.mark.parametrize("mount", ["pdf", "pdf/bin"])
    async def test_a_tmpfs_at_a_skill_folder_or_in_it_is_merged_in_place(
        self, docker: Engine, plan: Plan, image: str, mount: str, existing: Existing
    ) -> None:
        with docker.container(image, "--tmpfs", f"/skills/{mount}") as name:
            write_files(docker, name, {"/skills/pdf/old": b"1", "/skills/xlsx/old": b"2"})
            report = await put(plan, docker, name, "/skills", existing=existing)
            assert report.ok
            tree = read_container(docker, name, "/skills")
            old = {path: tree.pop(path) for path in ("pdf/old", "xlsx/old") if path in tree}
            assert tree == planned_tree(plan)
            assert report.in_place == ("pdf",)
            if existing == "merge":
                assert set(old) == {"pdf/old", "xlsx/old"}
            else:
                assert set(old) == {"pdf/old"}
            again = await put(plan, docker, name, "/skills", skip_unchanged=True)
            assert len(again.unchanged) == len(plan.uploads)

    @with_tar
    @pytest.mark.parametrize("mount", ["/skills/pdf/my cache", "/my skills/pdf/x", "/s\\ü\tls/pdf"])
    async def test_a_volume_in_a_skill_folder_is_never_emptied(
        self, docker: Engine, plan: Plan, image: str, mount: str
    ) -> None:
        """Also where its path is written in another way in the kernel's list of mounts."""
        dest = mount[: mount.index("/pdf")]
        with docker.container(image, "--mount", f"type=volume,target={mount}") as name:
            write_files(docker, name, {f"{mount}/data": b"precious", f"{dest}/xlsx/old": b"2"})
            report = await put(plan, docker, name, dest, existing="replace")
            assert report.in_place == ("pdf",)
            data = f"{mount}/data".removeprefix(dest + "/")
            tree = read_container(docker, name, dest)
            assert tree == planned_tree(plan) | {data: (b"precious", False)}

    async def test_two_containers_that_share_a_volume_and_a_name_do_not_disturb_each_other(
        self, docker: Engine, tmp_path: Path
    ) -> None:
        files: dict[str, Content] = {f"f{n:04}": b"%d" % n for n in range(1_000)}
        plans = [plan_skills([make_skill(tmp_path / n / n, files)]) for n in ("one", "two")]
        shared = ("--hostname", "sandbox", "--volume", "shared:/skills")
        with docker.container("debian", *shared) as one, docker.container("debian", *shared) as two:
            async with trio.open_nursery() as nursery:
                for plan, name in zip(plans, (one, two), strict=True):

                    @nursery.start_soon
                    async def install_thrice(plan: Plan = plan, name: str = name) -> None:
                        for _ in range(3):
                            await put(plan, docker, name, "/skills", verify=True)

            expected = planned_tree(plans[0]) | planned_tree(plans[1])
            assert read_container(docker, one, "/skills") == expected

    async def test_a_merge_into_a_mounted_skill_folder_is_reported(
        self, docker: Engine, plan: Plan
    ) -> None:
        with docker.container("busybox", "--tmpfs", "/skills/pdf") as name:
            assert (await put(plan, docker, name, "/skills")).in_place == ("pdf",)

    @every_strategy
    async def test_a_destination_that_is_a_file_stays_one(
        self, docker: Engine, plan: Plan, strategy: Strategy
    ) -> None:
        with docker.container("busybox") as name:
            write_files(docker, name, {"/root/skills": b"a file"})
            with pytest.raises(
                (InstallError, DestinationError), match=r"(?i)not a (directory|folder)|in the way"
            ):
                await put(plan, docker, name, "/root/skills", strategy=strategy)
            assert docker.run(name, "cat", "/root/skills") == b"a file"
            assert list(read_container(docker, name, "/root")) == ["skills"]


class TestHostileNames:
    NAMES = (
        "a b",
        "new\nline",
        "tab\tcr\r",
        "'single' \"double\" `tick`",
        "$(touch pwned) ${HOME} $$",
        "; touch pwned; #",
        "-rf",
        "--checkpoint-action=exec=touch pwned",
        "back\\slash \\n \\",
        "*?[a-z]{b,c}",
        "~",
        "%20 %s %",
        "\x01\x1b[31m\x7f",
        "é \u202e \U0001f600",
        " leading and trailing ",
        "..., .hidden..",
        "BZh91AY&SY",
        "PaxHeaders.0",
        "@LongLink",
        ".wh.whiteout",
        "x" * 255,
        "ü" * 127,
        "100" * 33 + "/" + "y" * 101,
        "/".join(["deep"] * 100) + "/x",
        "/".join(["z" * 200] * 12) + "/x",
    )

    @pytest.fixture
    def hostile(self, tmp_path: Path) -> Plan:
        files: dict[str, Content] = {
            name: (f"#!/bin/sh\n# {number}\n".encode(), number % 3 == 0)
            for number, name in enumerate(self.NAMES)
        }
        folders: dict[str, Content] = {
            f"folders/{name.split('/')[0]}/{name.split('/')[-1]}": b"" for name in self.NAMES
        }
        return plan_skills([make_skill(tmp_path / "BZh $(touch pwned)\n-skill", files | folders)])

    @every_strategy
    @pytest.mark.parametrize("image", ["busybox", "debian", "no-shell"])
    async def test_every_name_arrives(
        self, docker: Engine, hostile: Plan, image: str, strategy: Strategy
    ) -> None:
        with docker.container(image) as name:
            dest = "/root/-my $(touch pwned) 'skills'\n"
            await put(hostile, docker, name, dest, strategy=strategy)
            assert read_container(docker, name, dest) == planned_tree(hostile)
            others = read_container(docker, name, "/root")
            assert len(others) == len(hostile.uploads)
            if image != "no-shell":
                assert docker.run(name, "find", "/", "-xdev", "-name", "pwned") == b""

    @with_tar
    async def test_every_name_is_replaced_verified_and_found_unchanged(
        self, docker: Engine, hostile: Plan, image: str
    ) -> None:
        with docker.container(image) as name:
            await put(hostile, docker, name, existing="replace", verify=True)
            await put(hostile, docker, name, existing="replace", verify=True)
            report = await put(hostile, docker, name, skip_unchanged=True)
            assert len(report.unchanged) == len(hostile.uploads)
            assert read_container(docker, name, DEST) == planned_tree(hostile)


class TestArchiveApi:
    """Case 18, CVE-2026-41567: the engine decompresses with the image's program, as root."""

    MAGIC = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"(\xb5/\xfd", b"\x04\x22\x4d\x18")

    @pytest.mark.parametrize("strategy", ["packed", "sequential"])
    @every_image
    async def test_nothing_compressed_goes_there(
        self, docker: Engine, tmp_path: Path, image: str, strategy: Strategy
    ) -> None:
        files = {"BZh91AY&SY": b"\x1f\x8b\x08", "data.tar.gz": b"\x1f\x8b\x08" + noise(999)}
        plan = plan_skills([make_skill(tmp_path / "BZh9", files)])
        with docker.container(image) as name:
            for dest in ("/root/BZh9", "/"):
                record = bytearray()
                path = tmp_path / f"wire{len(dest)}"
                path.mkdir()
                async with wired(docker, name, path, dest) as (runtime, wire):
                    wire.record = record
                    await install(plan, runtime, strategy=strategy)
                bodies = list(archive_bodies(bytes(record)))
                assert bodies or image != "no-shell"
                for body in bodies:
                    assert not body.startswith(self.MAGIC)
                    assert body[257:262] == b"ustar"
            assert read_container(docker, name, "/root/BZh9") == planned_tree(plan)


def archive_bodies(record: bytes) -> Iterator[bytes]:
    """Return the beginning of each body that was sent to the archive API."""
    for request in record.split(b"PUT /")[1:]:
        head, _, body = request.partition(b"\r\n\r\n")
        if b"/archive?" not in head.split(b"\r\n", 1)[0]:
            continue
        if b"transfer-encoding: chunked" in head.lower():
            body = body.partition(b"\r\n")[2]
        yield body[:1024]
