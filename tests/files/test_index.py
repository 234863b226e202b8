"""An index is read exactly, or refused with the field that is wrong."""

import copy
import json
import re

import pytest
from golden_shards import SHARDS

from fkat_data.errors import ShardCorruptError, ShardNotFoundError
from fkat_data.files.index import parse_index, read_index
from fkat_data.files.shard import Column


def index_of(case):
    return json.loads((SHARDS / case / "data" / "index.json").read_text())


def parsed(index):
    return parse_index(json.dumps(index).encode(), "index.json")


def test_an_entry_says_what_the_index_says():
    entry = parsed(index_of("json-zstd"))[1]
    assert (entry.format, entry.compression, entry.newline, entry.separator) == ("json", "zstd:7", "\n", "")
    assert entry.columns == (Column("f", "float"), Column("i", "int"), Column("s", "str"))
    assert [raw.basename for raw, _ in entry.files] == ["shard.00001.json.meta", "shard.00001.json"]
    assert [compressed.basename for _, compressed in entry.files] == [
        "shard.00001.json.meta.zstd",
        "shard.00001.json.zstd",
    ]
    assert set(entry.raw_data.hashes) == {"md5"}
    assert entry.raw_bytes == sum(raw.bytes for raw, _ in entry.files)
    assert entry.stored_bytes == sum(compressed.bytes for _, compressed in entry.files)


def test_the_separators_of_named_formats_are_implied():
    assert [parsed(index_of(f"{kind}-plain"))[0].separator for kind in ("csv", "tsv", "xsv")] == [",", "\t", "::"]


def test_keys_that_are_not_known_are_passed_over():
    index = index_of("mds-simple")
    expected = parsed(index)
    index["made_by"] = index["shards"][0]["made_by"] = index["shards"][0]["raw_data"]["made_by"] = "another version"
    assert parsed(index) == expected


def with_value(case, path, value):
    index = copy.deepcopy(index_of(case))
    *parents, last = path
    place = index
    for key in parents:
        place = place[key]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return index


SHARD = ("shards", 1)
WRONG = [
    ("mds-simple", ("version",), 3, "version is 3"),
    ("mds-simple", ("shards",), KeyError, "shards is missing"),
    ("mds-simple", (*SHARD, "version"), 1, "shards[1].version is 1"),
    ("mds-simple", (*SHARD, "format"), "parquet", "shards[1].format is 'parquet'"),
    ("mds-simple", (*SHARD, "samples"), 10**15, "shards[1].samples is 1000000000000000"),
    ("mds-simple", (*SHARD, "samples"), 10**6, "shards[1].samples is 1000000: expected fewer: raw_data has 1101"),
    ("mds-simple", (*SHARD, "compression"), "lzma", "shards[1].compression is 'lzma'"),
    ("mds-simple", (*SHARD, "compression"), "zstd", "shards[1].zip_data is None"),
    ("mds-zstd", ("shards", 0, "compression"), None, "shards[0].zip_data is {"),
    (
        "mds-zstd",
        ("shards", 0, "zip_data", "basename"),
        "shard.00000.mds",
        "expected a name different from the raw file's",
    ),
    ("mds-simple", (*SHARD, "raw_data"), KeyError, "shards[1].raw_data is missing"),
    ("mds-simple", (*SHARD, "raw_data", "bytes"), 1 << 40, "shards[1].raw_data.bytes is 1099511627776"),
    ("mds-simple", (*SHARD, "column_names"), [], "shards[1].column_names is []"),
    ("mds-simple", (*SHARD, "column_names", 1), "bytes", "expected at least one name, without duplicates"),
    ("mds-simple", (*SHARD, "column_encodings"), ["int"], "expected 18 encodings"),
    ("mds-simple", (*SHARD, "column_encodings", 2), "float128", "shards[1].column_encodings[2] is 'float128'"),
    ("mds-simple", (*SHARD, "column_sizes", 1), 3, "shards[1].column_sizes[1] is 3: expected 2, the size of float16"),
    ("json-plain", (*SHARD, "columns", "i"), "bytes", "shards[1].columns.i is 'bytes'"),
    ("json-plain", (*SHARD, "raw_meta"), KeyError, "shards[1].raw_meta is missing"),
    ("json-plain", (*SHARD, "newline"), "", "shards[1].newline is ''"),
    ("xsv-plain", (*SHARD, "separator"), KeyError, "shards[1].separator is missing"),
    ("xsv-plain", (*SHARD, "column_encodings", 0), "uint8", "shards[1].column_encodings[0] is 'uint8'"),
]


@pytest.mark.parametrize(("case", "path", "value", "text"), WRONG, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_refused_and_named(case, path, value, text):
    with pytest.raises(ShardCorruptError, match=re.escape(text)) as caught:
        parsed(with_value(case, path, value))
    assert caught.value.shard == "index.json"
    assert caught.value.field


LEAVING = [
    *("/etc/passwd", "../shard.mds", "a/../../b.mds", "a/..", "..", ".", "", "./a", "a//b", "a/", "a\0b", "\ud800"),
    *("index.json", "x" * 256, "/".join(["x" * 200] * 30)),
]


@pytest.mark.parametrize("key", ["raw_data", "zip_data"])
@pytest.mark.parametrize("basename", LEAVING, ids=lambda name: repr(name[:20]))
def test_a_name_that_leaves_the_directory_is_refused(basename, key):
    with pytest.raises(ShardCorruptError, match=rf"shards\[0\]\.{key}\.basename is "):
        parsed(with_value("mds-zstd", ("shards", 0, key, "basename"), basename))


@pytest.mark.parametrize("basename", ["3/shard.00000.mds", "a/b/c.mds", "..a", "a..", "é", "a b"])
def test_a_name_within_the_directory_is_kept(basename):
    (first, *_) = parsed(with_value("mds-simple", ("shards", 0, "raw_data", "basename"), basename))
    assert first.raw_data.basename == basename


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff", b"{", b'"', b"[" * 100_000, b"1" * 5000, b"null", b"[]", b"\x00"],
    ids=lambda text: repr(text[:9]),
)
def test_what_is_no_index_at_all_is_refused(text):
    with pytest.raises(ShardCorruptError, match=r"some\.json"):
        parse_index(text, "some.json")


def test_an_index_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ShardNotFoundError, match=r"index\.json"):
        read_index(tmp_path / "index.json")
