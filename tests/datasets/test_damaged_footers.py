"""Parquet files whose footer contradicts itself: pyarrow ends the process where it is asked of such a column chunk."""

import io

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fkat_data.datasets import IterableParquetDataset, ParquetDataset
from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.streaming import LocalDataset, StreamingDataset
from fkat_data.tools import convert

ROWS = [{"number": number, "text": f"row {number}"} for number in range(4)]


def streamed(path, **options):
    return list(StreamingDataset(local=str(path), batch_size=1, **options))


def converted(path):
    convert(path, path.parent / "out")
    return list(LocalDataset(path.parent / "out"))


def remote(read):
    def uploaded(path):
        uri = f"memory://damaged-footers/{path.name}"
        with fsspec.open(uri, "wb") as file:
            file.write(path.read_bytes())
        return read(uri)

    return uploaded


READERS = {
    "map-style": lambda path: list(ParquetDataset(str(path))),
    "iterable": lambda path: list(IterableParquetDataset(str(path))),
    "stream": streamed,
    "stream of a column": lambda path: streamed(path, columns=["number"]),
    "convert": converted,
    "remote map-style": remote(lambda uri: list(ParquetDataset(uri))),
    "remote batch": remote(lambda uri: ParquetDataset(uri).__getitems__([0, 3])),
    "remote iterable": remote(lambda uri: list(IterableParquetDataset(uri))),
}


def contradicting_footers():
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), file, row_group_size=2, store_schema=False)
    content = file.getvalue()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    found = {}
    for position in range(footer, len(content) - 8):
        other = bytearray(content)
        other[position] ^= 1 << position % 8
        try:
            pq.ParquetFile(io.BytesIO(other)).read()
        except (OSError, ValueError) as error:
            found.setdefault(str(error).partition(",")[0], bytes(other))
    return [content for said, content in found.items() if "size mismatch" in said]


@pytest.mark.parametrize("reader", READERS)
def test_a_footer_that_contradicts_itself_is_an_error_and_not_the_end_of_the_process(tmp_path, reader):
    path = tmp_path / "damaged.parquet"
    for content in contradicting_footers():
        path.write_bytes(content)
        with pytest.raises(ShardCorruptError, match=r"damaged\.parquet.*(mismatch|row group [01])"):
            READERS[reader](path)


@pytest.mark.parametrize("reader", READERS)
def test_a_column_whose_name_is_no_text_is_an_error_with_the_file(tmp_path, reader):
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), file, store_schema=False)
    path = tmp_path / "damaged.parquet"
    path.write_bytes(file.getvalue().replace(b"\x06number", b"\x06n\xf5mber"))
    with pytest.raises(ShardCorruptError, match=r"damaged\.parquet.*utf-8"):
        READERS[reader](path)


@pytest.mark.parametrize("reader", READERS)
def test_a_writer_whose_name_is_no_text_is_no_matter(tmp_path, reader):
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), file, store_schema=False)
    path = tmp_path / "odd.parquet"
    assert b"parquet-cpp" in file.getvalue()
    path.write_bytes(file.getvalue().replace(b"parquet-cpp", b"parquet-\xe3pp"))
    numbers = [row["number"] for row in READERS[reader](path)]
    assert (numbers[0], numbers[-1]) == (0, 3)


@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_is_compressed_as_pyarrow_cannot_read_is_refused_and_not_called_corrupt(tmp_path, reader):
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), file, compression="gzip", store_schema=False)
    content = file.getvalue()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    # A column chunk says its codec, an enumeration, behind the path of its column: 2 is gzip, 3 is LZO.
    lzo = (
        content[footer:]
        .replace(b"\x06number\x15\x04", b"\x06number\x15\x06")
        .replace(b"\x04text\x15\x04", b"\x04text\x15\x06")
    )
    assert lzo != content[footer:]
    path = tmp_path / "lzo.parquet"
    path.write_bytes(content[:footer] + lzo)
    with pytest.raises(ConfigurationError, match=r"lzo\.parquet.*what pyarrow .* reads"):
        READERS[reader](path)
