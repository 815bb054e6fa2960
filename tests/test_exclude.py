"""What is left out, beneath folders of any name."""

from __future__ import annotations

import pytest

from trio_skills._exclude import Exclusion


@pytest.mark.parametrize("folder", ["", "a/", "a\nb/", "\n/", "a\n/b/", "\x0b/"])
@pytest.mark.parametrize("name", [".git", "__pycache__", "x.pyc", ".DS_Store"])
def test_the_defaults_hold_beneath_any_folder(folder: str, name: str) -> None:
    for patterns in ((), ("*.log",)):
        rule = Exclusion.of(patterns)
        assert rule.leaves_out(folder + name, name, False)
        assert rule.leaves_out(f"{folder}{name}/inside", "inside", False) or not patterns


@pytest.mark.parametrize("folder", ["", "a\nb/"])
def test_patterns_hold_beneath_any_folder(folder: str) -> None:
    """As git has it: a newline is a letter of a name like any other."""
    rule = Exclusion.of(("*.pem", "/secret"))
    assert rule.leaves_out(f"{folder}x.pem", "x.pem", False)
    assert rule.leaves_out(f"{folder}x\ny.pem", "x\ny.pem", False)
    assert not rule.leaves_out(f"{folder}x.pem\n", "x.pem\n", False)
    assert not rule.leaves_out(f"{folder}.git\n", ".git\n", True)
    assert bool(rule.leaves_out(f"{folder}secret", "secret", False)) is (folder == "")
