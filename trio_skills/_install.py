"""Carry a plan out: the one place with a nursery.

Each phase ends before the next begins: refuse, compare, transfer, set execute bits, verify. In the
transfers a failure is a value, so that every one settles; what is raised is raised at the end. Only
`Exception` is a failure: `Cancelled` and `KeyboardInterrupt` pass through, and then nothing new
starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import get_args

import attrs
import trio

from trio_skills import _commands
from trio_skills._archive_cache import ArchiveCache
from trio_skills._calls import Calls, Tries
from trio_skills._errors import (
    DestinationError,
    PlanError,
    Problem,
    SourceChangedError,
    TransientError,
    UploadError,
    VerifyError,
    forget_locals,
)
from trio_skills._events import Event, InstallEnded, TransferEnded, TransferStarted
from trio_skills._inspection import inspect
from trio_skills._limits import Limits
from trio_skills._plan import Plan
from trio_skills._report import Outcome, Report, install_error
from trio_skills._runtime import (
    Existing,
    FileState,
    Runtime,
    SetsExecutable,
    WritesMany,
    traits_of,
)
from trio_skills._threads import in_thread
from trio_skills._transfers import Strategy, Transfer, by_folder, in_waves, pack
from trio_skills._upload import Upload

_GIVE_UP_AFTER = 3
"""When the first so many files of a failed batch fail alone too, the others are not tried: a
sandbox that is gone may take its time for each to say so."""

_log = logging.getLogger("trio_skills")


async def install(
    plan: Plan,
    runtime: Runtime,
    *,
    limits: Limits | None = None,
    strategy: Strategy = "auto",
    batch_size: int = 8,
    existing: Existing = "merge",
    verify: bool = False,
    skip_unchanged: bool = False,
    archives: ArchiveCache | None = None,
    retries: int = 3,
    on_event: Callable[[Event], None] | None = None,
) -> Report:
    """Put every file of `plan` into a sandbox, and return what became of each.

    Args:
        plan: From `plan_skills` or `plan_uploads`.
        runtime: The sandbox: from `open_runtime`, or anything with the methods of `Runtime`.
        limits: How much may be in flight; share one among the installs of a process. By default
            this install has its own.
        strategy: How the files travel.
        batch_size: How many files a batch of `"batched"` has.
        existing: What becomes of a skill folder that is there: its other files stay (`"merge"`), or
            go with it (`"replace"`, which only `"packed"` can), or nothing is written (`"error"`,
            which holds for single files too).
        verify: Whether to hash, in the end, what is there.
        skip_unchanged: Whether to look first, and send only what differs in its bytes or its
            execute bit.
        archives: Where what travels packed is held, so that the installs that share one cache read
            and pack the files of a plan once. By default each reads them anew.
        retries: How often a transfer, or a command, that ends with a `TransientError` is tried
            again, after a wait that grows and is partly random, unless the caller's deadline comes
            first. A packed transfer with `existing="error"` is not: it may have been done.
        on_event: Called in the event loop with each `Event`; it must not block. Should it raise,
            that is logged and it is not called again.

    A new skill folder that travels packed appears whole. Where some of its files failed, which the
    error names, it appears without them with `"merge"`, and not at all otherwise.

    Raises:
        InstallError: Some file is not there as planned; raised when every transfer has settled.
        DestinationError: The destination was refused, and nothing was written.
        PlanError: Two names of the plan are one name for this runtime; nothing was written.
        CommandError: `skip_unchanged` or `existing="error"` could not look; nothing was written.
        ValueError: The arguments contradict each other, or the runtime cannot do what they ask for.

    **Cancellation:** no further transfer starts, and those in flight are ended. A file is there
    whole or not at all; `on_event` has the report of what was done in `InstallEnded`.
    """
    if not isinstance(plan, Plan):
        raise TypeError("plan is a Plan, from plan_skills or plan_uploads")
    if not (hasattr(runtime, "write") and hasattr(runtime, "run")):
        raise TypeError("runtime has the methods write and run, as from open_runtime")
    if strategy == "auto":
        strategy = "packed" if isinstance(runtime, WritesMany) else "concurrent"
    _check_arguments(runtime, strategy, batch_size, existing, skip_unchanged)
    job = _Job(
        plan=plan,
        runtime=runtime,
        packer=runtime if strategy == "packed" and isinstance(runtime, WritesMany) else None,
        calls=Calls.to(runtime, limits, retries),
        strategy=strategy,
        batch_size=batch_size,
        existing=existing,
        archives=archives,
        on_event=on_event,
    )
    try:
        await job.refuse_destination()
        if skip_unchanged:
            await job.find_unchanged()
        await job.transfer()
        if not job.has_failed:
            await job.make_executable()
        if verify and not job.has_failed:
            await job.verify()
    finally:
        for outcome in job.outcomes.values():
            forget_locals(outcome.error)  # now that every frame that they went through has ended
        report = job.report()
        job.emit(InstallEnded(report))
    if report.failed:
        raise install_error(report)
    return report


def _check_arguments(
    runtime: Runtime, strategy: Strategy, batch_size: int, existing: Existing, skip_unchanged: bool
) -> None:
    if strategy not in get_args(Strategy):
        raise ValueError(f"strategy is one of {', '.join(get_args(Strategy))}; not {strategy!r}")
    if existing not in get_args(Existing):
        raise ValueError(f"existing is one of {', '.join(get_args(Existing))}; not {existing!r}")
    if batch_size < 1:
        raise ValueError(f"batch_size is at least 1; not {batch_size!r}")
    if strategy == "packed" and not isinstance(runtime, WritesMany):
        raise ValueError("strategy 'packed' needs a runtime that can write many files at once")
    if existing == "replace" and strategy != "packed":
        raise ValueError("existing 'replace' swaps whole folders: it needs strategy 'packed'")
    if existing == "replace" and skip_unchanged:
        raise ValueError("existing 'replace' sends whole folders: it cannot skip unchanged files")


@attrs.frozen
class _Sending:
    """A transfer under way."""

    transfer: Transfer
    started: float
    tries: Tries


@attrs.define
class _Job:
    """One install under way. Each method is a phase, and has a checkpoint."""

    plan: Plan
    runtime: Runtime
    packer: WritesMany | None
    """The runtime, where files travel packed."""
    calls: Calls
    strategy: Strategy
    batch_size: int
    existing: Existing
    archives: ArchiveCache | None
    on_event: Callable[[Event], None] | None
    began: float = attrs.Factory(trio.current_time)
    outcomes: dict[str, Outcome] = attrs.Factory(dict)
    has_failed: bool = False
    in_place: set[str] = attrs.Factory(set)
    """Skill folders that could not be renamed."""
    without_bit: list[str] = attrs.Factory(list)
    """Executables that were written by `write`, which carries no mode."""

    async def refuse_destination(self) -> None:
        """Raise for what would fail every transfer, as far as it can be known beforehand."""
        await trio.lowlevel.checkpoint()
        clashes = [warning for warning in self.plan.warnings if warning.kind == "case-clash"]
        if clashes and traits_of(self.runtime).folds_case:
            raise PlanError(clashes)
        must_be_missing = self._tops() if self.existing == "error" else []
        if not must_be_missing and not traits_of(self.runtime).looks_first:
            return
        states = await self._inspect([self.plan.dest, *must_be_missing])
        problems = [*_problems_of_dest(self.plan.dest, states[self.plan.dest])]
        for top in must_be_missing:
            if states[top].kind != "missing":
                message = "it is there already; merge into it, replace it, or go elsewhere"
                problems.append(Problem("destination-exists", top, message))
        if problems:
            raise DestinationError(problems)

    def _tops(self) -> list[str]:
        """Return the skill folders, and the files that are in none."""
        found = by_folder(self.plan.uploads, frozenset(self.plan.folders))
        return [folder or members[0].target for folder, members in found]

    async def find_unchanged(self) -> None:
        states = await self._inspect([upload.target for upload in self.plan.uploads])
        for upload in self.plan.uploads:
            if states[upload.target].is_as_planned(upload):
                self.outcomes[upload.target] = Outcome(upload.target, upload.size, "unchanged")

    async def transfer(self) -> None:
        await trio.lowlevel.checkpoint()
        waiting = [u for u in self.plan.uploads if u.target not in self.outcomes]
        if self.packer is not None:
            max_bytes = self.calls.limits.max_bytes
            max_files = traits_of(self.runtime).max_batch_files
            waves = iter([pack(waiting, self.plan.folders, max_bytes, max_files)])
        else:
            sizes = {"sequential": 1, "batched": self.batch_size, "concurrent": len(waiting)}
            waves = in_waves(waiting, sizes[self.strategy])
        for wave in waves:
            async with trio.open_nursery() as nursery:
                for transfer in wave:
                    # Waited for here, in order: what has not started costs no task.
                    await self.calls.acquire(transfer.size)
                    nursery.start_soon(self._settle, transfer)

    async def make_executable(self) -> None:
        await trio.lowlevel.checkpoint()
        for argv, targets in _commands.make_executable(self.without_bit):
            try:
                await self._set_bits(argv, targets)
            except Exception as exc:  # noqa: BLE001  # any failure is an outcome
                await self._blame_for_bits(targets, exc)
        self.without_bit = []

    async def verify(self) -> None:
        await trio.lowlevel.checkpoint()
        try:
            states = await self._inspect([upload.target for upload in self.plan.uploads])
        except Exception as exc:  # noqa: BLE001  # any failure is an outcome
            for upload in self.plan.uploads:
                self._fail(upload.target, exc)
            return
        for upload in self.plan.uploads:
            if not states[upload.target].is_as_planned(upload):
                self._fail(upload.target, VerifyError(_difference(upload, states[upload.target])))

    def report(self) -> Report:
        return Report(
            outcomes=tuple(
                self.outcomes.get(u.target) or Outcome(u.target, u.size, "not reached")
                for u in self.plan.uploads
            ),
            strategy=self.strategy,
            round_trips=self.calls.count,
            retries=self.calls.retried,
            seconds=self._now(),
            plan_digest=self.plan.digest,
            not_executable=tuple(sorted(self.without_bit)),
            in_place=tuple(sorted(self.in_place)),
            skills=tuple(skill.name for skill in self.plan.skills),
            excluded=self.plan.excluded,
            warnings=self.plan.warnings,
        )

    def emit(self, event: Event) -> None:
        if self.on_event is None:
            return
        try:
            self.on_event(event)
        except Exception:  # noqa: BLE001
            # As Trio does with its instruments: a watcher's fault is not the install's.
            self.on_event = None
            _log.exception("on_event raised; it is not called again")

    def _now(self) -> float:
        return trio.current_time() - self.began

    async def _set_bits(self, argv: list[str], targets: list[str]) -> None:
        if isinstance(self.runtime, SetsExecutable):
            await self.calls.ask(partial(self.runtime.set_executable, targets))
            return
        result = await self.calls.ask(partial(self.runtime.run, argv, _commands.ENVIRONMENT))
        if result.exit_code != 0:
            raise _commands.failed("chmod", result)

    async def _inspect(self, targets: Sequence[str]) -> dict[str, FileState]:
        return await inspect(self.runtime, targets, self.calls)

    # From here on, a checkpoint for each file is the runtime's affair: `transfer` has its own.

    async def _settle(self, transfer: Transfer) -> None:  # noqa: ASYNC910
        sending = _Sending(transfer, self._now(), Tries(self.calls.retries))
        try:
            # Cancelled since the limits let it through: then it must not begin.
            await trio.lowlevel.checkpoint_if_cancelled()
            targets = tuple(upload.target for upload in transfer.uploads)
            self.emit(TransferStarted(transfer.number, targets, transfer.size))
            if self.packer is not None:
                await self._write_many(self.packer, sending)
            else:
                await self._write(transfer.uploads[0], sending)
        finally:
            self.calls.release(transfer.size)
        outcomes = tuple(self.outcomes[t] for t in targets if t in self.outcomes)
        self.emit(TransferEnded(transfer.number, outcomes))

    async def _write(self, upload: Upload, sending: _Sending) -> None:  # noqa: ASYNC910
        error: Exception | None = None
        try:
            await self._send(upload, sending.tries)
        except Exception as exc:  # noqa: BLE001  # any failure is an outcome
            error = exc
        if upload.executable and error is None:
            self.without_bit.append(upload.target)
        self._record(upload, error, sending)

    async def _send(self, upload: Upload, tries: Tries) -> None:
        if isinstance(upload.source, bytes):
            data = upload.source
        else:
            data = await in_thread(upload.read)
        # Cancelled while it was read, or since the last file of its batch failed.
        await trio.lowlevel.checkpoint_if_cancelled()
        await self.calls.repeat(partial(self.runtime.write, upload.target, data), tries)

    async def _write_many(self, packer: WritesMany, sending: _Sending) -> None:  # noqa: ASYNC910
        uploads, folders = sending.transfer.uploads, sending.transfer.folders
        errors: dict[str, Exception | None] = {}

        async def write() -> None:
            """Write what was not written yet; raise what may go well the next time."""
            again = _to_repeat(uploads, folders, errors)
            waiting = await self._held(uploads) if len(again) == len(uploads) else again
            errors.update(await self._pack(packer, waiting, folders))
            for error in errors.values():
                if isinstance(error, TransientError):
                    raise error

        if self.existing == "error":  # what was done is there, the next time
            sending.tries.left = 0
        try:
            await self.calls.repeat(write, sending.tries)
        except Exception as exc:  # noqa: BLE001  # any failure is an outcome
            if not errors:
                if self.existing == "merge":
                    await self._write_each(sending)
                    return
                errors = {upload.target: exc for upload in uploads}
        for upload in uploads:
            self._record(upload, errors[upload.target], sending)

    async def _pack(
        self, packer: WritesMany, uploads: Sequence[Upload], folders: Sequence[str]
    ) -> dict[str, Exception | None]:
        """Write uploads in one transfer, and return what became of each."""
        result = await packer.write_many(uploads, folders=folders, existing=self.existing)
        if len(result.errors) != len(uploads):
            raise RuntimeError(f"write_many has {len(result.errors)} outcomes, not {len(uploads)}")
        self.in_place.update(result.in_place)
        self.calls.count += result.round_trips - 1
        return {u.target: error for u, error in zip(uploads, result.errors, strict=True)}

    async def _held(self, uploads: Sequence[Upload]) -> Sequence[Upload]:
        """Return the same uploads, their contents in memory, if there is a cache to hold them."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.archives is not None:
            # A file that cannot be read is an outcome of its own, found out when it is sent.
            with suppress(OSError, SourceChangedError):
                return await self.archives.packed(uploads)
        return uploads

    async def _write_each(self, sending: _Sending) -> None:  # noqa: ASYNC910
        """Settle a failed batch file by file, so that exactly the files that fail are blamed."""
        uploads = sending.transfer.uploads
        first, others = uploads[:_GIVE_UP_AFTER], uploads[_GIVE_UP_AFTER:]
        for upload in first:
            await self._write(upload, sending)
        if any(self.outcomes[upload.target].error is None for upload in first):
            for upload in others:
                await self._write(upload, sending)

    def _record(self, upload: Upload, error: Exception | None, sending: _Sending) -> None:
        """Record an outcome as soon as it is known: a cancellation may come before the next."""
        self.outcomes[upload.target] = Outcome(
            target=upload.target,
            size=upload.size,
            state="written",
            started=sending.started,
            ended=self._now(),
            transfer=sending.transfer.number,
            retries=sending.tries.done,
        )
        if error is not None:
            self._fail(upload.target, error)

    def _fail(self, target: str, cause: Exception) -> None:
        self.has_failed = True
        error = UploadError(target, cause)
        forget_locals(cause)
        self.outcomes[target] = attrs.evolve(self.outcomes[target], state="failed", error=error)

    async def _blame_for_bits(self, targets: Sequence[str], cause: Exception) -> None:
        """Fail those of `targets` that did not become executable; all, where it cannot be seen."""
        await trio.lowlevel.checkpoint()
        try:
            states = await self._inspect(targets)
        except Exception:  # noqa: BLE001  # the failure to report is the first one
            states = {}
        for target in targets:
            if target not in states or not states[target].executable:
                self._fail(target, cause)


def _to_repeat(
    uploads: Sequence[Upload], folders: Sequence[str], errors: Mapping[str, Exception | None]
) -> Sequence[Upload]:
    """Return what is to be sent: at first all, then the skill folders that may go well now."""
    if not errors:
        return uploads
    again: list[Upload] = []
    for _, members in by_folder(uploads, frozenset(folders)):
        if any(isinstance(errors[upload.target], TransientError) for upload in members):
            again += members
    return again


def _problems_of_dest(dest: str, state: FileState) -> Iterator[Problem]:
    if state.kind not in ("folder", "missing"):
        message = "the destination is not a folder (a link is none), or cannot be entered"
        yield Problem("destination-no-folder", dest, message)
    elif not state.writable:
        message = "the destination cannot be written to: no permission, or a read-only file system"
        yield Problem("destination-read-only", dest, message)


def _difference(upload: Upload, state: FileState) -> str:
    if state.kind != "file":
        return f"verification failed: a file was sent, and there is: {state.kind}"
    if state.digest is None and upload.digest is not None:
        why = f": {state.complaint}" if state.complaint else ""
        return f"verification failed: a file is there, and it could not be read{why}"
    if state.digest != upload.digest:
        return f"verification failed: SHA-256 {upload.digest} was sent, {state.digest} is there"
    bit = "has no execute bit" if upload.executable else "has an execute bit that it must not have"
    return f"verification failed: the file {bit}"
