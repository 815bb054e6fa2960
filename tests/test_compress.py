"""Compressors: without a trace of when and where, and what is damaged is noticed."""

from __future__ import annotations

import gzip
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from trio_skills import Compression
from trio_skills._compress import compression_of, compressor, decompressed

DATA = b"".join(b"%d " % number for number in range(100_000)) + random.Random(1).randbytes(99_999)
compressed_ones = pytest.mark.parametrize("compression", ["gzip", "zstd"])


def compress(data: bytes, compression: Compression, size: int = 70_000) -> bytes:
    chosen = compressor(compression)
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    return b"".join(map(chosen.compress, pieces)) + chosen.flush()


def unpack(data: bytes, compression: Compression) -> bytes:
    pieces = list(decompressed(data, compression, 1_000))
    assert all(len(piece) <= 1_000 for piece in pieces)
    return b"".join(pieces)


@pytest.mark.parametrize("data", [b"", b"x", DATA])
@pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
def test_what_is_compressed_comes_back(data: bytes, compression: Compression) -> None:
    assert unpack(compress(data, compression), compression) == data


def test_the_gzip_header_says_nothing_of_when_where_and_what() -> None:
    packed = compress(DATA, "gzip")
    assert packed[:10] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
    assert gzip.decompress(packed) == DATA
    subprocess.run(["gzip", "-t"], input=packed, check=True)


@compressed_ones
def test_what_is_cut_off_is_noticed_wherever_that_is(compression: Compression) -> None:
    packed = compress(DATA[:5_000], compression)
    for length in range(len(packed)):
        with pytest.raises(ValueError, match=r"cut off|damaged"):
            unpack(packed[:length], compression)


@compressed_ones
def test_what_is_damaged_is_noticed(compression: Compression) -> None:
    packed = bytearray(compress(DATA, compression))
    packed[len(packed) // 2] ^= 1
    with pytest.raises(ValueError, match="damaged"):
        unpack(bytes(packed), compression)


def test_a_files_name_tells_the_compression() -> None:
    known = {"x.tar": "none", "x.tar.gz": "gzip", "x.tgz": "gzip", "x.tar.zst": "zstd", "-": "gzip"}
    assert {name: compression_of(name) for name in known} == known


WITHOUT = """
import sys
for name in sys.argv[1:]:
    sys.modules[name] = None
from trio_skills._compress import _deflate, compressor
chosen = compressor("gzip")
data = sys.stdin.buffer.read()
print(_deflate.__name__, file=sys.stderr)
sys.stdout.buffer.write(chosen.compress(data) + chosen.flush())
"""


@pytest.mark.parametrize("missing", [["isal"], ["isal", "zlib_ng"]])
def test_where_the_fastest_is_not_installed_another_one_makes_gzip(missing: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT, *missing],
        input=DATA,
        capture_output=True,
        check=True,
        env={"PYTHONPATH": os.fspath(Path(__file__).parent.parent)},
    )
    assert b"isal" not in ended.stderr
    assert gzip.decompress(ended.stdout) == DATA
    assert ended.stdout[:10] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
