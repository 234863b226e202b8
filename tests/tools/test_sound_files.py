"""Sound files as other programs write them: each way to read gives the samples, or refuses the file by its name."""

import base64
import datetime as dt
import io
import itertools
import pickle
import re
import tarfile
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from PIL import Image
from pyarrow.parquet import encryption

from fkat_data import DataLoader
from fkat_data.datasets import (
    IterableJsonDataset,
    IterableParquetDataset,
    JsonDataset,
    ParquetDataset,
    TarDataset,
    TokenWindows,
)
from fkat_data.errors import ConfigurationError, SampleError, ShardCorruptError
from fkat_data.streaming import LocalDataset, StreamingDataset
from fkat_data.tools import convert


def streamed(path, **options):
    stream = StreamingDataset(local=str(path), batch_size=1, **options)
    return [stream[row] for row in range(len(stream))]


def converted(path, **options):
    out = path.parent / f"{path.name}.mds"
    convert(path, out, **options)
    return list(LocalDataset(out))


TAR_READERS = {
    "map-style": lambda path: list(TarDataset(str(path), decode="bytes")),
    "stream": lambda path: streamed(path, decode="bytes"),
    "convert": lambda path: converted(path, columns={"txt": "bytes"}),
}
JSON_READERS = {
    "map-style": lambda path: list(JsonDataset(str(path))),
    "iterable": lambda path: list(IterableJsonDataset(str(path))),
    "convert": converted,
}


def write_tar(path, add, form=tarfile.GNU_FORMAT):
    with tarfile.open(path, "w", format=form) as writer:
        add(writer)
    return path


def add_text(writer, name, text=b"text", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(text)
    for field, value in fields.items():
        setattr(info, field, value)
    writer.addfile(info, io.BytesIO(text))


@pytest.mark.parametrize("reader", TAR_READERS)
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_files_with_long_names_that_are_not_ascii_are_read(tmp_path, reader, form):
    names = [f"{'f' * 60}/{'n' * cut}{'é日' * 15}" for cut in range(5)]
    path = write_tar(tmp_path / "a.tar", lambda tar: [add_text(tar, f"{name}.txt") for name in names], form)
    found = [(row["__key__"], row["txt"]) for row in TAR_READERS[reader](path)]
    assert found == [(name, b"text") for name in names]


UNFIT = {
    "hard link": lambda tar: add_text(tar, "b.txt", b"", type=tarfile.LNKTYPE, linkname="a.txt"),
    "symbolic link": lambda tar: add_text(tar, "b.txt", b"", type=tarfile.SYMTYPE, linkname="a.txt"),
    "sparse": lambda tar: add_text(tar, "b.txt", b"", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}),
    "absolute": lambda tar: add_text(tar, "/b.txt"),
    "not UTF-8": lambda tar: add_text(tar, "b\udce9.txt"),
    "two members with the extension": lambda tar: add_text(tar, "a.txt"),
}


@pytest.mark.parametrize("reader", TAR_READERS)
@pytest.mark.parametrize("case", UNFIT)
def test_tar_files_with_members_that_no_sample_can_have_are_refused_and_not_called_corrupt(tmp_path, reader, case):
    form = tarfile.PAX_FORMAT if case == "sparse" else tarfile.GNU_FORMAT
    path = write_tar(tmp_path / "a.tar", lambda tar: [add_text(tar, "a.txt"), UNFIT[case](tar)], form)
    with pytest.raises(ConfigurationError, match=r"a\.tar.*member.* at byte 1,0?[0-9]+ is "):
        TAR_READERS[reader](path)


def zstd_of_large_window(text):
    """A frame as ``zstd --long=31`` writes it of a pipe: its header asks for a window of 2 GiB. The text is stored."""
    magic, descriptor, window = b"\x28\xb5\x2f\xfd", b"\0", bytes([(31 - 10) << 3])
    frame = magic + descriptor + window + (len(text) << 3 | 1).to_bytes(3, "little") + text
    assert zstandard.get_frame_parameters(frame).window_size == 1 << 31
    return frame


@pytest.mark.parametrize("reader", JSON_READERS)
def test_zstd_files_with_windows_of_2_gib_are_read(tmp_path, reader):
    path = tmp_path / "rows.jsonl.zst"
    path.write_bytes(zstd_of_large_window(b'{"a": 1}\n{"a": 2}\n'))
    assert JSON_READERS[reader](path) == [{"a": 1}, {"a": 2}]


def converted_table(path):
    return converted(path, nulls="json")


def at_once(dataset):
    return dataset.__getitems__(range(len(dataset)))


PARQUET_READERS = {
    "map-style": lambda path: list(ParquetDataset(str(path))),
    "map-style at once": lambda path: at_once(ParquetDataset(str(path))),
    "iterable": lambda path: list(IterableParquetDataset(str(path), rows_at_once=16)),
    "stream": streamed,
    "convert": converted_table,
}


class KeysInTheFile(encryption.KmsClient):
    """Keeps keys as they are: nothing is secret here."""

    def wrap_key(self, key_bytes, master_key_identifier):
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key, master_key_identifier):
        return base64.b64decode(wrapped_key)


@pytest.mark.parametrize("reader", PARQUET_READERS)
@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_encrypted_parquet_files_are_refused_and_not_called_corrupt(tmp_path, reader, plaintext_footer):
    settings = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["a"]}, plaintext_footer=plaintext_footer
    )
    factory = encryption.CryptoFactory(lambda _: KeysInTheFile())
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), settings)
    table = pa.table({"a": [1], "b": [2]})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    with pytest.raises(ConfigurationError, match=r"a\.parquet.*without encryption"):
        PARQUET_READERS[reader](tmp_path / "a.parquet")


@pytest.mark.parametrize("reader", PARQUET_READERS)
def test_a_page_whose_checksum_is_wrong_is_corrupt_to_all(tmp_path, reader):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": range(100)}), path, write_page_checksum=True, use_dictionary=False, compression=None)
    content = path.read_bytes()
    path.write_bytes(content.replace((77).to_bytes(8, "little"), (78).to_bytes(8, "little"), 1))
    with pytest.raises(ShardCorruptError, match=r"a\.parquet"):
        PARQUET_READERS[reader](path)


@pytest.mark.parametrize("reader", ["map-style", "iterable", "stream"])
def test_a_dictionary_whose_texts_would_be_more_than_2_gib_is_read(tmp_path, reader):
    """A mebibyte, 2,100 times: only what is asked for is made."""
    large = pa.DictionaryArray.from_arrays(pa.array([1] + [0] * 2100, pa.int8()), ["x" * (1 << 20), "y"])
    pq.write_table(pa.table({"text": large}), path := tmp_path / "a.parquet", compression="zstd")
    assert path.stat().st_size < 1 << 16
    readers = {
        "map-style": lambda: ParquetDataset(str(path))[0],
        "iterable": lambda: next(iter(IterableParquetDataset(str(path), rows_at_once=1))),
        "stream": lambda: StreamingDataset(local=str(path), batch_size=1)[0],
    }
    assert readers[reader]() == {"text": "y"}


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["map-style", "iterable", "stream"])
def test_row_groups_with_more_than_2_gib_of_nested_texts_are_read(tmp_path, reader):
    """What pyarrow gives of it takes six times as much memory, so a test of every push leaves it out."""
    texts = pa.array(["x" * (1 << 20)] * 21)
    nested = pa.StructArray.from_arrays([texts, pa.ListArray.from_arrays(list(range(22)), texts)], ["text", "list"])
    table = pa.table({"nested": pa.chunked_array([nested] * 105), "row": range(21 * 105)})
    pq.write_table(table, path := tmp_path / "a.parquet", row_group_size=1 << 20, compression="zstd")
    found = {
        "map-style": lambda: ParquetDataset(str(path)),
        "iterable": lambda: IterableParquetDataset(str(path)),
        "stream": lambda: StreamingDataset(local=str(path), batch_size=1),
    }[reader]()
    rows = list(itertools.islice(found, 3)) if reader == "iterable" else [found[row] for row in (0, 1, 2)]
    assert [row["row"] for row in rows] == [0, 1, 2]
    assert all(row["nested"] == {"text": "x" * (1 << 20), "list": ["x" * (1 << 20)]} for row in rows)


FILE_READERS = {
    "map-style": lambda folder: list(ParquetDataset(sorted(folder.glob("*.parquet")))),
    "map-style at once": lambda folder: ParquetDataset(sorted(folder.glob("*.parquet"))).__getitems__([0, 1]),
    "iterable": lambda folder: list(IterableParquetDataset(sorted(folder.glob("*.parquet")))),
    "stream": streamed,
    "convert": converted,
    "convert with nulls": lambda folder: converted(folder, nulls="json"),
}
#: The same samples, as several writers hold them.
ONE_TYPE = {
    "texts": [
        pa.array(["a"]),
        pa.array(["b"], pa.large_string()),
        pa.array(["c"], pa.string_view()),
        pa.array(["d"]).dictionary_encode(),
        pa.nulls(1),
    ],
    "bytes": [pa.array([b"a"]), pa.array([b"b"], pa.large_binary()), pa.array([b"c"], pa.binary(1))],
    "integers": [pa.array([1], pa.int8()), pa.array([2], pa.int64()), pa.array([3], pa.uint32()), pa.nulls(1)],
    "floats": [pa.array([1], pa.float16()), pa.array([2.5], pa.float64()), pa.array([0.1], pa.float32())],
    "lists of numbers": [
        pa.array([[1]], pa.list_(pa.field("element", pa.int32(), nullable=False))),
        pa.array([[2]], pa.large_list(pa.int64())),
        pa.array([[]], pa.list_(pa.null())),
    ],
    "fixed lists": [
        pa.array([[1, 2]], pa.list_(pa.int16(), 2)),
        pa.array([[3, 4]], pa.list_(pa.int32(), 2)),
        pa.nulls(1),
    ],
    "lists of texts": [
        pa.array([["a"]]),
        pa.array([["b"]], pa.large_list(pa.large_string())),
        pa.array([[]], pa.list_(pa.null())),
    ],
    "structs": [
        pa.array([{"a": "x", "b": 1}]),
        pa.array([{"b": 1, "a": "y"}], pa.struct([("b", pa.int32()), ("a", pa.large_string())])),
        pa.array([{"a": None, "b": 1}], pa.struct([("a", pa.null()), ("b", pa.int64())])),
    ],
    "times": [
        pa.array([dt.datetime(2024, 1, 1)], pa.timestamp("us", "UTC")),  # noqa: DTZ001
        pa.array([dt.datetime(2024, 1, 2)], pa.timestamp("ms", "+00:00")),  # noqa: DTZ001
    ],
    "dates": [pa.array([dt.date(2024, 1, 1)], pa.date32()), pa.array([dt.date(2024, 1, 2)], pa.date64())],
    "decimals": [pa.array([Decimal("1.5")], pa.decimal128(5, 2)), pa.array([Decimal("2.25")], pa.decimal128(12, 4))],
}


def write_files(folder, columns):
    folder.mkdir()
    for number, column in enumerate(columns):
        table = pa.table({"x": column, "row": pa.array([number])})
        pq.write_table(table, folder / f"{number}.parquet")
    return folder


def plain(value):
    value = value.tolist() if hasattr(value, "tolist") else value
    return value.isoformat() if isinstance(value, dt.date) else value  # as a conversion stores it


def kinds_of(rows):
    """What a microbatch of the values would be made of: an array's numbers need one dtype."""
    return {
        str(getattr(row["x"], "dtype", type(row["x"])))
        for row in rows
        if row["x"] is not None and plain(row["x"]) != []
    }


@pytest.mark.parametrize("reader", FILE_READERS)
@pytest.mark.parametrize("case", ONE_TYPE)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_files_of_several_writers_are_one_dataset_where_their_samples_are_of_one_type(
    tmp_path, reader, case, is_reversed
):
    columns = ONE_TYPE[case][::-1] if is_reversed else ONE_TYPE[case]
    rows = FILE_READERS[reader](write_files(tmp_path / "data", columns))
    expected = [column.to_pylist()[0] for column in columns]
    assert [plain(row["x"]) for row in rows] == list(map(plain, expected[: len(rows)]))
    assert len(kinds_of(rows)) == 1


SEVERAL_TYPES = {
    "text and number": ([pa.array(["a"]), pa.array([1])], "string", "int64"),
    "integer and float": ([pa.array([1]), pa.array([1.5])], "int64", "double"),
    "signed and unsigned": ([pa.array([1], pa.int64()), pa.array([1], pa.uint64())], "int64", "uint64"),
    "text and bytes": ([pa.array(["a"]), pa.array([b"a"])], "string", "binary"),
    "zones": (
        [pa.array([1], pa.timestamp("us", "UTC")), pa.array([1], pa.timestamp("us", "Asia/Tokyo"))],
        "UTC",
        "Tokyo",
    ),
    "nanoseconds": ([pa.array([1], pa.timestamp("ns")), pa.array([1], pa.timestamp("us"))], r"\[ns", r"\[us"),
    "structs": ([pa.array([{"a": 1}]), pa.array([{"b": 1}])], "struct<a", "struct<b"),
    "shapes": (
        [pa.array([[1]], pa.list_(pa.int64(), 1)), pa.array([[1, 2]], pa.list_(pa.int64(), 2))],
        r"\[1\]",
        r"\[2\]",
    ),
}


@pytest.mark.parametrize("reader", FILE_READERS)
@pytest.mark.parametrize("case", SEVERAL_TYPES)
def test_files_whose_samples_are_of_several_types_are_refused_with_both_files_and_types(tmp_path, reader, case):
    columns, first, second = SEVERAL_TYPES[case]
    folder = write_files(tmp_path / "data", columns)
    expected = rf"columns = 'x'.*is .*{second}.* in .*1\.parquet, and .*{first}.* in .*0\.parquet"
    with pytest.raises(ConfigurationError, match=expected):
        FILE_READERS[reader](folder)


@pytest.mark.parametrize("reader", PARQUET_READERS)
def test_two_columns_of_one_name_are_refused_and_others_are_read(tmp_path, reader):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table([[1], [2], [3]], names=["twice", "twice", "b"]), path)
    with pytest.raises(ConfigurationError, match=r"(?s)a\.parquet.*'twice'|'twice'.*a\.parquet"):
        PARQUET_READERS[reader](path)
    others = {
        "map-style": lambda: list(ParquetDataset(path, ["b"])),
        "map-style at once": lambda: at_once(ParquetDataset(path, ["b"])),
        "iterable": lambda: list(IterableParquetDataset(path, ["b"])),
        "stream": lambda: streamed(path, columns=["b"]),
        "convert": lambda: converted(path, only=["b"]),
    }
    assert others[reader]() == [{"b": 3}]


#: Values of Arrow's that are none of Python's.
BEYOND_PYTHON = {
    "date after the year 9999": pa.array([0, 2_932_897], pa.date32()),
    "date before the year 1": pa.array([0, -719_163], pa.date32()),
    "time after the year 9999": pa.array([0, 1 << 62], pa.timestamp("us")),
    "time in a zone": pa.array([0, 253_402_300_800], pa.timestamp("s", "UTC")),
    "duration": pa.array([0, 1 << 62], pa.duration("s")),
    "within a list": pa.array([[0], [2_932_897]], pa.list_(pa.date32())),
    "times within a list": pa.array([[0], [1 << 45]], pa.list_(pa.timestamp("s"))),
    "within a struct": pa.array([{"at": 0}, {"at": 2_932_897}], pa.struct({"at": pa.date32()})),
    "zone": pa.array([None, 1], pa.timestamp("us", "Mars/Base")),
}


@pytest.mark.parametrize("reader", PARQUET_READERS)
@pytest.mark.parametrize("case", BEYOND_PYTHON)
def test_values_that_python_lacks_are_a_limit_and_no_damage(tmp_path, reader, case):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": BEYOND_PYTHON[case], "row": [0, 1]}), path)
    with pytest.raises((ConfigurationError, SampleError), match=r"'x'.*Python can") as caught:
        PARQUET_READERS[reader](path)
    said = "".join((str(caught.value), *getattr(caught.value, "__notes__", ())))
    assert re.search(r"row 1 .*a\.parquet", said)


@pytest.mark.parametrize("reader", PARQUET_READERS)
def test_a_table_without_rows_has_no_samples_for_each_reader(tmp_path, reader):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), path)
    assert PARQUET_READERS[reader](path) == []


@pytest.mark.parametrize("reader", TAR_READERS)
def test_a_tar_file_without_members_has_no_samples_for_each_reader(tmp_path, reader):
    path = write_tar(tmp_path / "a.tar", lambda _: None)
    assert (converted(path) if reader == "convert" else TAR_READERS[reader](path)) == []


@pytest.mark.parametrize("content", [b"", bytes(20)], ids=["empty", "shorter than a window"])
def test_a_file_of_too_few_tokens_has_no_windows_for_each_reader(tmp_path, content):
    path = tmp_path / "a.bin"
    path.write_bytes(content)
    tokens = {"window_size": 100, "dtype": "uint16"}
    assert len(TokenWindows(path, **tokens)) == len(StreamingDataset(local=str(path), tokens=tokens)) == 0


#: Lines of JSON that Python's json does not read, or that the reader was told not to.
BEYOND_JSON = {
    "deep": ({}, b"[" * 100_000 + b"]" * 100_000, r"line 1 .*nested more deeply"),
    "digits": ({}, b"9" * 5_000, r"line 1 .*digits.*set_int_max_str_digits"),
    "long": ({"max_line_bytes": 1 << 10}, b'"%s"' % (b"x" * (3 << 20)), r"byte 8 .*longer"),
}


@pytest.mark.parametrize("kind", [JsonDataset, IterableJsonDataset, "convert"])
@pytest.mark.parametrize("case", BEYOND_JSON)
def test_lines_beyond_a_limit_are_refused_and_not_called_corrupt(tmp_path, kind, case):
    options, value, said = BEYOND_JSON[case]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":' + value + b"}\n")
    if kind == "convert" and case == "long":  # it knows no such limit
        assert len(converted(path)) == 2
        return
    with pytest.raises(ConfigurationError, match=said) as caught:
        converted(path) if kind == "convert" else list(kind(path, **options))
    assert "a.jsonl" in str(caught.value)


def saved(save, *arguments):
    buffer = io.BytesIO()
    save(buffer, *arguments)
    return buffer.getvalue()


LIMITED_MEMBERS = {
    "npy": (saved(np.save, np.array([{}, None])), "pickles"),
    "jpg": (saved(Image.new("RGB", (2, 2)).save, "TIFF"), "an image of the kind TIFF"),
    "json": (b"[" * 100_000 + b"]" * 100_000, "nested more deeply"),
    "cls": (b"9" * 5_000, "set_int_max_str_digits"),
}


@pytest.mark.parametrize("extension", LIMITED_MEMBERS)
def test_members_beyond_a_limit_are_refused_and_not_called_corrupt(tmp_path, extension):
    content, said = LIMITED_MEMBERS[extension]
    path = write_tar(tmp_path / "a.tar", lambda tar: add_text(tar, f"0.{extension}", content))
    for read in (lambda: list(TarDataset(path)), lambda: streamed(path)):
        with pytest.raises(ConfigurationError, match=rf"a\.tar.*row 0, member '0\.{extension}' .*{said}"):
            read()


def test_images_of_more_pixels_than_pillow_opens_are_refused_and_not_called_corrupt(tmp_path, monkeypatch):
    image = io.BytesIO()
    Image.new("1", (64, 64)).save(image, "PNG")
    path = write_tar(tmp_path / "a.tar", lambda tar: add_text(tar, "0.png", image.getvalue()))
    convert(path, tmp_path / "out")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 16)
    for read in (lambda: list(TarDataset(path)), lambda: streamed(path), lambda: list(LocalDataset(tmp_path / "out"))):
        with pytest.raises(ConfigurationError, match=r"row 0, .*png.*MAX_IMAGE_PIXELS"):
            read()


@pytest.mark.parametrize("value", ["[1]", '"text"', "null"])
def test_a_line_that_is_no_object_is_no_row_of_a_conversion(tmp_path, value):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"a": 1}}\n{value}\n')
    with pytest.raises(ConfigurationError, match=r"a JSON object on each line; line 1 .*a\.jsonl"):
        convert(path, tmp_path / "out")


@pytest.mark.parametrize("reader", JSON_READERS)
@pytest.mark.parametrize(
    "text", ['[\n{"a": 1},\n{"a": 2}\n]\n', '{\n  "a": 1\n}\n', '[{"a": 1},\n {"a": 2}]', '{"a":\r\n1}\r\n']
)
def test_a_json_document_of_several_lines_is_of_another_kind_and_no_damage(tmp_path, reader, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"a\.json.*JSON lines, each a JSON value of its own; line 0 "):
        JSON_READERS[reader](path)
    path.write_text(text[: text.index("\n")])  # a cut is one
    with pytest.raises(ShardCorruptError, match=r"a\.json.*line 0 "):
        JSON_READERS[reader](path)


@pytest.mark.parametrize("reader", JSON_READERS)
def test_zstd_files_that_need_a_dictionary_are_refused_and_not_called_corrupt(tmp_path, reader):
    lines = [b'{"a": %d, "text": "the same in each of them"}\n' % number for number in range(2_000)]
    dictionary = zstandard.train_dictionary(1 << 10, lines)
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.ZstdCompressor(dict_data=dictionary).compress(b"".join(lines[:9])))
    with pytest.raises(ConfigurationError, match=r"a\.jsonl\.zst.*without a dictionary"):
        JSON_READERS[reader](path)


@pytest.mark.parametrize("reader", PARQUET_READERS)
def test_a_parquet_file_that_summarizes_others_is_refused_and_not_called_corrupt(tmp_path, reader):
    table, found = pa.table({"a": [1, 2]}), []
    pq.write_table(table, tmp_path / "part-0.parquet", metadata_collector=found)
    found[0].set_file_path("part-0.parquet")
    (tmp_path / "summary").mkdir()
    pq.write_metadata(table.schema, tmp_path / "summary" / "a.parquet", metadata_collector=found)
    with pytest.raises(ConfigurationError, match=r"a\.parquet.*a summary of other files"):
        PARQUET_READERS[reader](tmp_path / "summary" / "a.parquet")


def test_samples_with_values_beyond_a_limit_are_left_out_where_the_caller_says_so(tmp_path):
    days = pa.array([0, 1 << 30, 1], pa.date32())
    pq.write_table(pa.table({"day": days, "row": [0, 1, 2]}), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_bytes(b'{"row": 0}\n' + b"[" * 100_000 + b'\n{"row": 2}\n')
    for dataset in (
        ParquetDataset(tmp_path / "a.parquet"),
        JsonDataset(tmp_path / "a.jsonl"),
        StreamingDataset(local=str(tmp_path / "a.parquet"), batch_size=1),
    ):
        loader = DataLoader(dataset, batch_size=1, collate_fn=list, on_sample_error="skip")
        assert [row["row"] for batch in loader for row in batch] == [0, 2]


def test_an_error_of_a_limit_is_the_same_in_another_process(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"[" * 100_000 + b"\n")
    with pytest.raises(ConfigurationError) as caught:
        JsonDataset(tmp_path / "a.jsonl")[0]
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy), vars(copy)) == (type(caught.value), str(caught.value), vars(caught.value))
