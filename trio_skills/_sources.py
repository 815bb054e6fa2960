"""Put source archives into a sandbox: each becomes a folder, which appears whole."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Protocol, runtime_checkable

import attrs
import trio

from trio_skills._archive import Archive, record
from trio_skills._beneath import is_utf8
from trio_skills._calls import Calls, Tries
from trio_skills._collisions import case_clashes
from trio_skills._errors import PlanError, Problem, UploadError, forget_locals
from trio_skills._inspection import inspect
from trio_skills._limits import Limits
from trio_skills._plan import check_dest, normal
from trio_skills._report import Outcome, Report, install_error
from trio_skills._runtime import Runtime, traits_of
from trio_skills._tree import MAX_NAME
from trio_skills.runtimes.packing import Packing


@runtime_checkable
class Extracts(Protocol):
    """A runtime with a way of its own to unpack a source archive."""

    async def extract(self, archive: Archive, target: str) -> int:
        """Make the folder `target` an archive's tree, and note the archive's digest beside it.

        What was there before is replaced at once, when all has arrived and is unpacked. The note is
        gone before that and written after it. Returns how many calls it took; raises what failed.

        **Cancellation:** the folder is as it was, or as planned.
        """
        ...


async def install_sources(
    runtime: Runtime,
    archives: Iterable[Archive] | Mapping[str, Archive],
    dest: str = ".",
    *,
    limits: Limits | None = None,
    retries: int = 3,
) -> Report:
    """Unpack source archives in a sandbox, each in a folder of `dest`; return what became of it.

    Args:
        runtime: The sandbox. One without a way of its own to unpack gets the archive as a file, and
            needs `sh`, `tar`, `mkdir`, `mv` and `rm`. Every one needs `sha256sum`, to see what is
            there.
        archives: From `ArchiveCache.source_archive`. The folder is called as the archive's root is,
            or as the key says, where this is a mapping.
        dest: A POSIX path in the sandbox; a relative one is taken from the runtime's own folder.
        limits: How much may be in flight; share one among the installs of a process.
        retries: How often a call that ends with a `TransientError` is tried again, as in `install`.

    A folder that was made of an archive with the same digest is left as it is, whatever was done in
    it since: so a set-up that was run there is not lost. Any other folder of that name is replaced
    as a whole, when the new one is complete.

    Raises:
        InstallError: Some archive is not there; raised when every transfer has settled. The report
            has an outcome for each, whose target is its folder.
        PlanError: Two archives have one name, or one for this runtime, or a name cannot be a
            folder's.
        CommandError: It could not be seen what is there; nothing was written.

    **Cancellation:** no further transfer starts, and those in flight are ended. A folder is there
    as it was, or as planned; what was unpacked beside it is removed.
    """
    targets = _targets(archives, dest)
    if traits_of(runtime).folds_case and (clashes := case_clashes(targets)):
        raise PlanError(clashes)
    job = _Job(runtime, targets, Calls.to(runtime, limits, retries))
    await job.find_unchanged()
    await job.transfer()
    report = job.report()
    if report.failed:
        raise install_error(report, "source archives")
    return report


def _targets(archives: Iterable[Archive] | Mapping[str, Archive], dest: str) -> dict[str, Archive]:
    """Return the archives by their folders. Raises `PlanError` for what is wrong with any."""
    if isinstance(archives, Mapping):
        named = list(archives.items())
    else:
        named = [(getattr(archive, "name", ""), archive) for archive in archives]
    problems = check_dest(dest)
    targets: dict[str, Archive] = {}
    for name, archive in named:
        if not isinstance(archive, Archive):
            raise TypeError("archives are from ArchiveCache.source_archive")
        problems += _problems_of_name(name)
        target = normal(posixpath.join(dest, name))
        if target in targets and targets[target].digest != archive.digest:
            message = "two archives have this name; give them others, as the keys of a mapping"
            problems.append(Problem("collision", name, message))
        targets[target] = archive
    if problems:
        raise PlanError(problems)
    return dict(sorted(targets.items()))


def _problems_of_name(name: str) -> Iterator[Problem]:
    if name in ("", ".", "..") or "/" in name or "\0" in name or not is_utf8(name):
        message = "this cannot be a folder's name; give another one, as the key of a mapping"
        yield Problem("name-invalid", name, message)
    elif len(name.encode()) > MAX_NAME:
        yield Problem("name-too-long", name, f"a name is over {MAX_NAME} bytes; shorten it")
    elif name.startswith(".trio-skills"):
        yield Problem("name-invalid", name, "such names are for what is under way")


@attrs.define
class _Job:
    """One call of `install_sources` under way."""

    runtime: Runtime
    targets: dict[str, Archive]
    calls: Calls
    began: float = attrs.Factory(trio.current_time)
    outcomes: dict[str, Outcome] = attrs.Factory(dict)

    async def find_unchanged(self) -> None:
        """Look at the notes of all, at once."""
        await trio.lowlevel.checkpoint()
        if not self.targets:
            return
        records = {target: record(target, a.digest) for target, a in self.targets.items()}
        notes = [path for path, _ in records.values()]
        folders = sorted({posixpath.dirname(path) for path in notes})
        states = await inspect(self.runtime, [*self.targets, *notes, *folders], self.calls)
        for target, (path, note) in records.items():
            is_noted = (
                states[path].digest == hashlib.sha256(note).hexdigest()
                and states[posixpath.dirname(path)].kind == "folder"  # a link is none
            )
            if is_noted and states[target].kind == "folder":
                size = self.targets[target].size
                self.outcomes[target] = Outcome(target, size, "unchanged")

    async def transfer(self) -> None:
        await trio.lowlevel.checkpoint()
        extractor = self.runtime if isinstance(self.runtime, Extracts) else Packing(self.runtime)
        waiting = [target for target in self.targets if target not in self.outcomes]
        async with trio.open_nursery() as nursery:
            for number, target in enumerate(waiting):
                await self.calls.acquire(self.targets[target].size)
                nursery.start_soon(self._settle, extractor, number, target)
        for outcome in self.outcomes.values():
            forget_locals(outcome.error)  # now that every frame that they went through has ended

    async def _settle(  # noqa: ASYNC910  # `extract` has one, and `transfer` has its own
        self, extractor: Extracts, number: int, target: str
    ) -> None:
        archive = self.targets[target]
        started = self._now()
        error = None
        tries = Tries(self.calls.retries)
        try:
            # Cancelled since the limits let it through: then it must not begin.
            await trio.lowlevel.checkpoint_if_cancelled()
            taken = await self.calls.repeat(partial(extractor.extract, archive, target), tries)
            self.calls.count += taken - 1
        except Exception as exc:  # noqa: BLE001  # any failure is an outcome
            error = UploadError(target, exc)
        finally:
            self.calls.release(archive.size)
        self.outcomes[target] = Outcome(
            target=target,
            size=archive.size,
            state="written" if error is None else "failed",
            error=error,
            started=started,
            ended=self._now(),
            transfer=number,
            retries=tries.done,
        )

    def report(self) -> Report:
        names = "".join(f"{target}\0{a.digest}\0" for target, a in self.targets.items())
        return Report(
            outcomes=tuple(
                self.outcomes.get(target) or Outcome(target, archive.size, "not reached")
                for target, archive in self.targets.items()
            ),
            strategy="packed",
            round_trips=self.calls.count,
            retries=self.calls.retried,
            seconds=self._now(),
            plan_digest=hashlib.sha256(names.encode()).hexdigest(),
        )

    def _now(self) -> float:
        return trio.current_time() - self.began
