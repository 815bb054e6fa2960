"""Compressors: without a trace of when and where, and what is damaged is noticed."""

from __future__ import annotations

import gzip
import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from trio_skills import Compression
from trio_skills._archive import Recipe, build_in_memory
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


@compressed_ones
def test_a_single_wrong_bit_is_noticed_or_harmless(compression: Compression) -> None:
    """Harmless are those of a gzip header that say when and where."""
    data = DATA[:1_000]
    packed = compress(data, compression)
    harmless = []
    for position in range(8 * len(packed)):
        damaged = bytearray(packed)
        damaged[position // 8] ^= 1 << position % 8
        try:
            assert unpack(bytes(damaged), compression) == data
            harmless.append(position // 8)
        except ValueError:
            pass
    assert len(harmless) < 8 * 10


def test_a_files_name_tells_the_compression() -> None:
    known = {"x.tar": "none", "x.tar.gz": "gzip", "x.tgz": "gzip", "x.tar.zst": "zstd", "-": "gzip"}
    assert {name: compression_of(name) for name in known} == known


WITHOUT = """
import sys
for name in sys.argv[2:]:
    sys.modules[name] = None
from trio_skills._archive import Recipe, build_in_memory
from trio_skills._compress import _deflate, decompressed
recipe = Recipe.of(sys.argv[1], None, (), "gzip", False)
archive = build_in_memory(recipe, lambda: None)[1]
for cut in (1, 8, 9, archive.size // 2):
    try:
        sum(map(len, decompressed(archive.data[:-cut], "gzip", 1_000)))
        sys.exit(f"a cut of {cut} bytes was not noticed")
    except ValueError:
        pass
tar = b"".join(decompressed(archive.data, "gzip", 1_000))
print(_deflate.__name__, archive.digest, len(tar), file=sys.stderr)
sys.stdout.buffer.write(archive.data)
"""


@pytest.mark.parametrize("missing", [["isal"], ["isal", "zlib_ng"]])
def test_where_the_fastest_is_not_installed_another_one_makes_gzip_of_the_same_digest(
    tmp_path: Path, missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    (tmp_path / "file").write_bytes(DATA)
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path), *missing],
        capture_output=True,
        check=True,
        env={"PYTHONPATH": os.fspath(Path(__file__).parent.parent)},
    )
    module, digest, size = ended.stderr.decode().split()
    assert module.partition(".")[0] not in missing
    tar = gzip.decompress(ended.stdout)
    assert (hashlib.sha256(tar).hexdigest(), len(tar)) == (digest, int(size))
    recipe = Recipe.of(tmp_path, None, (), "none", missing_ok=False)
    assert build_in_memory(recipe, lambda: None)[1].data == tar
    assert ended.stdout[:10] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
