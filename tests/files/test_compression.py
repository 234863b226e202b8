"""Compression comes back, stops at the stated size, and names the file when its bytes make no sense."""

import bz2
import gzip
import tracemalloc

import brotli
import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.files.shard import FileInfo
from fkat_data.files.stored import COMPRESSIONS, FAMILIES, compress, decompress_file, extension_of

#: What packs best, by each family.
BOMBS = {
    "br": lambda data: brotli.compress(data, quality=9),
    "bz2": bz2.compress,
    "gz": gzip.compress,
    "snappy": lambda data: bytes(cramjam.snappy.compress_raw(data)),
    "zstd": zstandard.compress,
}


def decompressed(tmp_path, compression, data, size):
    (tmp_path / "source").write_bytes(data)
    decompress_file(compression, tmp_path / "source", tmp_path / "target", FileInfo("target", size))
    assert {path.name for path in tmp_path.iterdir()} == {"source", "target"}
    return (tmp_path / "target").read_bytes()


def test_the_names_are_those_of_the_format():
    assert len(COMPRESSIONS) == 1 + 12 + 1 + 9 + 1 + 10 + 1 + 1 + 22
    assert {extension_of(name) for name in COMPRESSIONS} == {"br", "bz2", "gz", "snappy", "zstd"}


@pytest.mark.parametrize("data", [b"", b"a", bytes(range(256)) * 40], ids=len)
def test_what_is_compressed_comes_back(data, tmp_path):
    for compression in COMPRESSIONS:
        found = decompressed(tmp_path, compression, compress(data, compression), len(data))
        assert found == data, compression
        (tmp_path / "target").unlink()


@pytest.mark.parametrize("compression", ["br:1", "bz2", "gz", "snappy", "zstd"])
@given(data=st.binary(max_size=300_000))
def test_any_bytes_come_back(compression, data, tmp_path_factory):
    assert decompressed(tmp_path_factory.mktemp("any"), compression, compress(data, compression), len(data)) == data


def test_the_same_data_make_the_same_gzip(monkeypatch):
    first = compress(b"data", "gz")
    monkeypatch.setattr("time.time", lambda: 2_000_000_000.0)
    assert compress(b"data", "gz") == first


OTHERS = [
    ("zstd", lambda data: zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(data)),
    ("zstd", lambda data: zstandard.compress(data[:100]) + zstandard.compress(data[100:])),
    ("gz", lambda data: gzip.compress(data[:100]) + gzip.compress(data[100:])),
    ("bz2", lambda data: bz2.compress(data[:100]) + bz2.compress(data[100:])),
]


@pytest.mark.parametrize(("compression", "packed"), OTHERS, ids=lambda value: value if isinstance(value, str) else "")
def test_other_forms_of_the_same_format_are_read(compression, packed, tmp_path):
    data = bytes(range(256)) * 10
    assert decompressed(tmp_path, compression, packed(data), len(data)) == data


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [0, 999, 1001])
def test_another_size_than_the_index_says_is_refused(family, size, tmp_path):
    with pytest.raises(ShardCorruptError, match=r"source"):
        decompressed(tmp_path, family, compress(b"x" * 1000, family), size)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cut", [0, 1, 5, -1])
def test_bytes_that_end_too_early_are_refused(family, cut, tmp_path):
    data = bytes(range(256)) * 40
    with pytest.raises(ShardCorruptError, match=r"source"):
        decompressed(tmp_path, family, compress(data, family)[:cut], len(data))


@pytest.mark.parametrize("family", FAMILIES)
def test_bytes_that_make_no_sense_are_refused(family, tmp_path):
    with pytest.raises(ShardCorruptError, match=r"source"):
        decompressed(tmp_path, family, b"\xfenonsense" * 9, 1000)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_a_bomb_takes_no_more_memory_than_the_index_says(family, tmp_path):
    bomb = BOMBS[family](b"\0" * (64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ShardCorruptError, match=r"source"):
            decompressed(tmp_path, family, bomb, 1000)
        assert tracemalloc.get_traced_memory()[1] < (16 << 20)
    finally:
        tracemalloc.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_size_that_snappy_cannot_reach_asks_for_no_memory(tmp_path):
    length = b"\xff\xff\xff\xff\x0f"  # 2^32 - 1 as snappy writes it
    with pytest.raises(ShardCorruptError, match="its header states 4294967295 decompressed bytes"):
        decompressed(tmp_path, "snappy", length + b"\0a", (1 << 32) - 1)


def test_a_name_may_be_as_long_as_the_file_system_takes(tmp_path):
    target = tmp_path / f"{80 * '数'}.mds"
    (tmp_path / "source").write_bytes(gzip.compress(b"abc"))
    decompress_file("gz", tmp_path / "source", target, FileInfo("target", 3))
    assert target.read_bytes() == b"abc"


def test_names_that_are_none_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="compression = 'zstd:23'"):
        compress(b"", "zstd:23")
    with pytest.raises(ConfigurationError, match="compression = 'lzma'"):
        decompress_file("lzma", tmp_path / "source", tmp_path / "target", FileInfo("target", 0))
    with pytest.raises(ShardNotFoundError, match="source"):
        decompress_file("zstd", tmp_path / "source", tmp_path / "target", FileInfo("target", 0))
