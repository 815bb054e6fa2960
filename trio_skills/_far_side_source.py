"""How a source archive travels to the program that runs in a sandbox: see `far_side.sh`."""

from __future__ import annotations

import posixpath
from collections.abc import Generator

import attrs

from trio_skills import _tar
from trio_skills._archive import Archive, unpacked
from trio_skills._beneath import CHUNK
from trio_skills._compress import decompressed
from trio_skills._errors import CommandError
from trio_skills._far_side import Call, Reply, call, locate


@attrs.frozen
class SourceParcel:
    """A source archive on its way to a folder."""

    archive: Archive
    """What is sent."""
    target: str
    """The folder that becomes its tree."""
    is_plain: bool
    """Whether it is sent uncompressed: to where there is no `gzip`."""

    def call(self, path: str, *file: str) -> Call:
        """Return the call that unpacks it, in a sandbox opened at `path`."""
        folder, name = posixpath.split(self.target)
        arguments = (name, "tar" if self.is_plain else "gzip", self.archive.digest, *file)
        return call("write_source", *locate(path, folder), *arguments)

    def plain(self, call: Call) -> Generator[bytes, None, None]:
        """Yield the tar with a last member by which the call sees that it is whole. Blocks."""
        left = self.archive.tar_size - len(_tar.END)
        for piece in decompressed(self.archive.data, self.archive.compression, CHUNK):
            if left > 0:
                yield piece[:left]
            left -= len(piece)
        yield _tar.header(call.nonce, 0) + _tar.END

    def owned(self, call: Call, owner: _tar.Owner) -> Generator[bytes, None, None]:
        """Yield the same with another owner, for who unpacks it as another user. Blocks."""
        return _tar.joined(self._owned(call, owner))

    def _owned(self, call: Call, owner: _tar.Owner) -> Generator[bytes, None, None]:
        for member, content in unpacked(self.archive):
            mtime = int(member.mtime)
            if member.issym():
                yield _tar.link(member.name, member.linkname, owner, mtime)
            elif member.isdir():
                yield _tar.folder(member.name, owner, mtime)
            else:
                is_executable = bool(member.mode & 0o100)
                yield _tar.header(
                    member.name, member.size, executable=is_executable, owner=owner, mtime=mtime
                )
                yield from content
                yield _tar.padding(member.size)
        yield _tar.header(call.nonce, 0, owner=owner) + _tar.END

    def check(self, reply: Reply) -> None:
        """Raise `CommandError` where the program answered that it could not be put there."""
        for reason in reply.failed.values():
            raise CommandError(reason)
