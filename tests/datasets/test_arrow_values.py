"""Values of Arrow's types: the same by index, in order and in a stream, with pandas installed or without it."""

import datetime as dt
import shutil
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fkat_data.datasets import IterableParquetDataset, ParquetDataset
from fkat_data.errors import ConfigurationError
from fkat_data.streaming import LocalDataset, StreamingDataset
from fkat_data.tools import convert

NANOSECONDS = 1_700_000_000_123_456_789
TIME = np.datetime64(NANOSECONDS, "ns")
SPAN = np.timedelta64(3_600_000_000_001, "ns")
STAMP, SPANS = pa.timestamp("ns"), pa.duration("ns")
BERLIN = pa.timestamp("ns", tz="Europe/Berlin")
LONG = "more letters than a view holds"
DAY = dt.datetime(2023, 11, 14, 22, 13, 20)  # noqa: DTZ001 - a column without a zone has such values


def stamps(kind=STAMP):
    return pa.array([NANOSECONDS, None, 0], pa.int64()).cast(kind)


CASES = {
    "timestamp": (stamps(), [TIME, None, np.datetime64(0, "ns")]),
    "timestamp with a zone, in UTC": (stamps(BERLIN), [TIME, None, np.datetime64(0, "ns")]),
    "timestamp of milliseconds": (pa.array([DAY, None], pa.timestamp("ms")), [DAY, None]),
    "duration": (pa.array([SPAN, None], SPANS), [SPAN, None]),
    "duration of seconds": (pa.array([5, None], pa.duration("s")), [dt.timedelta(seconds=5), None]),
    "time": (pa.array([int(SPAN.astype(int)), None], pa.int64()).cast(pa.time64("ns")), [SPAN, None]),
    "time of microseconds": (pa.array([1, None], pa.time64("us")), [dt.time(0, 0, 0, 1), None]),
    "dictionary": (pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
    "dictionary of timestamps": (stamps().dictionary_encode(), [TIME, None, np.datetime64(0, "ns")]),
    "list": (pa.array([[NANOSECONDS, None], None, []], pa.list_(STAMP)), [[TIME, None], None, []]),
    "fixed list": (pa.array([[NANOSECONDS] * 2, None], pa.list_(STAMP, 2)), [[TIME, TIME], None]),
    "large list": (pa.array([[NANOSECONDS], None], pa.large_list(STAMP)), [[TIME], None]),
    "map": (pa.array([[("k", NANOSECONDS)], None], pa.map_(pa.string(), STAMP)), [[("k", TIME)], None]),
    "nested struct": (
        pa.array(
            [{"at": NANOSECONDS, "parts": [{"took": int(SPAN.astype(int))}]}, None, {"at": None, "parts": None}],
            pa.struct([("at", STAMP), ("parts", pa.list_(pa.struct([("took", SPANS)])))]),
        ),
        [{"at": TIME, "parts": [{"took": SPAN}]}, None, {"at": None, "parts": None}],
    ),
    "view of strings": (pa.array(["a", None, LONG], pa.string_view()), ["a", None, LONG]),
    "views in a struct": (
        pa.array([{"a": "x"}, {"a": None}], pa.struct({"a": pa.string_view()})),
        [{"a": "x"}, {"a": None}],
    ),
    "views in a list": (pa.array([["a"], [], None], pa.list_(pa.binary_view())), [[b"a"], [], None]),
    "fixed bytes": (pa.array([b"ab", None], pa.binary(2)), [b"ab", None]),
    "uuid": (pa.array([b"0" * 16, None], pa.uuid()), [uuid.UUID(bytes=b"0" * 16), None]),
    "bool8": (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0], pa.int8())), [True, False]),
}


def faces(tmp_path, column):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"column": column}), path)
    yield lambda: ParquetDataset(str(path)).__getitems__(range(len(column)))
    yield lambda: list(IterableParquetDataset(str(path)))
    stream = StreamingDataset(local=str(tmp_path), batch_size=1)
    yield lambda: [stream[row] for row in range(len(column))]


@pytest.mark.parametrize("name", CASES)
def test_a_value_is_the_same_in_each_face(tmp_path, name):
    column, expected = CASES[name]
    for read in faces(tmp_path, column):
        values = [row["column"] for row in read()]
        assert values == expected
        assert [type(value) for value in values] == [type(value) for value in expected]


# What has no place in the years of nanoseconds in 64 bits comes as from a column of microseconds.
ERAS = [dt.datetime(9999, 12, 31), None, dt.datetime(1, 1, 1), dt.datetime(2262, 4, 11, 23, 47, 17)]  # noqa: DTZ001
FINE = dt.datetime(2024, 2, 29, 1, 2, 3, 4)  # noqa: DTZ001
INT96 = {
    "flat": (lambda time: time, pa.timestamp("us")),
    "nested": (
        lambda time: {"of": [{"at": time}, None], "map": [("k", time)]},
        pa.struct(
            {
                "of": pa.list_(pa.struct({"at": pa.timestamp("us")})),
                "map": pa.map_(pa.string(), pa.timestamp("us")),
            }
        ),
    ),
}


def test_a_time_of_96_bits_may_have_a_year_that_python_lacks(tmp_path):
    path = tmp_path / "rows.parquet"
    far = np.datetime64("290000-12-31T01:02:03", "us")
    column = pa.array([int(far.astype(np.int64)), 0, int(np.datetime64("-0044-03-15", "us").astype(int))], pa.int64())
    table = pa.table({"column": column.cast(pa.timestamp("us"))})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    expected = [far, np.datetime64(0, "ns"), np.datetime64("-0044-03-15", "us")]
    stream = StreamingDataset(local=str(tmp_path), batch_size=1)
    for rows in (ParquetDataset(str(path)), IterableParquetDataset(str(path)), map(stream.__getitem__, range(3))):
        assert [row["column"] for row in rows] == expected
    convert(path, tmp_path / "out")
    texts = [row["column"] for row in LocalDataset(tmp_path / "out")]
    assert texts == ["290000-12-31T01:02:03", "1970-01-01T00:00:00", "-044-03-15T00:00:00"]


@pytest.mark.parametrize("name", INT96)
def test_a_time_of_96_bits_is_that_of_any_year(tmp_path, name):
    make, kind = INT96[name]
    path = tmp_path / "rows.parquet"
    column = pa.array([*map(make, ERAS), make(FINE)], kind)
    pq.write_table(pa.table({"column": column}), path, use_deprecated_int96_timestamps=True, row_group_size=3)
    expected = [*map(make, ERAS), make(np.datetime64(FINE, "ns"))]
    readers = [lambda: ParquetDataset(str(path)), lambda: IterableParquetDataset(str(path), rows_at_once=2)]
    for read in readers:
        assert [row["column"] for row in read()] == expected
    stream = StreamingDataset(local=str(tmp_path), batch_size=1)
    assert [stream[row]["column"] for row in range(len(column))] == expected


class Registered(pa.ExtensionType):
    """An extension of the program's own, which is registered or not."""

    def __init__(self, storage=None):
        super().__init__(storage or pa.int32(), "test.registered")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, serialized):
        return cls(storage)


def extended(kind, values):
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


def tensors(*shape, axes=None, first=0):
    """A column of two tensors and a null, and what they are."""
    size = int(np.prod(shape))
    stored = [[*range(first, first + size)], None, [*range(first + size, first + 2 * size)]]
    kind = pa.fixed_shape_tensor(pa.int16(), shape, permutation=axes)
    expected = [
        None if each is None else np.reshape(each, shape).transpose(axes or range(len(shape))) for each in stored
    ]
    return extended(kind, stored), [None if each is None else each.tolist() for each in expected]


SHAPES = {"plain": ((2, 3), None), "turned": ((2, 3), [1, 0]), "three": ((2, 3, 4), [2, 1, 0]), "one": ((4,), None)}


def listed(value):
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize("name", SHAPES)
def test_a_tensor_has_its_shape_and_its_permutation(tmp_path, name):
    column, expected = tensors(*SHAPES[name][0], axes=SHAPES[name][1])
    for read in faces(tmp_path, column):
        assert [listed(row["column"]) for row in read()] == expected
    for read in faces(tmp_path, column.drop_null()):
        assert all(row["column"].shape == np.shape(expected[0]) for row in read())
    nested = pa.StructArray.from_arrays([column, stamps()], ["tensor", "time"])
    for read in faces(tmp_path, nested):
        assert [row["column"]["tensor"] for row in read()] == expected
    assert column.drop_null().to_numpy_ndarray().tolist() == [expected[0], expected[2]]


def test_a_null_within_a_tensor_leaves_its_shape(tmp_path):
    column = extended(pa.fixed_shape_tensor(pa.float32(), [2, 2], permutation=[1, 0]), [[1, 2, None, 4]])
    for read in faces(tmp_path, column):
        assert read()[0]["column"] == [[1, None], [2, 4]]


REFUSED = {
    "opaque": extended(pa.opaque(pa.binary(), "geometry", "postgis"), [b"a"]),
    "opaque in a list": pa.ListArray.from_arrays(
        pa.array([0, 1], pa.int32()), extended(pa.opaque(pa.binary(), "geometry", "postgis"), [b"a"])
    ),
    "a tensor that writers turn in two ways": tensors(2, 3, 4, axes=[2, 0, 1])[0],
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_column_of_no_known_values_is_refused_by_file_column_and_type(tmp_path, name):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"column": REFUSED[name], "other": range(len(REFUSED[name]))}), path)
    ways = (
        lambda **options: ParquetDataset(str(path), **options)[0],
        lambda **options: next(iter(IterableParquetDataset(str(path), **options))),
        lambda **options: StreamingDataset(local=str(tmp_path), batch_size=1, **options)[0],
    )
    for read in ways:
        with pytest.raises(ConfigurationError, match=r"(?s)'column'.*(opaque|permutation).*rows\.parquet"):
            read()
        assert read(columns=["other"]) == {"other": 0}
    with pytest.raises(ConfigurationError, match=r"(?s)'column'.*(opaque|permutation).*rows\.parquet"):
        convert(path, tmp_path / "out")
    convert(path, tmp_path / "other", only=["other"])


@pytest.mark.parametrize("storage", [pa.int32(), pa.timestamp("ns"), pa.list_(pa.field("element", pa.string_view()))])
@pytest.mark.parametrize("is_registered", [False, True])
def test_an_unknown_extension_gives_its_storage_and_one_log_line(tmp_path, caplog, storage, is_registered):
    values = [["a"], None] if pa.types.is_list(storage) else [7, None]
    flat = extended(Registered(storage), values)
    expected = [np.datetime64(7, "ns"), None] if storage == pa.timestamp("ns") else values
    nested = pa.StructArray.from_arrays([flat], ["a"])
    if is_registered:
        pa.register_extension_type(Registered())
    try:
        for read in faces(tmp_path, flat):
            caplog.clear()
            assert [listed(row["column"]) if storage == pa.int32() else row["column"] for row in read()] == expected
        for read in faces(tmp_path, nested):
            caplog.clear()
            assert [row["column"]["a"] for row in read()] == expected
    finally:
        if is_registered:
            pa.unregister_extension_type("test.registered")
    path = tmp_path / "rows.parquet"
    again = shutil.copy(path, tmp_path / "same.parquet")
    for make in (
        lambda: ParquetDataset([path, again])[0],
        lambda: list(IterableParquetDataset([path, again])),
        lambda: StreamingDataset(local=str(tmp_path), batch_size=1),
        lambda: convert(path, tmp_path / "out"),
    ):
        caplog.clear()
        make()
        (record,) = [record for record in caplog.records if record.name.startswith("fkat_data")]
        assert all(word in record.getMessage() for word in ("'column'", "rows.parquet", "test.registered"))
