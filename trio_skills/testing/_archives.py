"""Source archives of trees that are nowhere: the same bytes that a tree on a disk would give."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from trio_skills import _tar
from trio_skills._archive import EPOCH, Archive, _member_name
from trio_skills._beneath import folders_above
from trio_skills._compress import Compression, compressor


def archive_of(
    name: str,
    files: Mapping[str, tuple[bytes, bool]],
    folders: Iterable[str] = (),
    links: Mapping[str, str] | None = None,
    compression: Compression = "gzip",
) -> Archive:
    """Return the archive of a tree: paths and contents, empty folders, links and what they say."""
    links = links or {}
    above = {folder for path in (*files, *folders, *links) for folder in folders_above(path)}
    members = sorted({*files, *folders, *links, *above})
    tar = b"".join((*(_member(path, files, links) for path in members), _tar.END))
    compress = compressor(compression)
    data = compress.compress(tar) + compress.flush()
    return Archive(
        name=name,
        digest=hashlib.sha256(tar).hexdigest(),
        member_count=len(members),
        compression=compression,
        size=len(data),
        tar_size=len(tar),
        data=data,
    )


def _member(path: str, files: Mapping[str, tuple[bytes, bool]], links: Mapping[str, str]) -> bytes:
    name = _member_name(path)
    if path in links:
        return _tar.link(name, links[path], mtime=EPOCH)
    if path not in files:
        return _tar.folder(name, mtime=EPOCH)
    data, executable = files[path]
    before = _tar.header(name, len(data), executable=executable, mtime=EPOCH)
    return before + data + _tar.padding(len(data))
