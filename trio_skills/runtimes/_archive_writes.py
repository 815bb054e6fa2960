"""Writes into a container that has no shell: the engine unpacks archives, and reads them back.

It can rename nothing, so that files appear one by one. It sees neither what a tmpfs holds nor, on
some versions, a writable volume on a read-only root: a copy into the former "succeeds", and is
nowhere (moby/moby#22020). So what is beneath a tmpfs is refused, and all else is read back.
"""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from io import BufferedReader
from tempfile import TemporaryFile
from typing import IO

import attrs
import trio

from trio_skills import _tar
from trio_skills._beneath import CHUNK, components, folders_above
from trio_skills._errors import CommandError, DestinationError, Problem, VerifyError
from trio_skills._far_side import Parcel
from trio_skills._runtime import Existing, FileState
from trio_skills._threads import in_thread
from trio_skills._upload import Upload
from trio_skills.runtimes._commanded import Sent
from trio_skills.runtimes._engine import Engine, EngineError, Json

_MISSING = FileState("missing")
_KINDS = {
    "missing": _MISSING,
    "folder": FileState("folder"),
    "link": FileState("other"),
    "other": FileState("other"),
}


@attrs.define
class ArchiveWrites:
    """Writes into one container, by the engine alone."""

    engine: Engine
    """Who does it."""
    container: str
    """The container's identifier."""
    path: str
    """Where relative targets go."""
    user: str
    """Whose the files are: `name`, `uid` or `uid:gid`."""
    hidden: Sequence[str]
    """Folders of which the engine does not see what is in them."""
    owner: tuple[int, int] | None = None
    """The user's and the group's number, once they were looked up."""
    home: str = "/"
    """The user's home folder, with them."""

    @classmethod
    def into(cls, engine: Engine, found: Json, path: str, user: str | None) -> ArchiveWrites:
        """Return the writes into the container that the engine knows so much of."""
        config, host = found.get("Config") or {}, found.get("HostConfig") or {}
        mounts = found.get("Mounts") or []
        tmpfs = [mount["Destination"] for mount in mounts if mount.get("Type") == "tmpfs"]
        if not path.startswith(("/", "~")):
            path = posixpath.join(config.get("WorkingDir") or "/", path)
        hidden = [*tmpfs, *(host.get("Tmpfs") or {}), "/dev", "/proc", "/sys"]
        return cls(engine, str(found["Id"]), path, user or config.get("User") or "0", hidden)

    async def send(self, parcel: Parcel, existing: Existing) -> Sent:
        """Write a parcel. Raises `DestinationError` where that is not possible at all."""
        if existing == "replace":
            raise CommandError("a folder can be replaced only where the sandbox has a shell")
        await self._look_up_user()
        root = self._absolute(parcel.folder)
        self._refuse_hidden(root)
        there, missing = await self._deepest(root)
        known = await self._known_folders(root, parcel) if not missing else {}
        failed = _refused(parcel, known, existing)
        wanted = tuple(item for item in parcel.uploads if item[1].target not in failed)
        if wanted:
            errors: dict[str, Exception] = {}
            prefix = "/".join(missing)
            archive = _tar.joined(self._pieces(prefix, wanted, known, errors))
            await self.engine.put(self.container, there, archive)
            failed |= errors
            for path, upload in wanted:
                if upload.target not in failed:
                    state = await self._state(posixpath.join(root, path))
                    if not state.is_as_planned(upload):
                        failed[upload.target] = VerifyError("it did not arrive as it was sent")
        return Sent(failed, round_trips=1 + len(wanted))

    async def inspect(self, targets: Sequence[str]) -> dict[str, FileState]:
        """Return the state of every target, one after another."""
        await self._look_up_user()
        states = {}
        for target in targets:
            path = self._absolute(target)
            self._refuse_hidden(path)
            states[target] = await self._state(path)
        return states

    async def set_executable(self, targets: Sequence[str]) -> None:
        """Make files executable: each is read, and put back with its execute bits."""
        await self._look_up_user()
        for target in targets:
            path = self._absolute(target)
            self._refuse_hidden(path)
            file = await self._fetch(path)
            if file is None:
                raise CommandError("the file is not there")
            await self.engine.put(self.container, posixpath.dirname(path), _made_executable(file))

    def _absolute(self, target: str) -> str:
        path = self.home + self.path[1:] if self.path.startswith("~") else self.path
        return "/" + "/".join(components(posixpath.join(path, target)))

    def _refuse_hidden(self, path: str) -> None:
        for folder in self.hidden:
            if (path + "/").startswith(folder.rstrip("/") + "/"):
                reason = f"{folder} is a tmpfs: only a shell in the sandbox could write there"
                raise DestinationError([Problem("destination-hidden", path, reason)])

    async def _look_up_user(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.owner is not None:
            return
        name, _, group = self.user.partition(":")
        uid, gid = name, group or "0"
        for line in (await self._text("/etc/passwd")).splitlines():
            fields = line.split(":")
            if len(fields) >= 6 and name in (fields[0], fields[2]):
                uid, gid, self.home = fields[2], group or fields[3], fields[5]
                break
        if not (uid.isdecimal() and gid.isdecimal()):
            raise CommandError(f"the container's user {self.user!r} has no number that is known")
        self.owner = (int(uid), int(gid))

    async def _deepest(self, folder: str) -> tuple[str, list[str]]:
        """Return the deepest folder on the way to `folder` that is there, and what is missing."""
        await trio.lowlevel.checkpoint()
        parts = components(folder)
        for length in range(len(parts), -1, -1):
            path = "/" + "/".join(parts[:length])
            kind = await self.engine.kind(self.container, path)
            if kind == "folder" or (kind == "link" and length == len(parts)):
                return path, parts[length:]
            if kind != "missing":
                raise DestinationError([Problem("destination", path, "it is not a folder")])
        raise CommandError("the container has no root folder")

    async def _known_folders(self, root: str, parcel: Parcel) -> dict[str, str]:
        """Return what is there already of the folders that a parcel needs, beneath `root`."""
        await trio.lowlevel.checkpoint()
        known: dict[str, str] = {}
        for path, _ in parcel.uploads:
            for folder in _folders_of(path):
                above = posixpath.dirname(folder)
                if folder not in known:
                    missing = above and known[above] != "folder"
                    there = posixpath.join(root, folder)
                    known[folder] = (
                        "missing" if missing else await self.engine.kind(self.container, there)
                    )
        return known

    def _pieces(
        self,
        prefix: str,
        uploads: Sequence[tuple[str, Upload]],
        known: Mapping[str, str],
        errors: dict[str, Exception],
    ) -> Generator[bytes, None, None]:
        owner = self.owner or _tar.NOBODY_IN_PARTICULAR
        folders = dict.fromkeys(_folders_of(f"{prefix}/x" if prefix else "x"))
        for path, _ in uploads:
            below = [folder for folder in _folders_of(path) if known.get(folder) != "folder"]
            folders |= dict.fromkeys(posixpath.join(prefix, folder) for folder in below)
        # With "./" before each name: an archive that began with `BZh` would be unpacked as one that
        # is compressed.
        for folder in folders:
            yield _tar.folder(f"./{folder}", owner)
        named = ((posixpath.join(".", prefix, path), upload) for path, upload in uploads)
        with closing(_tar.members(named, errors, owner)) as members:
            yield from members
        yield _tar.END

    async def _state(self, path: str) -> FileState:
        kind = await self.engine.kind(self.container, path)
        if kind != "file":
            return _KINDS[kind]
        file = await self._fetch(path)
        return _MISSING if file is None else await in_thread(_read_state, file)

    async def _text(self, path: str) -> str:
        file = await self._fetch(path)
        return "" if file is None else await in_thread(_read_text, file)

    async def _fetch(self, path: str) -> IO[bytes] | None:
        """Return a file, which the caller closes, with what is at a path, as a tar archive."""
        file = await in_thread(TemporaryFile)
        try:
            async with self.engine.get(self.container, path) as pieces:
                async for piece in pieces:
                    await in_thread(file.write, piece)
        except EngineError as exc:
            file.close()
            if exc.status != 404:
                raise
            return None
        except BaseException:
            file.close()
            raise
        file.seek(0)
        return file


def _folders_of(path: str) -> list[str]:
    """Return the folders above a path, the highest first."""
    return [*folders_above(path)][::-1]


def _refused(parcel: Parcel, known: Mapping[str, str], existing: Existing) -> dict[str, Exception]:
    refused: dict[str, Exception] = {}
    for path, upload in parcel.uploads:
        for folder in _folders_of(path):
            kind = known.get(folder, "missing")
            if kind not in ("folder", "missing"):
                reason = f"a {kind} is in the way, and links are not followed: {folder}"
                refused.setdefault(upload.target, CommandError(reason))
        top = path.split("/")[0]
        if parcel.holds_folders and existing == "error" and known.get(top, "missing") != "missing":
            refused[upload.target] = CommandError("the skill folder is there already")
    return refused


def _read_state(file: IO[bytes]) -> FileState:
    with file, tarfile.open(fileobj=file, mode="r:") as archive:
        member = archive.next()
        if member is None or not member.isreg():
            return FileState("other")
        content = archive.extractfile(member)
        assert isinstance(content, BufferedReader)  # noqa: S101  # of a regular file
        digest = hashlib.file_digest(content, "sha256").hexdigest()
        return FileState("file", digest, executable=bool(member.mode & 0o100))


def _made_executable(file: IO[bytes]) -> Generator[bytes, None, None]:
    with file, tarfile.open(fileobj=file, mode="r:") as archive:
        member = archive.next()
        content = archive.extractfile(member) if member and member.isreg() else None
        if member is None or content is None:
            raise CommandError("it is not a file")
        owner = (member.uid, member.gid)
        yield _tar.header(f"./{member.name}", member.size, executable=True, owner=owner)
        while chunk := content.read(CHUNK):
            yield chunk
        yield _tar.padding(member.size) + _tar.END


def _read_text(file: IO[bytes]) -> str:
    with file, tarfile.open(fileobj=file, mode="r:") as archive:
        member = archive.next()
        content = archive.extractfile(member) if member and member.isreg() else None
        return content.read(CHUNK).decode("utf-8", "replace") if content else ""
