"""Open shards: views and copies, arrays of NumPy and of torch, rows that do not exist, files that are wrong."""

import gc
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_shards import SHARDS, unpacked
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.files.formats import open_shard
from fkat_data.files.index import read_index
from fkat_data.files.mapping import num_maps
from fkat_data.files.shard import Column, FileInfo, ShardEntry
from fkat_data.files.stored import decompress_file, hash_of, validate_file

TOKENS = (Column("tokens", "ndarray:uint16:3", 6),)
MIXED = (Column("a", "str"), Column("b", "int", 8), Column("c", "bytes"), Column("d", "ndarray:float32:2", 8))


def written(path, columns, rows):
    """Write an MDS file of raw rows; returns its entry."""
    ends = np.cumsum([8 + 4 * len(rows) + 2, *map(len, rows)])
    content = struct.pack(f"<{len(rows) + 2}I", len(rows), *ends) + b"{}" + b"".join(rows)
    path.write_bytes(content)
    return ShardEntry("mds", len(rows), columns, FileInfo(path.name, len(content)))


def mixed_row(text, number, data, array):
    encoded = text.encode()
    payload = encoded + struct.pack("<q", number) + data + array.tobytes()
    return struct.pack("<II", len(encoded), len(data)) + payload


@pytest.fixture
def tokens(tmp_path):
    rows = [np.arange(3 * i, 3 * i + 3, dtype=np.uint16).tobytes() for i in range(10)]
    return tmp_path, written(tmp_path / "tokens.mds", TOKENS, rows)


VALUES = st.tuples(st.text(max_size=9), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=9), st.integers(0, 9))


@given(values=st.lists(VALUES, max_size=12), data=st.data())
def test_rows_of_fixed_and_variable_columns_read_alike_in_every_way(tmp_path_factory, values, data):
    directory = tmp_path_factory.mktemp("mixed")
    expected = [(text, number, raw, np.float32([seed, -seed])) for text, number, raw, seed in values]
    shard = open_shard(directory, written(directory / "m.mds", MIXED, [mixed_row(*row) for row in expected]))
    rows = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=20) if values else st.just([]))
    at_once, by_column = shard.samples(rows), shard.column_arrays(np.array(rows, np.int32))
    for place, row in enumerate(rows):
        for sample in (shard.sample(row), at_once[place], {name: column[place] for name, column in by_column.items()}):
            assert (sample["a"], sample["b"], sample["c"]) == expected[row][:3]
            np.testing.assert_array_equal(sample["d"], expected[row][3])
        assert bytes(shard.raw(row)) == mixed_row(*expected[row])
    assert [by_column[name].dtype for name in "bd"] == [np.int64, np.float32]
    assert by_column["d"].shape == (len(rows), 2)


def test_one_sample_is_a_view_of_the_file_that_cannot_be_written(tokens):
    shard = open_shard(*tokens)
    for array in (shard.sample(1)["tokens"], shard.samples([1])[0]["tokens"]):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7
    assert not shard.sample(1)["tokens"].flags.owndata


def test_writable_arrays_belong_to_the_caller(tokens):
    shard = open_shard(*tokens, writable=True)
    for array in (shard.sample(1)["tokens"], shard.samples([1])[0]["tokens"], shard.column_arrays([1])["tokens"][0]):
        array[:] = 9
    assert shard.sample(1)["tokens"].tolist() == [3, 4, 5]


@pytest.mark.parametrize("writable", [False, True])
def test_tensors_belong_to_the_caller(tokens, writable):
    shard = open_shard(*tokens, arrays="torch", writable=writable)
    for tensor in (shard.sample(1)["tokens"], shard.samples([1, 2])[0]["tokens"]):
        assert tensor.dtype == torch.uint16
        assert tensor.tolist() == [3, 4, 5]
        tensor.zero_()
    assert shard.sample(1)["tokens"].tolist() == [3, 4, 5]
    assert isinstance(shard.column_arrays([1])["tokens"], np.ndarray)


def test_arrays_of_any_shape_come_as_tensors_too(tmp_path):
    entries = unpacked(SHARDS / "mds-ndarray" / "data", tmp_path)
    as_arrays, as_tensors = (open_shard(tmp_path, entries[0], arrays=arrays) for arrays in ("numpy", "torch"))
    for row in range(as_arrays.num_samples):
        for sample in (as_tensors.sample(row), as_tensors.samples([row])[0]):
            for name, array in as_arrays.sample(row).items():
                assert isinstance(sample[name], torch.Tensor)
                np.testing.assert_array_equal(sample[name].numpy(), array)


@pytest.mark.parametrize("case", ["mds-simple", "json-plain", "xsv-plain"])
def test_rows_that_do_not_exist_are_refused(case):
    directory = SHARDS / case / "data"
    entry = read_index(directory / "index.json")[0]
    shard = open_shard(directory, entry)
    for row in (-1, entry.samples):
        for read in (
            shard.sample,
            shard.raw,
            lambda row: shard.samples([0, row]),
            lambda row: shard.column_arrays([row]),
        ):
            with pytest.raises(IndexError, match=f"row {row} is out of range for a shard of {entry.samples} samples"):
                read(row)
    for rows in ([0.5], ["a"], [[0]], np.array([True])):
        with pytest.raises(TypeError, match="rows must be a flat sequence of integers"):
            shard.samples(rows)
    assert shard.samples([]) == []
    assert {len(column) for column in shard.column_arrays([]).values()} == {0}


def test_views_outlive_the_shard_and_the_file(tokens):
    directory, entry = tokens
    shard = open_shard(directory, entry)
    array, raw = shard.sample(2)["tokens"], shard.raw(3)
    (directory / "tokens.mds").unlink()
    assert shard.sample(4)["tokens"].tolist() == [12, 13, 14]
    shard.close()
    shard.close()
    with pytest.raises(IndexError, match="row 0 is out of range for a shard of 0 samples"):
        shard.sample(0)
    del shard
    gc.collect()
    assert array.tolist() == [6, 7, 8]
    assert np.frombuffer(raw, np.uint16).tolist() == [9, 10, 11]


def num_descriptors():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("case", ["mds-simple", "json-plain"])
def test_an_open_shard_takes_no_descriptor_and_a_closed_one_no_map(case):
    directory = SHARDS / case / "data"
    gc.collect()  # of what tests before this one left
    before = num_descriptors(), num_maps()
    shards = [open_shard(directory, entry) for entry in read_index(directory / "index.json")]
    assert num_descriptors() == before[0]
    assert num_maps() > before[1]
    for shard in shards:
        shard.close()
    gc.collect()
    # Threads of tests before this one may close theirs meanwhile.
    assert num_descriptors() <= before[0]
    assert num_maps() == before[1]


DAMAGED = [
    (lambda content: content[:-1], "size in bytes is 109: expected 110, as in the index"),
    (lambda content: b"\x0b" + content[1:], "number of samples is 11: expected 10, as in the index"),
    (
        lambda content: content[:8] + struct.pack("<I", 40) + content[12:],
        r"offsets\[1\] is 40: expected at least offsets",
    ),
    (lambda content: content[:44] + struct.pack("<I", 109) + content[48:], r"offsets\[10\] is 109: expected 110"),
    (lambda content: content[:4] + struct.pack("<I", 8) + content[8:], r"offsets\[0\] is 8: expected at least 48"),
    (lambda content: content[:8] + struct.pack("<I", 55) + content[12:], "size of row 0 in bytes is 5: expected 6"),
]


@pytest.mark.parametrize(("damage", "text"), DAMAGED, ids=lambda value: value if isinstance(value, str) else "")
def test_a_shard_that_contradicts_itself_is_refused_when_it_is_opened(tmp_path, damage, text):
    rows = [bytes([i, 0, i, 0]) + b"\0\0" for i in range(8)]
    entry = written(tmp_path / "t.mds", TOKENS, [*rows, b"\0" * 6, b"\1" * 6])
    assert entry.raw_data.bytes == 110
    (tmp_path / "t.mds").write_bytes(damage((tmp_path / "t.mds").read_bytes()))
    with pytest.raises(ShardCorruptError, match=text):
        open_shard(tmp_path, entry)


def test_a_row_that_contradicts_itself_is_named(tmp_path):
    good = mixed_row("é", 1, b"2", np.float32([3, 4]))
    rows = [good, struct.pack("<I", 3) + good[4:], good[:8] + b"\xff\xff" + good[10:]]
    shard = open_shard(tmp_path, written(tmp_path / "m.mds", MIXED, rows))
    assert shard.sample(0)["a"] == "é"
    for read in (
        shard.sample,
        lambda row: shard.samples([0, row]),
        lambda row: shard.column_arrays([row]),
    ):
        with pytest.raises(ShardCorruptError, match=r"m\.mds': size of row 1 in bytes is 27: expected the sum"):
            read(1)
        with pytest.raises(ShardCorruptError, match=r"m\.mds': row 2, column 'a': .*utf-8") as caught:
            read(2)
        assert caught.value.field == "row 2, column 'a'"


def test_what_is_no_file_is_named_and_not_waited_for(tokens):
    directory, entry = tokens
    reads = {
        "tokens.mds": lambda: open_shard(directory, entry),
        "index.json": lambda: read_index(directory / "index.json"),
        "zipped": lambda: decompress_file("zstd", directory / "zipped", directory / "target", entry.raw_data),
    }
    (directory / "tokens.mds").unlink()
    for name, read in reads.items():
        with pytest.raises(ShardNotFoundError, match=f"{name}': no such file"):
            read()
        os.mkfifo(directory / name)
        with pytest.raises(ShardCorruptError, match=f"{name}': not a regular file"):
            read()


def test_a_file_is_held_against_its_hash(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    info = FileInfo("file", 7, {"sha256": hash_of(b"content", "sha256"), "xxh64": hash_of(b"other", "xxh64")})
    validate_file(tmp_path / "file", info)
    validate_file(tmp_path / "file", info, "sha256")
    with pytest.raises(ShardCorruptError, match=r"xxh64 is '.*': expected .*, as in the index"):
        validate_file(tmp_path / "file", info, "xxh64")
    with pytest.raises(ConfigurationError, match="validate_hash = 'md5': expected a hash that the index has"):
        validate_file(tmp_path / "file", info, "md5")
    with pytest.raises(ConfigurationError, match="hash = 'crc32'"):
        validate_file(tmp_path / "file", info, "crc32")
    with pytest.raises(ShardCorruptError, match="size in bytes is 7: expected 8"):
        validate_file(tmp_path / "file", FileInfo("file", 8), "sha256")
