"""URLs of sandboxes that a command reaches, with a stand-in for that command.

It records its arguments and executes the command on this machine: what a real one would be given.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.far_sides import litter, processes
from tests.programs import run
from tests.trees import make_skill, planned_tree, read_tree
from trio_skills import Plan, RuntimeOpenError, find_skills, install, open_runtime, plan_skills

STAND_IN = """\
#!/usr/bin/env python3
import json, os, sys
with open(os.environ["RECORD"], "a") as record:
    print(json.dumps(sys.argv), file=record)
if os.environ.get("REFUSE"):
    sys.exit(os.environ["REFUSE"])
words = sys.argv[1:]
start = next(n for n, word in enumerate(words) if word == "sh")
os.execvp("sh", words[start:])
"""


@pytest.fixture(autouse=True)
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the stand-ins first in PATH; return the file of what they were called with."""
    folder = tmp_path / "stand-ins"
    folder.mkdir()
    for name in ("kubectl", "podman", "apptainer"):
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    return tmp_path / "record"


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    pdf = make_skill(tmp_path / "source" / "pdf", {"bin/go": (b"#!/bin/sh\n", True), "a b": b"1"})
    return plan_skills([pdf])


def prefixes(record: Path) -> set[tuple[str, ...]]:
    """Return what came before the command, in any call."""
    calls = [json.loads(line) for line in record.read_text().splitlines()]
    assert calls
    return {(Path(call[0]).name, *call[1 : call.index("sh")]) for call in calls}


PRESETS = {
    "kubectl://pod{path}": ["kubectl", "exec", "-i", "pod", "--"],
    "kubectl://pod{path}?namespace=n": ["kubectl", "exec", "-i", "--namespace=n", "pod", "--"],
    "kubectl://pod{path}?namespace=n&container=c&context=x": [
        *("kubectl", "exec", "-i", "--namespace=n", "--container=c", "--context=x", "pod", "--"),
    ],
    "kubectl://deploy%2Fweb{path}": ["kubectl", "exec", "-i", "deploy/web", "--"],
    "kubectl://a%20b%22%24(x)'{path}": ["kubectl", "exec", "-i", "a b\"$(x)'", "--"],
    "podman://box{path}": ["podman", "exec", "-i", "box"],
    "podman://box{path}?user=1000:1000": ["podman", "exec", "-i", "--user=1000:1000", "box"],
    "podman://box{path}?user=a%26b%20c": ["podman", "exec", "-i", "--user=a&b c", "box"],
    "apptainer://inst{path}": ["apptainer", "exec", "instance://inst"],
}


class TestPresets:
    @pytest.mark.parametrize("preset", PRESETS)
    async def test_a_url_is_an_argument_list(
        self, plan: Plan, tmp_path: Path, record: Path, preset: str
    ) -> None:
        root = tmp_path / "far side"
        for path in (quote(str(root)), str(root)):  # a raw space is fine, too
            async with open_runtime(preset.format(path=path)) as runtime:
                await install(plan, runtime, verify=True, existing="replace")
        assert read_tree(root) == planned_tree(plan)
        assert prefixes(record) == {tuple(PRESETS[preset])}
        assert litter(root) == []
        assert processes(str(root)) == []

    async def test_the_home_folder_is_that_of_the_far_side(
        self, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        for url in ("podman://box/~/.agents/skills", "podman://box/%7E/.agents/skills"):
            async with open_runtime(url) as runtime:
                await install(plan, runtime, existing="replace")
                assert (await runtime.run(["pwd"], {})).stdout.endswith(b"home/.agents/skills\n")
        assert read_tree(tmp_path / "home" / ".agents/skills") == planned_tree(plan)

    async def test_percent_escapes_stand_for_bytes_of_the_path(
        self, plan: Plan, tmp_path: Path
    ) -> None:
        for name in ("100%", "a?b", "a#b", "é", "a%20b", "a+b", "a&b=c"):
            root = tmp_path / "far side" / name
            async with open_runtime(f"kubectl://pod{quote(str(root))}") as runtime:
                await install(plan, runtime)
            assert read_tree(root) == planned_tree(plan)

    async def test_without_a_path_an_absolute_destination_is_needed(
        self, plan: Plan, tmp_path: Path
    ) -> None:
        absolute = plan_skills([skill.folder for skill in plan.skills], str(tmp_path / "far"))
        async with open_runtime("apptainer://inst") as runtime:
            await install(absolute, runtime)
        assert read_tree(tmp_path / "far") == planned_tree(plan)


class TestMalformed:
    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            ("kubectl:", r"kubectl://NAME/path"),
            ("kubectl:pod", r"kubectl://NAME/path"),
            ("kubectl:/pod", r"kubectl://NAME/path"),
            ("kubectl://", "names no sandbox"),
            ("kubectl:///path", "names no sandbox"),
            ("kubectl://-pod/path", "names no sandbox"),
            ("kubectl://%2Dpod/path", "names no sandbox"),
            ("podman://box%00/path", "names no sandbox"),
            ("podman://box/path?users=1", "unknown option 'users'; known: user"),
            ("podman://box/path?user", "'user' has no value"),
            ("podman://box/path?user=", "'user' has no value"),
            ("podman://box/path?user=-x", "'user' has no value"),
            ("podman://box/path?namespace=n", "unknown option"),
            ("kubectl://pod/path?user=n", "known: namespace, container, context"),
            ("apptainer://inst/path?user=n", "unknown option"),
            ("ssh://", "names no"),
            ("ssh://host:port/path", "HOST:PORT"),
            ("ssh://-oProxyCommand=x/path", "names no"),
            ("ssh://user@-host/path", "names no"),
            ("ssh://user@:22/path", "names no"),
            ("ssh://host/path?user=x", "unknown option"),
            ("exec:", "names no command"),
            ("exec:  ", "names no command"),
            ("exec:'env", "cannot be told apart"),
            ("exec:env \\", "cannot be told apart"),
        ],
    )
    def test_a_url_is_refused_by_the_call(self, record: Path, url: str, reason: str) -> None:
        with pytest.raises(RuntimeOpenError, match=reason) as caught:
            open_runtime(url)
        assert caught.value.url == url
        assert not record.exists()

    def test_the_command_line_says_so_and_ends_with_2(self, plan: Plan) -> None:
        ended = run("install", plan.skills[0].folder, "--to", "kubectl:pod")
        assert ended.returncode == 2
        assert "kubectl://NAME/path" in ended.stderr


class TestUnreachable:
    @pytest.mark.parametrize("url", ["kubectl://pod/x", "podman://box/x", "apptainer://inst/x"])
    async def test_what_the_command_complains_of_is_the_reason(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("REFUSE", 'Error from server (NotFound): pods "pod" not found')
        with pytest.raises(RuntimeOpenError, match=r"NotFound.* not found"):
            async with open_runtime(url):
                pytest.fail("it was opened")

    @pytest.mark.parametrize(
        "url", ["kubectl://pod/x", "podman://box/x", "apptainer://inst/x", "exec:no-such-command"]
    )
    async def test_a_command_that_is_missing_is_named(
        self, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        program = url.partition(":")[0].replace("exec", "no-such-command")
        with pytest.raises(RuntimeOpenError, match=program):
            async with open_runtime(url):
                pytest.fail("it was opened")

    async def test_a_sandbox_without_a_shell_is_said_to_have_none(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeOpenError, match=r"\bsh\b|shell"):
            async with open_runtime(f"exec:env PATH={tmp_path}"):
                pytest.fail("it was opened")

    async def test_a_command_that_pastes_its_arguments_into_a_shell_is_found_out(self) -> None:
        """As `ssh host` does: names would be executed there."""
        with pytest.raises(RuntimeOpenError):
            async with open_runtime("""exec:sh -c 'eval "$*"' sh"""):
                pytest.fail("it was opened")


class TestExec:
    async def test_words_are_split_as_a_shell_does(self, plan: Plan, tmp_path: Path) -> None:
        root = tmp_path / "far"
        absolute = plan_skills([skill.folder for skill in plan.skills], str(root))
        url = """exec:env -- 'A=a  b' B="c'd" C=\\$HOME\\ x D="""
        async with open_runtime(url) as runtime:
            await install(absolute, runtime, verify=True)
            shown = await runtime.run(["sh", "-c", r'printf "%s\n" "$A" "$B" "$C" "$D"'], {})
        assert shown.stdout == b"a  b\nc'd\n$HOME x\n\n"
        assert read_tree(root) == planned_tree(plan)

    async def test_relative_targets_go_to_where_commands_start(
        self, plan: Plan, tmp_path: Path
    ) -> None:
        (tmp_path / "start").mkdir()
        async with open_runtime(f"exec:env -C '{tmp_path}/start'") as runtime:
            await install(plan, runtime)
        assert read_tree(tmp_path / "start") == planned_tree(plan)

    def test_the_command_line_takes_a_command_and_a_destination(
        self, plan: Plan, tmp_path: Path, record: Path
    ) -> None:
        to = ["--to", "exec:kubectl exec -i POD --", "--dest", str(tmp_path / "far side")]
        ended = run("install", plan.skills[0].folder, *to, "--verify", "--json")
        assert ended.returncode == 0, ended.stderr
        report: dict[str, Any] = json.loads(ended.stdout)
        assert report["ok"]
        assert report["round_trips"] == 2
        assert read_tree(tmp_path / "far side") == planned_tree(plan)
        assert prefixes(record) == {("kubectl", "exec", "-i", "POD", "--")}

    @pytest.mark.corpus
    @pytest.mark.parametrize("package", ["abvx-agent-skills", "bitranox-skills"])
    def test_the_command_line_installs_a_collection(
        self, corpus: dict[str, Path], tmp_path: Path, package: str
    ) -> None:
        root = tmp_path / "far side"
        to = ["--to", "exec:kubectl exec -i POD --", "--dest", str(root)]
        ended = run("install", corpus[package], *to, "--verify", "--existing", "replace")
        assert ended.returncode == 0, ended.stderr
        assert read_tree(root) == planned_tree(plan_skills(find_skills(corpus[package])))
        again = run("install", corpus[package], *to, "--skip-unchanged")
        assert f"{len(read_tree(root)):,} unchanged" in again.stdout


def test_the_stand_in_comes_first() -> None:
    assert Path(shutil.which("kubectl") or "").parent.name == "stand-ins"
