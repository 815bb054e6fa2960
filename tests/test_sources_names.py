"""A folder may have any name: none is taken for something else in the sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trees import read_tree, write_tree
from trio_skills import ArchiveCache, ExecRuntime, install_sources


@pytest.mark.parametrize("name", [r"\056\056\057" * 4 + "victim", r"a\tb", r"\n", "a\nb", "-rf"])
async def test_a_name_is_itself(tmp_path: Path, name: str) -> None:
    """GNU tar takes escapes in the argument of `-C` for what they stand for."""
    write_tree(tmp_path / "source", {"keys": b"ours"})
    write_tree(tmp_path / "victim", {"keys": b"theirs"})
    archive = await ArchiveCache().source_archive(tmp_path / "source")
    root = tmp_path / "box"
    root.mkdir()
    await install_sources(ExecRuntime(["env"], str(root)), {name: archive}, "dest")
    assert read_tree(root / "dest" / name) == read_tree(tmp_path / "source")
    assert read_tree(tmp_path / "victim") == {"keys": (b"theirs", False)}
    assert not (root / "victim").exists()
