"""Sandboxes in which our program runs: a fault is a program of theirs that misbehaves."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import attrs
import trio

from tests.containers import DEST, Inside, wired
from tests.far_sides import PROGRAMS, clients, litter, processes
from tests.faults.cells import Cell, Fault, Phase
from tests.faults.check import remove_tree, wait_until
from tests.faults.disk import Disk
from tests.services import Engine, SshServer
from tests.services.cutting import Wire
from tests.trees import Tree, read_tree, write_tree
from trio_skills import Packing, RunResult, Runtime, TransientError, open_ssh
from trio_skills.runtimes.docker import open_docker

_PROGRAMS: Mapping[Phase, tuple[str, ...]] = {
    "before": ("mkdir",),  # the workspace
    "during": ("tar", "cat"),  # `cat` writes single files, where a packed transfer has failed
    "after": ("mv",),  # to its place
    "chmod": ("chmod",),
    "verify": ("sha256sum",),
    "clean-up": ("rm",),
}
"""Which programs do the work of a phase."""

_TEXTS: Mapping[Fault, str] = {
    "refused": "Connection refused",
    "timed out": "Operation timed out",
    "disk full": "No space left on device",
    "permission": "Permission denied",
}
"""What a program says that is at fault."""

# `$real` is the program that it stands for. Our program is every `sh` above it.
_MISBEHAVIOUR: Mapping[Fault, str] = {
    "refused": f"echo '{_TEXTS['refused']}' >&2; exit 1",
    "timed out": f"sleep 0.05; echo '{_TEXTS['timed out']}' >&2; exit 124",
    "cut": ': >"$0.cut"; sleep 0.1; exec "$real" "$@"',
    "short write": """
        case $0 in *tar | *cat) head -c 2000 | "$real" "$@" 2>/dev/null ;; esac
        exit 0
    """,
    "exit code": '"$real" "$@"; exit 3',
    "no text": "exit 1",
    "slow": 'sleep 0.2; exec "$real" "$@"',
    "hung": "exec sleep 1000000",
    "disk full": f"echo '{_TEXTS['disk full']}' >&2; exit 1",
    "permission": f"echo '{_TEXTS['permission']}' >&2; exit 1",
    # Without another program: a sandbox has few. Where no shell of ours is above it, itself.
    "killed": """
        pid=$PPID
        while [ "$pid" -gt 0 ]; do
          read -r _ name _ parent _ <"/proc/$pid/stat"
          [ "$name" = '(sh)' ] || break
          killed="$killed $pid" pid=$parent
        done
        [ "$killed" ] || { : >"$0.hit" && kill -9 $$; }
        kill -9 $killed && : >"$0.hit"
    """,
}

# `Packing` first moves its archive into the workspace: that is before the transfer.
_PASSES = 'case "$*" in */archive) exec "$real" "$@" ;; esac'

TOOLS = ("sh", *PROGRAMS)


@attrs.define
class World:
    """A folder of programs, which is all that a sandbox finds."""

    folder: Path
    """Where it is on this machine."""
    inside: str
    """Where it is in the sandbox."""
    home: str = ""
    """Where this machine's programs are in the sandbox; empty: in the same places."""

    def make(self) -> None:
        remove_tree(self.folder)
        for program in TOOLS:
            (self.folder / program).symlink_to(self._real(program))

    @contextmanager
    def fault(self, cell: Cell) -> Iterator[None]:
        """Let the programs of a phase misbehave."""
        broken = list(_PROGRAMS[cell.phase])
        try:
            for program in broken:
                self._break(program, cell)
            if cell.phase == "clean-up":  # of a transfer that failed
                broken.append("tar")
                self._write("tar", "exit 1")
            yield
        finally:
            for program in broken:
                self._replace(program)
                (self.folder / program).symlink_to(self._real(program))

    def has_struck(self) -> bool:
        """Whether a program has misbehaved since it was made."""
        return any(self.folder.glob("*.hit"))

    def is_cut(self) -> bool:
        """Whether a connection is to be cut now; says so once."""
        marks = list(self.folder.glob("*.cut"))
        for mark in marks:
            mark.unlink(missing_ok=True)
        return bool(marks)

    def _break(self, program: str, cell: Cell) -> None:
        if cell.fault == "missing tool":
            self._replace(program)
            return
        passes = _PASSES if cell.phase == "after" else ""
        # Who kills says by himself when it is done.
        mark = "" if cell.fault == "killed" else ': >"$0.hit"'
        self._write(program, passes, mark, _MISBEHAVIOUR[cell.fault])

    def _write(self, program: str, *lines: str) -> None:
        self._replace(program)
        script = (f"#!{self._real('sh')}", f"real={self._real(program)}", *lines, "")
        (self.folder / program).write_text("\n".join(script))
        (self.folder / program).chmod(0o755)

    def _replace(self, program: str) -> None:
        (self.folder / program).unlink(missing_ok=True)

    def _real(self, program: str) -> str:
        if program == "sh":
            program = "dash"
        return self.home + program if self.home else str(shutil.which(program))


@attrs.define
class Shell:
    """What the three have in common: a folder that can be seen from here, and a world."""

    root: Path
    """The destination, as this machine sees it."""
    world: World
    disk: Disk | None
    """Where it is; None: on this machine's own."""

    @contextmanager
    def fault(self, cell: Cell) -> Iterator[None]:
        disk = _full_disk(self, cell)
        with self.world.fault(cell) if disk is None else disk.nearly_full():
            yield

    def has_struck(self, cell: Cell) -> bool:
        # Nobody can tell of a program that is not there, or of a disk, but by the error.
        is_silent = cell.fault == "missing tool" or _full_disk(self, cell) is not None
        return is_silent or self.world.has_struck()

    def cause(self, cell: Cell) -> Sequence[str]:
        if cell.fault == "missing tool":
            return _PROGRAMS[cell.phase]
        if cell.fault == "cut":  # each client has its own words
            return [""]
        return ["tar failed" if cell.phase == "clean-up" else _TEXTS.get(cell.fault, "")]

    def reset(self, tree: Tree) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        remove_tree(self.root)
        write_tree(self.root, tree)
        self.world.make()

    def read(self) -> Tree:
        return read_tree(self.root)

    def litter(self) -> Sequence[Path]:
        return litter(self.root.parent)


def _full_disk(shell: Shell, cell: Cell) -> Disk | None:
    """Return the disk that is full in a cell; in the other phases a program has to say so."""
    return shell.disk if (cell.fault, cell.phase) == ("disk full", "during") else None


@attrs.define
class Packed(Shell):
    """A runtime of two methods, with `Packing` over it: a folder of this machine."""

    async def write(self, target: str, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        path = self.root / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    async def run(self, argv: Sequence[str], env: Mapping[str, str]) -> RunResult:
        try:
            ended = await trio.run_process(
                [f"{self.world.folder}/{argv[0]}", *argv[1:]],
                cwd=self.root,
                env={"PATH": self.world.inside, **env},
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                start_new_session=True,
                deliver_cancel=_kill_session,
            )
        except FileNotFoundError:
            return RunResult(127, stderr=f"{argv[0]}: not found".encode())
        if self.world.is_cut():
            raise TransientError
        return RunResult(ended.returncode, ended.stdout, ended.stderr)

    @asynccontextmanager
    async def faulty(self, cell: Cell) -> AsyncIterator[Runtime]:
        with self.fault(cell):
            yield Packing(self)
        await trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def sound(self) -> AsyncIterator[Runtime]:
        yield Packing(self)
        await trio.lowlevel.checkpoint()

    async def settle(self, cell: Cell) -> None:
        await _nobody_works_in(self)
        for archive in self.root.rglob(".trio-skills-*.tar"):
            os.utime(archive, (0, 0))  # nobody can see whose it is, so that it stays for a day


async def _kill_session(process: trio.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await trio.lowlevel.checkpoint()


@attrs.define
class Ssh(Shell):
    """A host, over one connection."""

    server: SshServer

    @asynccontextmanager
    async def faulty(self, cell: Cell) -> AsyncIterator[Runtime]:
        async with self.sound() as runtime, trio.open_nursery() as nursery:
            with self.fault(cell):
                nursery.start_soon(self._cut)
                yield runtime
            nursery.cancel_scope.cancel()

    async def _cut(self) -> None:
        """End the server's side of the connection as soon as it is asked for."""
        while True:
            if self.world.is_cut():
                for pid in filter(self._is_its_own, processes("sshd:", "@notty")):
                    os.kill(pid, signal.SIGKILL)
            await trio.sleep(0.005)

    def _is_its_own(self, pid: int) -> bool:
        """Whether the server has started a process: another test may have another server."""
        listener = int((self.server.folder / "pid").read_text())
        with suppress(OSError):
            while pid > 1:
                if pid == listener:
                    return True
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return False

    @asynccontextmanager
    async def sound(self) -> AsyncIterator[Runtime]:
        port = self.server.world_port
        host = f"{self.server.user}@127.0.0.1"
        async with open_ssh(
            host, str(self.root), port=port, command=self.server.command
        ) as runtime:
            yield runtime

    async def settle(self, cell: Cell) -> None:
        if cell.fault == "hung":  # what neither reads nor ends, only somebody there can end
            for pid in _at_work_in(self):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        await _nobody_works_in(self)
        await wait_until(lambda: not clients(self.server), "an ssh is left")

    def litter(self) -> Sequence[Path]:
        return [*litter(self.root.parent), *litter(self.server.home)]


@attrs.define
class Docker(Shell):
    """A container, by way of a wire."""

    engine: Engine
    container: str
    folder: Path
    inside: Inside

    @asynccontextmanager
    async def faulty(self, cell: Cell) -> AsyncIterator[Runtime]:
        (self.folder / "wire.sock").unlink(missing_ok=True)
        async with (
            wired(self.engine, self.container, self.folder) as (runtime, wire),
            trio.open_nursery() as nursery,
        ):
            wire.stays_cut = False
            with self.fault(cell):
                nursery.start_soon(self._cut, wire)
                yield runtime
            nursery.cancel_scope.cancel()

    async def _cut(self, wire: Wire) -> None:
        while True:
            if self.world.is_cut():
                wire.is_cut = False
                wire.cut()
            await trio.sleep(0.005)

    @asynccontextmanager
    async def sound(self) -> AsyncIterator[Runtime]:
        async with open_docker(self.container, DEST, host=self.engine.host) as runtime:
            yield runtime

    async def settle(self, cell: Cell) -> None:
        if cell.fault == "hung":
            self.inside.kill()
        await wait_until(lambda: not self.inside.are_there(), "a process is left in the container")

    def litter(self) -> Sequence[Path]:
        found: list[Path] = []
        for folder in self.inside.root.iterdir():
            if folder.name not in ("proc", "sys", "dev") and not folder.is_symlink():
                found += litter(folder)
        return found


async def _nobody_works_in(shell: Shell) -> None:
    await wait_until(lambda: not _at_work_in(shell), "a process is left")


def _at_work_in(shell: Shell) -> set[int]:
    """Return the ids of the processes of a sandbox that is on this machine."""
    found = {*processes(str(shell.root)), *processes(str(shell.world.folder))}
    for process in Path("/proc").glob("[1-9]*"):
        with suppress(OSError):  # it has ended
            if (process / "cwd").readlink().is_relative_to(shell.root):
                found.add(int(process.name))
    return found
