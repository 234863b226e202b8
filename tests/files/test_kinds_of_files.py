"""A file is what its first bytes say: compressions are read, and what is no text is never taken for lines."""

import bz2
import contextlib
import gzip
import lzma
import os
import resource
import struct
import tempfile

import cramjam
import numpy as np
import pytest
import zstandard
from archive_examples import archive
from small_files import json_lines, npy, parquet, rows

from fkat_data.datasets import (
    IterableJsonDataset,
    IterableParquetDataset,
    JsonDataset,
    ParquetDataset,
    TarDataset,
    TokenDocuments,
    TokenWindows,
)
from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardError
from fkat_data.files.shard import FileInfo
from fkat_data.files.stored import decompress_file
from fkat_data.streaming import StreamingDataset
from fkat_data.tools import convert

ROWS = rows(50)
LINES = json_lines(ROWS)
TABLE = b"number,text\n" + b"".join(b"%d,row %d\n" % (number, number) for number in range(50))


def skippable(content):
    return struct.pack("<II", 0x184D2A50, len(content)) + content


def of_pzstd(text):
    """As pzstd writes it: before each frame one that says its size."""
    frames = [zstandard.compress(part) for part in (text[:100], text[100:])]
    return b"".join(skippable(struct.pack("<I", len(frame))) + frame for frame in frames)


READ = {
    "gzip": gzip.compress,
    "gzip of a tape": lambda text: gzip.compress(text) + bytes(1000),
    "zstd": zstandard.compress,
    "pzstd": of_pzstd,
    "a skippable frame at the end": lambda text: zstandard.compress(text) + skippable(b"made by"),
    "a large skippable frame": lambda text: skippable(bytes(2000)) + zstandard.compress(text),
    "xz": lzma.compress,
    "xz of two streams": lambda text: lzma.compress(text[:7]) + bytes(8) + lzma.compress(text[7:]) + bytes(4),
    "lzma": lambda text: lzma.compress(text, format=lzma.FORMAT_ALONE),
    "bz2": bz2.compress,
    "bz2 of two streams": lambda text: bz2.compress(text[:7]) + bz2.compress(text[7:], 1),
}


def converted(tmp_path, **settings):
    def read(path):
        convert(path, str(tmp_path / "out"), **settings)
        dataset = StreamingDataset(local=str(tmp_path / "out"), batch_size=1)
        return [dict(dataset[index]) for index in range(len(dataset))]

    return read


def by_index(path):
    dataset = JsonDataset(path)
    return dataset.__getitems__(range(len(dataset)))


def in_order(path):
    return list(IterableJsonDataset(path))


def readers_of_text(tmp_path):
    return {
        "by index": (by_index, LINES),
        "in order": (in_order, LINES),
        "convert": (converted(tmp_path, kind="jsonl"), LINES),
        "convert of a table": (converted(tmp_path, kind="csv"), TABLE),
    }


READERS = list(readers_of_text(None))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("compression", READ)
def test_every_compression_that_python_or_zstandard_has_is_read_by_its_first_bytes(tmp_path, compression, reader):
    read, text = readers_of_text(tmp_path)[reader]
    path = tmp_path / "named.like.nothing"
    path.write_bytes(READ[compression](text))
    assert read(str(path)) == ROWS


@pytest.mark.parametrize("suffix", ["gz", "zst", "xz", "bz2", "lzma"])
def test_convert_knows_a_compressed_file_by_its_name(tmp_path, suffix):
    path = tmp_path / f"rows.jsonl.{suffix}"
    path.write_bytes(READ[{"gz": "gzip", "zst": "zstd"}.get(suffix, suffix)](LINES))
    assert converted(tmp_path)(str(path)) == ROWS


@pytest.mark.parametrize(
    "compression", ["gzip", "zstd", "pzstd", "xz", "xz of two streams", "bz2", "bz2 of two streams"]
)
@pytest.mark.parametrize("read", [by_index, in_order])
def test_a_compressed_file_that_was_cut_is_an_error_and_no_shorter_one(tmp_path, compression, read):
    content = READ[compression](LINES)
    path = tmp_path / "rows"
    for size in (len(content) - 9, len(content) - 200, 30):
        path.write_bytes(content[:size])
        with pytest.raises(ShardCorruptError, match=r"rows.*(in the middle of a frame)"):
            read(str(path))


@pytest.mark.parametrize("read", [by_index, in_order])
@pytest.mark.parametrize("compression", ["xz", "bz2"])
def test_damage_is_named_with_the_file_and_the_compression(tmp_path, compression, read):
    content = bytearray(READ[compression](LINES * 20))
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "rows").write_bytes(content)
    with pytest.raises(ShardCorruptError, match=rf"rows': {compression}: "):
        read(str(tmp_path / "rows"))


@pytest.mark.parametrize("compression", ["xz", "bz2", "gzip", "zstd"])
def test_what_a_few_bytes_expand_to_comes_in_pieces(tmp_path, compression):
    (tmp_path / "bomb").write_bytes(READ[compression](b'"' + b"a" * (8 << 20)))
    with pytest.raises(ConfigurationError, match=r"max_line_bytes = 100000: .* is longer"):
        list(IterableJsonDataset(str(tmp_path / "bomb"), max_line_bytes=100_000))


def tar(text):
    return archive([("a.json", text)])


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"
REFUSED = {
    "lz4": ("lz4", "lz4 -d", lambda text: bytes(cramjam.lz4.compress(text))),
    "lz4 after a skippable frame": ("lz4", "lz4 -d", lambda text: skippable(b"x") + bytes(cramjam.lz4.compress(text))),
    "lz4 of old": ("lz4", "lz4 -d", lambda text: b"\x02\x21\x4c\x18" + text),
    "snappy": ("snappy", "decompress", lambda text: bytes(cramjam.snappy.compress(text))),
    "compress": ("compress", "gzip -d", lambda text: b"\x1f\x9d\x90" + text),
    "zlib": ("zlib", "decompress", lambda text: __import__("zlib").compress(text)),
    "7z": ("7z", "unpack", lambda text: b"7z\xbc\xaf\x27\x1c" + text),
    "zip": ("zip", "unpack", lambda text: b"PK\x03\x04" + text),
    "rar": ("rar", "unpack", lambda text: b"Rar!\x1a\x07\x01\0" + text),
    "tar": ("tar", "TarDataset", tar),
    "tar in gzip": ("tar", "TarDataset", lambda text: gzip.compress(tar(text))),
    "gzip in gzip": ("gzip within", "once", lambda text: gzip.compress(gzip.compress(text))),
    "Parquet": ("Parquet", "ParquetDataset", lambda _: parquet(ROWS)),
    "NumPy": ("NumPy", "TokenWindows", lambda _: npy(np.arange(100))),
    "UTF-16": ("text in UTF-16", "iconv", lambda text: text.decode().encode("utf-16")),
    "UTF-16 without a mark": ("no text", "your own", lambda text: text.decode().encode("utf-16-le")),
    "brotli": ("no text", "your own", lambda text: bytes(cramjam.brotli.compress(text))),
    "snappy without frames": (
        "no text",
        "your own",
        lambda text: bytes(cramjam.snappy.compress_raw(bytes(range(256)) + text)),
    ),
    "Git LFS": ("a pointer of Git LFS", "git lfs pull", lambda _: LFS_POINTER),
    "a web page": ("a web page", "look at the URL", lambda text: b"<!DOCTYPE html>\n<html>" + text),
    "an error of S3": ("an XML document", "look at the URL", lambda text: b'<?xml version="1.0"?>\n<Error>' + text),
    "bytes": ("no text", "your own", lambda _: bytes(range(1, 256))),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_text_is_refused_by_its_first_bytes_and_has_no_length(tmp_path, kind, reader):
    name, remedy, make = REFUSED[kind]
    read, text = readers_of_text(tmp_path)[reader]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(make(text))
    with pytest.raises(ConfigurationError, match=rf"rows\.jsonl.*its first bytes are {name}.*{remedy}"):
        read(str(path))
    if read is by_index:
        with pytest.raises(ConfigurationError, match=name):
            len(JsonDataset(str(path)))


def test_a_name_says_what_first_bytes_cannot(tmp_path):
    path = tmp_path / "rows.jsonl.br"
    path.write_bytes(bytes(cramjam.brotli.compress(LINES)))
    with pytest.raises(ConfigurationError, match=r"rows\.jsonl\.br.*brotli: decompress it first"):
        JsonDataset(str(path))
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(bytes(cramjam.brotli.compress(LINES)))
    with pytest.raises(ShardCorruptError, match=r"rows\.jsonl\.gz.*first bytes.*compression, \.gz"):
        JsonDataset(str(path))


@pytest.mark.parametrize("begin", [b"\xef\xbb\xbf", b"\n\n", b"\t ", b"\f", b"\x1b[0m", "é".encode()])
def test_text_that_begins_oddly_is_text(tmp_path, begin):
    (tmp_path / "rows.jsonl").write_bytes(begin + LINES)
    assert len(JsonDataset(str(tmp_path / "rows.jsonl"))) == len(ROWS)


def test_one_damaged_line_at_the_start_is_that_line_alone(tmp_path):
    for damage in (bytes(20), b'{"a": "\xff"}', b'{"\x01": 1}'):
        (tmp_path / "rows.jsonl").write_bytes(damage + b"\n" + LINES)
        dataset = JsonDataset(str(tmp_path / "rows.jsonl"))
        assert dataset.__getitems__(range(1, len(dataset))) == ROWS
        with pytest.raises(ShardCorruptError, match="line 0"):
            dataset[0]


def test_a_file_of_another_kind_is_no_damaged_table_or_archive(tmp_path):
    for make, name in (
        (gzip.compress, "gzip"),
        (lzma.compress, "xz"),
        (lambda _: npy(np.arange(100)), "NumPy"),
        (lambda _: LFS_POINTER, "a pointer of Git LFS"),
        (lambda _: b"<html>Not found</html>", "a web page"),
    ):
        for suffix in ("parquet", "tar", "arrow"):
            (tmp_path / f"rows.{suffix}").write_bytes(make(LINES))
        for read, suffix in [
            (ParquetDataset, "parquet"),
            (lambda path: list(IterableParquetDataset(path)), "parquet"),
            (lambda path: StreamingDataset(local=path, batch_size=1), "parquet"),
            (converted(tmp_path), "parquet"),
            (converted(tmp_path), "arrow"),
            (TarDataset, "tar"),
            (lambda path: StreamingDataset(local=path, batch_size=1), "tar"),
            (converted(tmp_path), "tar"),
        ]:
            with pytest.raises(ConfigurationError, match=rf"rows\.{suffix}.* {name}: "):
                read(str(tmp_path / f"rows.{suffix}"))


@pytest.mark.parametrize("name", ["tokens.bin", "tokens.npy", "tokens.ds"])
def test_a_pointer_or_a_page_in_place_of_tokens_is_none(tmp_path, name):
    path = tmp_path / name
    tokens = {"window_size": 10, "dtype": "uint8"}
    for content, said in ((LFS_POINTER, "Git LFS.*git lfs pull"), (b"<html>Not found</html>", "web page.*the URL")):
        path.write_bytes(content)
        for read in (
            lambda: TokenWindows(str(path), **tokens),
            lambda: StreamingDataset(local=str(path), tokens=tokens, batch_size=1),
        ):
            with pytest.raises(ConfigurationError, match=rf"{name}.*{said}"):
                read()


def test_convert_says_what_a_compressed_table_is_that_it_does_not_read(tmp_path):
    for suffix, content in (("lz4", bytes(cramjam.lz4.compress(TABLE))), ("br", bytes(cramjam.brotli.compress(TABLE)))):
        (tmp_path / f"rows.csv.{suffix}").write_bytes(content)
        for path in (tmp_path, tmp_path / f"rows.csv.{suffix}"):
            with pytest.raises(ConfigurationError, match=rf"rows\.csv\.{suffix}.*(lz4|brotli): decompress it first"):
                convert(str(path), str(tmp_path / "out" / "data"))
        (tmp_path / f"rows.csv.{suffix}").unlink()


OF_FILES = [
    JsonDataset,
    in_order,
    ParquetDataset,
    lambda path: list(IterableParquetDataset(path)),
    TarDataset,
    lambda path: TokenWindows(path, 10),
    TokenDocuments,
]


@pytest.mark.parametrize("read", OF_FILES)
def test_a_folder_is_refused_with_the_ways_that_read_it(tmp_path, read):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_bytes(LINES)
    for path in (str(folder), f"{folder}/", f"file://{folder}", f"local://{folder}"):
        with pytest.raises(ConfigurationError, match=r"folder.*it is a folder: .*FsShardSampler.*StreamingDataset"):
            read(path)


@pytest.mark.parametrize("read", OF_FILES)
def test_a_pipe_is_refused_and_no_reader_waits_for_it(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match=r"pipe.*a regular file"):
        read(str(tmp_path / "pipe"))
    with pytest.raises(ConfigurationError, match="path"):
        read(f"{tmp_path}/a\0b")


def test_a_folder_of_a_store_is_refused_with_the_ways_that_read_it():
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    store.pipe("/folder_of_kinds/a.jsonl", LINES)
    try:
        for read in OF_FILES:
            with pytest.raises(ConfigurationError, match=r"memory://folder_of_kinds.*it is a folder"):
                read("memory://folder_of_kinds")
    finally:
        store.rm("/folder_of_kinds", recursive=True)


def test_a_stream_of_json_lines_says_what_reads_them(tmp_path):
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(LINES))
    for local in (tmp_path, tmp_path / "a.jsonl.xz"):
        with pytest.raises(ShardError, match=r"JsonDataset reads JSON lines"):
            StreamingDataset(local=str(local), batch_size=1)
    with pytest.raises(ShardError, match=r"\*\.xz.*a pattern of files ends with one of \.parquet"):
        StreamingDataset(local=str(tmp_path / "*.xz"), batch_size=1)


@contextlib.contextmanager
def files_of_at_most(num_bytes):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_room_for_a_text_names_the_file_and_the_directory_and_what_to_do(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(LINES * 100))
    dataset = JsonDataset(str(path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (
        files_of_at_most(10_000),
        pytest.raises(ConfigurationError, match=rf"TMPDIR = '{tmp_path}'.*rows\.jsonl\.gz.*IterableJsonDataset"),
    ):
        dataset[0]
    assert dataset[0] == ROWS[0]
    again = JsonDataset(str(path))
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    with pytest.raises(ConfigurationError, match=r"TMPDIR = '/nonexistent'.*rows\.jsonl\.gz"):
        again[0]


def test_no_room_for_a_decompressed_shard_names_the_file(tmp_path):
    (tmp_path / "source").write_bytes(gzip.compress(bytes(100_000)))
    with files_of_at_most(10_000), pytest.raises(OSError, match=r"target'"):
        decompress_file("gz", tmp_path / "source", tmp_path / "target", FileInfo("target", 100_000))
