"""Damaged files, byte by byte: each row that comes is right, or an error names the file; no row is lost in silence."""

import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from archive_examples import archive

from fkat_data.datasets import IterableJsonDataset, IterableParquetDataset, JsonDataset, ParquetDataset, TarDataset
from fkat_data.errors import ConfigurationError, ShardCorruptError

ROWS = [{"number": number, "text": f"row {number}"} for number in range(12)]
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def parquet_bytes(**options):
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), file, row_group_size=4, store_schema=False, **options)
    return file.getvalue()


def tar_bytes():
    members = [(f"sample{number}.txt", b"text%d" % number) for number in range(3)]
    return archive(members)[: 8 * 512]  # its last blocks of zeros, without those that fill up the record


def by_index(kind):
    def read(path):
        dataset = kind(path)
        return dataset.__getitems__(range(len(dataset)))

    return read


def in_order(kind):
    return lambda path: list(kind(path))


def outcomes(tmp_path, content, read, changed, some=list):
    """Yield, for each changed content, the position of the change and the rows; None for an error that names the file."""
    path = tmp_path / "file"
    for position, other in some(changed(content)):
        path.unlink(missing_ok=True)
        path.write_bytes(other)
        try:
            rows = read(str(path))
        except (ShardCorruptError, ConfigurationError) as error:
            if str(path) not in str(error):
                raise
            rows = None
        yield position, rows


def flipped(content):
    for position in range(len(content)):
        other = bytearray(content)
        other[position] ^= 1 << position % 8
        yield position, bytes(other)


def cut(content):
    for size in range(len(content)):
        yield size, content[:size]


PARQUET = [by_index(ParquetDataset), in_order(IterableParquetDataset)]
JSON = [by_index(JsonDataset), in_order(IterableJsonDataset)]
COMPRESSED = [gzip.compress(LINES, mtime=0), zstandard.ZstdCompressor(write_checksum=True).compress(LINES)]


@pytest.mark.long
@pytest.mark.parametrize("read", PARQUET)
@pytest.mark.parametrize("options", [{}, {"compression": "none", "data_page_version": "2.0"}])
def test_no_row_of_a_damaged_parquet_file_is_lost_in_silence(tmp_path, options, read, some):
    found = outcomes(tmp_path, parquet_bytes(**options), read, flipped, some)
    assert [position for position, rows in found if rows is not None and len(rows) != len(ROWS)] == []


@pytest.mark.long
@pytest.mark.parametrize("read", PARQUET)
def test_each_row_of_a_damaged_parquet_file_with_checksums_is_right(tmp_path, read, some):
    content = parquet_bytes(write_page_checksum=True)
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    found = outcomes(tmp_path, content, read, flipped, some)
    # A footer has no checksum: what it calls a column cannot be known to be wrong.
    assert [position for position, rows in found if rows not in (None, ROWS) and position < footer] == []


@pytest.mark.long
@pytest.mark.parametrize("read", PARQUET)
def test_a_parquet_file_that_was_cut_is_an_error(tmp_path, read, some):
    assert {rows is None for _, rows in outcomes(tmp_path, parquet_bytes(), read, cut, some)} == {True}


@pytest.mark.parametrize("read", JSON)
@pytest.mark.parametrize("content", COMPRESSED)
def test_each_line_of_a_damaged_compressed_file_is_right(tmp_path, content, read):
    assert [position for position, rows in outcomes(tmp_path, content, read, flipped) if rows not in (None, ROWS)] == []


@pytest.mark.parametrize("read", JSON)
@pytest.mark.parametrize("content", COMPRESSED)
def test_a_compressed_file_that_was_cut_is_an_error(tmp_path, content, read):
    found = outcomes(tmp_path, content, read, cut)
    # An empty file without a name that says more is a text without lines.
    assert [size for size, rows in found if rows is not None] == [0]


@pytest.mark.parametrize("read", JSON)
@pytest.mark.parametrize("name", ["lines.jsonl.gz", "lines.jsonl.zst"])
def test_an_empty_file_that_says_it_is_compressed_is_an_error(tmp_path, name, read):
    (tmp_path / name).touch()
    with pytest.raises(ShardCorruptError, match=f"{name}.*the file is empty"):
        read(str(tmp_path / name))


@pytest.mark.long
@pytest.mark.parametrize("read", JSON)
def test_no_line_of_a_damaged_text_is_lost_in_silence_but_those_after_a_cut_between_lines(tmp_path, read, some):
    found = outcomes(tmp_path, LINES, read, flipped, some)
    assert [position for position, rows in found if rows is not None and len(rows) != len(ROWS)] == []
    for size, rows in outcomes(tmp_path, LINES, read, cut, some):
        num_whole = LINES[: size + 1].count(b"\n") if LINES[size : size + 1] == b"\n" else LINES[:size].count(b"\n")
        assert rows is None or rows == ROWS[:num_whole]


@pytest.mark.long
def test_no_member_of_a_damaged_archive_is_lost_in_silence(tmp_path, some):
    content = tar_bytes()
    right = [{"__key__": f"sample{number}", "txt": f"text{number}"} for number in range(3)]
    for position, rows in outcomes(tmp_path, content, by_index(TarDataset), flipped, some):
        # What a member holds has no checksum.
        is_in_content = position // 512 in (1, 3, 5)
        assert (
            rows is None
            or rows == right
            or (is_in_content and [row["__key__"] for row in rows] == [row["__key__"] for row in right])
        )
    end = 7 * 512  # of the first block of zeros, which is enough
    for size, rows in outcomes(tmp_path, content, by_index(TarDataset), cut, some):
        assert rows == (None if size < end else right)


def test_an_error_of_a_damaged_row_group_names_the_file_and_the_location(tmp_path):
    path = tmp_path / "rows.parquet"
    content = bytearray(parquet_bytes(compression="none", use_dictionary=False, write_statistics=False))
    start = content.index(b"row 5")
    content[start] |= 0x80  # no text any more
    path.write_bytes(bytes(content))
    place = "row group 1, row 1, column 'text'"
    for read in PARQUET:
        with pytest.raises(ShardCorruptError, match=rf"rows\.parquet.*{place}"):
            read(str(path))
    assert ParquetDataset(str(path))[4] == ROWS[4]  # one beside it
