"""The published skill collections that tests run on: `python -m tests.corpus` downloads them.

Each is a wheel, pinned in `corpus.txt` by version and hash, and unpacked without running any of its
code into `.corpus/<package>/` beside `pyproject.toml`. A collection is there whole or not at all,
so an interrupted download is repaired by the next, and one that is there costs nothing.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

REQUIREMENTS = Path(__file__).with_name("corpus.txt")
CORPUS = Path(__file__).parent.parent / ".corpus"

SKILLS = {
    "abvx-agent-skills": "abvx_agent_skills/skills",
    "biomedical-ai-skills": "biomedical_ai_skills/skills",
    "bitranox-skills": "bitranox_skills/plugin/skills",
    "claude-data-skills": "skills",
    "writing-skills": "skills",
}
"""Where the skills lie in each wheel."""

PIN = ".pin"
"""A file in each unpacked collection: its line of `corpus.txt`."""


def collections() -> dict[str, Path]:
    """Return the folder in which each collection's skills lie, at any depth.

    Raises:
        FileNotFoundError: One is not there, or is not the version that `corpus.txt` names.
    """
    if any(not _is_there(package, pin) for package, pin in _pins().items()):
        raise FileNotFoundError("the skill collections are not here; run `make corpus`")
    return {package: CORPUS / package / folder for package, folder in SKILLS.items()}


def skill_folders(collection: Path) -> list[Path]:
    """Return the folders in a collection that hold a `SKILL.md`, sorted."""
    return sorted(skill_md.parent for skill_md in collection.rglob("SKILL.md"))


def download() -> None:
    """Download and unpack what is not there."""
    pins = _pins()
    CORPUS.mkdir(exist_ok=True)
    for left in CORPUS.glob(".partial-*"):  # by a run that was interrupted
        shutil.rmtree(left)
    if all(_is_there(package, pin) for package, pin in pins.items()):
        return
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=CORPUS) as partial:
        wheels = Path(partial, "wheels")
        _pip_download(wheels)
        for package, pin in pins.items():
            if _is_there(package, pin):
                continue
            (wheel,) = wheels.glob(f"{package.replace('-', '_')}-*.whl")
            fresh = Path(partial, package)
            unpack(wheel, fresh)
            (fresh / PIN).write_text(pin)
            if (CORPUS / package).exists():
                (CORPUS / package).rename(Path(partial, f"old-{package}"))
            fresh.rename(CORPUS / package)


def unpack(wheel: Path, into: Path) -> None:
    """Unpack a wheel with its execute bits, which `zipfile` drops.

    Raises:
        ValueError: A path in it leads out of `into`.
    """
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = PurePosixPath(member.filename)
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"{wheel.name} holds {member.filename!r}, which leads out of it")
            file = archive.extract(member, into)
            if not member.is_dir() and (member.external_attr >> 16) & stat.S_IXUSR:
                os.chmod(file, 0o755)


def _pins() -> dict[str, str]:
    lines = REQUIREMENTS.read_text().splitlines()
    return {line.split("==")[0]: line for line in lines if not line.startswith("#")}


def _is_there(package: str, pin: str) -> bool:
    try:
        return (CORPUS / package / PIN).read_text() == pin
    except FileNotFoundError:
        return False


def _pip_download(into: Path) -> None:
    arguments = ["--no-deps", "--only-binary=:all:", "--python-version=3.14", "--require-hashes"]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "download", *arguments, "-r", REQUIREMENTS, "-d", into], check=True)


def _summary(package: str, collection: Path) -> str:
    skills = skill_folders(collection)
    files = [path.stat() for skill in skills for path in skill.rglob("*") if path.is_file()]
    executables = sum(bool(file.st_mode & stat.S_IXUSR) for file in files)
    return (
        f"{package:20} {len(skills):3} skills {len(files):5,} files "
        f"{sum(file.st_size for file in files):10,} bytes {executables:2} executables"
    )


def main() -> None:
    download()
    for package, collection in collections().items():
        print(_summary(package, collection))


if __name__ == "__main__":
    main()
