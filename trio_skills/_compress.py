"""The compressors of archives. The same pieces, one after another, give the same bytes."""

from __future__ import annotations

import posixpath
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Protocol, TypeAlias, final

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Compression: TypeAlias = Literal["gzip", "zstd", "none"]
"""How an archive is compressed."""

_SUFFIXES: dict[str, Compression] = {".tar": "none", ".zst": "zstd", ".tzst": "zstd"}
"""How the names of archives end that are not gzip's."""

# The level of each is the fastest that makes source trees at most 1.15 times as large as zlib's
# level 9 does; `python -m bench archives` has the figures. All three release the GIL.
_deflate: Any  # Any: three modules with zlib's interface
try:
    from isal import isal_zlib

    _deflate, _LEVEL = isal_zlib, 3
except ImportError:  # no wheel for this machine
    try:
        from zlib_ng import zlib_ng

        _deflate, _LEVEL = zlib_ng, 3
    except ImportError:
        _deflate, _LEVEL = zlib, 4


class Compressor(Protocol):
    """What a stream is given to, piece by piece."""

    def compress(self, data: bytes, /) -> bytes:
        """Take a piece, and return what is ready."""
        ...

    def flush(self) -> bytes:
        """Return the rest."""
        ...


@final
class _Gzip:
    # RFC 1952, without a name, a time or an operating system ("unknown"): whatever library made
    # the header would choose its own, and no two archives of the same tree would be the same.
    _HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"

    def __init__(self) -> None:
        self._deflater = _deflate.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._crc = 0
        self._size = 0
        self._before = self._HEADER

    def compress(self, data: bytes, /) -> bytes:
        self._crc = _deflate.crc32(data, self._crc)
        self._size += len(data)
        before, self._before = self._before, b""
        return before + bytes(self._deflater.compress(data))

    def flush(self) -> bytes:
        trailer = self._crc.to_bytes(4, "little") + (self._size % 2**32).to_bytes(4, "little")
        return self._before + bytes(self._deflater.flush()) + trailer


@final
class _Zstd:
    def __init__(self) -> None:
        options: dict[int, int] = {
            zstd.CompressionParameter.compression_level: 3,
            zstd.CompressionParameter.checksum_flag: 1,
        }
        self._compressor = zstd.ZstdCompressor(options=options)

    def compress(self, data: bytes, /) -> bytes:
        return self._compressor.compress(data)

    def flush(self) -> bytes:
        return self._compressor.flush()


@final
class _Plain:
    def compress(self, data: bytes, /) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


_COMPRESSORS: dict[Compression, Callable[[], Compressor]] = {
    "gzip": _Gzip,
    "zstd": _Zstd,
    "none": _Plain,
}


def compression_of(file: str) -> Compression:
    """Return the compression that a file's name tells of; gzip, if it tells of none."""
    return _SUFFIXES.get(posixpath.splitext(file)[1], "gzip")


def compressor(compression: Compression) -> Compressor:
    """Return a new compressor."""
    return _COMPRESSORS[compression]()


def decompressed(data: bytes, compression: Compression, size: int) -> Iterator[bytes]:
    """Yield what was compressed, in pieces of at most `size` bytes, none of them empty. Blocks.

    Raises `ValueError` where it is damaged or cut off.
    """
    if compression == "none":
        view = memoryview(data)
        yield from (bytes(view[start : start + size]) for start in range(0, len(data), size))
        return
    try:
        yield from _INFLATERS[compression](data, size)
    except (zlib.error, _deflate.error, zstd.ZstdError) as exc:
        raise ValueError(f"the {compression} data is damaged: {exc}") from exc


_SLICE = 2**16
"""Bytes that are given to an inflater at once: it copies what it leaves over of them each time."""


def _gunzipped(data: bytes, size: int) -> Iterator[bytes]:
    inflater = _deflate.decompressobj(wbits=31)
    view = memoryview(data)
    for start in range(0, len(data), _SLICE):
        rest = view[start : start + _SLICE]
        while rest and not inflater.eof:
            if piece := inflater.decompress(rest, size):
                yield piece
            rest = inflater.unconsumed_tail
    # What is left in the inflater, where the last piece was as long as it may be.
    while not inflater.eof and (piece := inflater.decompress(b"", size)):
        yield piece
    if not inflater.eof:
        raise ValueError("the gzip data is cut off")


def _unzstd(data: bytes, size: int) -> Iterator[bytes]:
    decompressor = zstd.ZstdDecompressor()
    while not decompressor.eof:
        piece = decompressor.decompress(data, size)
        data = b""
        if piece:
            yield piece
        elif not decompressor.eof:
            raise ValueError("the zstd data is cut off")


_INFLATERS: dict[Compression, Callable[[bytes, int], Iterable[bytes]]] = {
    "gzip": _gunzipped,
    "zstd": _unzstd,
}
