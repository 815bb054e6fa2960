"""What an eval's worker does: source archives into a sandbox, and `pip install` of them there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.services import Engine
from trio_skills import Archive, ArchiveCache, Report, install_sources, open_local
from trio_skills.runtimes.docker import open_docker

ROOT = Path(__file__).parent.parent
LEFT_OUT = (ROOT / ".gitignore").read_text().splitlines()

PIP = [sys.executable, "-m", "pip", "--no-cache-dir", "--disable-pip-version-check"]
# Without a network, so with the build backend that is there.
OFFLINE = ["--no-index", "--no-build-isolation", "--no-deps", "--root-user-action", "ignore"]
PROGRAM = "import small, trio_skills; print(small.__file__, trio_skills.__file__, small.greet())"


def make_package(folder: Path) -> Path:
    (folder / "src" / "small").mkdir(parents=True)
    (folder / "src" / "small" / "__init__.py").write_text("def greet():\n    return 'hello'\n")
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "small"\nversion = "1"\n'
    )
    return folder


async def archives(folder: Path) -> dict[str, Archive]:
    """Return the archives of this very checkout, and of a small package."""
    cache = ArchiveCache()
    return {
        "trio-skills": await cache.source_archive(ROOT, exclude=LEFT_OUT),
        "small": await cache.source_archive(make_package(folder)),
    }


def installing(dest: str, into: str) -> list[str]:
    return [*PIP, "install", *OFFLINE, "--target", into, f"{dest}/trio-skills", f"{dest}/small"]


def check_import(printed: str, into: str) -> None:
    assert printed.split() == [
        f"{into}/small/__init__.py",
        f"{into}/trio_skills/__init__.py",
        "hello",
    ]


def test_a_checkout_is_installed_by_pip_in_a_local_directory(tmp_path: Path) -> None:
    async def main() -> Report:
        async with open_local(tmp_path / "sandbox") as runtime:
            sources = await archives(tmp_path / "small")
            report = await install_sources(runtime, sources, "src")
            again = await install_sources(runtime, sources, "src")
        assert again.summary() == "2 unchanged"
        return report

    assert trio.run(main).summary() == "2 written"
    into = str(tmp_path / "site")
    subprocess.run(installing(str(tmp_path / "sandbox/src"), into), check=True, cwd=tmp_path)
    printed = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        check=True,
        env={"PYTHONPATH": into},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    ).stdout
    check_import(printed, into)


@pytest.mark.docker
@pytest.mark.slow
def test_a_checkout_is_installed_by_pip_in_a_container(docker: Engine, tmp_path: Path) -> None:
    # The container has this machine's Python, its libraries, and this environment; no network.
    there = {path for path in ("/usr", "/lib", "/lib64") if Path(path).exists()}
    there |= {sys.base_prefix, sys.prefix}
    volumes = [option for path in sorted(there) for option in ("--volume", f"{path}:{path}:ro")]

    async def main(container: str) -> None:
        sources = await archives(tmp_path / "small")
        async with open_docker(container, host=docker.host) as runtime:
            report = await install_sources(runtime, sources, "/root/src")
            assert report.summary() == "2 written"
            ended = await runtime.run(installing("/root/src", "/root/site"), {})
            assert ended.exit_code == 0, (ended.stdout + ended.stderr).decode()
            python = [sys.executable, "-c", PROGRAM]
            ended = await runtime.run(python, {"PYTHONPATH": "/root/site"})
            check_import(ended.stdout.decode(), "/root/site")
            # What pip built there is left alone.
            again = await install_sources(runtime, sources, "/root/src")
            assert again.summary() == "2 unchanged"

    with docker.container("debian", *volumes) as container:
        trio.run(main, container)
