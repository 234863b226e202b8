"""Tables as public data has them, with nulls, empty lists, times and nested values, and what is wrong with them."""

import datetime as dt
import json
import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.errors import ConfigurationError, SampleError, ShardCorruptError
from fkat_data.streaming import LocalDataset
from fkat_data.tools import convert

TABLES = Path(__file__).parents[1] / "golden" / "tables"


def encodings(directory):
    shard = json.loads((directory / "index.json").read_text())["shards"][0]
    return dict(zip(shard["column_names"], shard["column_encodings"], strict=True))


def converted(files, out, **options):
    convert(files, out, **options)
    dataset = LocalDataset(out)
    rows = [{name: plain(value) for name, value in row.items()} for row in dataset]
    return {name: (encoding, [row[name] for row in rows]) for name, encoding in encodings(out).items()}


def plain(value):
    if hasattr(value, "getbands"):
        return f"{value.mode} {value.size}"
    if isinstance(value, Decimal):
        return str(value)
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


PANDAS = {
    "__index_level_0__": ("str", ["r0", "r1", "r2"]),
    "blob": ("bytes", [b"a", b"\xff", b""]),
    "category": ("json", ["x", None, "y"]),
    "clock": ("json", ["01:02:03", None, "04:00:00"]),
    "day": ("json", ["2024-01-01", None, "0001-01-01"]),
    "duration": ("json", ["0:00:01", None, "2 days, 0:00:00.000000001"]),
    "flag": ("json", [True, None, False]),
    "float": ("json", [0.5, None, 2.0]),
    "int_with_nan": ("json", [1.0, 2.0, None]),
    "interval": ("json", [{"left": number, "right": number + 1} for number in range(3)]),
    "nested": ("json", [[[1], [2, 3]], [], None]),
    "nothing": ("json", [None] * 3),
    "nullable_int": ("json", [1, None, 3]),
    "numbers": ("json", [[1, 2], [], None]),
    "period": ("int", [648, 649, 650]),
    "price": ("json", ["1.20", None, "-3.00"]),
    "record": ("json", [{"a": 1, "b": None}, {"a": 2, "b": "z"}, None]),
    "text": ("json", ["a", None, "é"]),
    "time": ("json", ["2024-01-01T00:00:00", "2024-01-02T03:04:05.123456789", None]),
    "zoned": ("json", ["2024-01-01T00:00:00+01:00", "2024-07-02T00:00:00+02:00", None]),
}
MOMENT = "2024-01-01T02:03:04.000567"
POLARS = {
    "blob": PANDAS["blob"],
    "category": PANDAS["category"],
    "clock": PANDAS["clock"],
    "day": ("json", ["2024-01-01", None, "2024-01-01"]),
    "duration": ("json", ["0:00:01", None, "2 days, 0:00:00"]),
    "flag": PANDAS["flag"],
    "int": ("json", [1, None, 3]),
    "level": ("str", ["x", "y", "x"]),
    "nothing": PANDAS["nothing"],
    "numbers": PANDAS["numbers"],
    "pair": ("ndarray:int32:2", [[1, 2], [3, 4], [5, 6]]),
    "price": PANDAS["price"],
    "record": PANDAS["record"],
    "records": ("json", [[{"k": 1}], [], None]),
    "small": ("uint8", [1, 2, 3]),
    "text": PANDAS["text"],
    "time": ("json", [MOMENT, None, MOMENT]),
    "zoned": ("str", [f"{MOMENT}+00:00"] * 3),
}
DUCKDB = {
    "blob": ("bytes", [b"\xaa", b""]),
    "clock": ("json", ["01:02:03", None]),
    "day": ("json", ["2024-01-01", None]),
    "fine": ("json", ["2024-01-01T00:00:00.123456789", None]),
    "flag": ("json", [True, None]),
    "huge": ("json", [2.0, None]),
    "id": ("json", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", None]),
    "int": ("json", [1, None]),
    "int_map": ("json", [[[1, "k"]], None]),
    "json": ("json", [{"q": 1}, None]),
    "level": ("json", ["x", None]),
    "map": ("json", [{"k": 1, "l": 2}, None]),
    "numbers": ("json", [[1, 2], None]),
    "pair": ("ndarray:float32", [[1, 2], [3, 4]]),
    "price": ("json", ["1.50", None]),
    "record": ("json", [{"a": 1, "b": "z"}, None]),
    "records": ("json", [[{"at": "2024-01-01", "price": "1.5"}], None]),
    "small": ("json", [5, None]),
    "text": ("json", ["a", None]),
    "time": ("json", ["2024-01-01T00:00:00", None]),
    "zoned": ("json", ["2024-01-01T00:00:00+00:00", None]),
}
HUGGING_FACE = {
    "answers": ("json", [{"text": ["x"], "start": [1]}, {"text": [], "start": []}]),
    "embedding": ("ndarray:float32:3", [[1, 2, 3], [4, 5, 6]]),
    "flag": ("json", [True, None]),
    "grid": ("json", [[[1, 2], [3, 4]]] * 2),
    "id": ("int", [1, 2]),
    "image": ("jpeg", ["RGB (2, 1)", "RGB (1, 2)"]),
    "json": ("json", [{"a": 1}, [1]]),
    "label": ("int", [0, 1]),
    "long": ("str", ["x", "y"]),
    "text": ("json", ["a", None]),
    "time": ("str", [MOMENT] * 2),
    "tokens": ("json", [[1, 2], []]),
}
EXPECTED = {
    "pandas.parquet": PANDAS,
    "polars.parquet": POLARS,
    "polars.arrow": POLARS,
    "duckdb.parquet": DUCKDB,
    "hugging_face.parquet": HUGGING_FACE,
    "hugging_face.arrow": HUGGING_FACE,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_tables_of_other_programs_keep_their_values(tmp_path, name):
    assert converted([TABLES / name], tmp_path / "out", nulls="json") == EXPECTED[name]
    with pytest.raises(SampleError, match=r"value (None|array\(\[\], dtype=int32\)): expected") as caught:
        convert([TABLES / name], tmp_path / "refused")
    row = 2 if name == "pandas.parquet" else 1
    assert caught.value.__notes__ == [f"row {row} (from 0) of {TABLES / name}"]


def test_columns_without_nulls_keep_their_own_encodings(tmp_path):
    chosen = ["id", "text", "embedding", "grid", "tokens"]
    columns = {"grid": "ndarray:float32:2,2", "tokens": "json"}
    with pytest.raises(SampleError, match="column 'text', value None"):
        convert([TABLES / "hugging_face.arrow"], tmp_path / "out", only=chosen, columns=columns)
    chosen.remove("text")
    found = converted([TABLES / "hugging_face.arrow"], tmp_path / "out", only=chosen, columns=columns, exist_ok=True)
    assert found["grid"] == ("ndarray:float32:2,2", [[[1, 2], [3, 4]]] * 2)
    assert found["tokens"] == ("json", [[1, 2], []])


def test_columns_are_json_in_all_files_or_in_none(tmp_path):
    tables = [
        pa.table({"a": [1, 2], "b": pa.nulls(2), "c": pa.array([1, 2], pa.int32())}),
        pa.table({"a": [None, 3], "b": ["x", "y"], "c": pa.array([1, 2], pa.int64()), "d": [1, 2]}),
    ]
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"{number}.parquet")
    for files in (["0.parquet", "1.parquet"], ["1.parquet", "0.parquet"]):
        found = converted([tmp_path / name for name in files], tmp_path / "out", nulls="json", exist_ok=True)
        assert {name: encoding for name, (encoding, _) in found.items()} == {
            **dict.fromkeys(("a", "b", "d"), "json"),
            "c": "int",  # which holds the numbers of both
        }
        values = [found["a"][1], found["b"][1], found["d"][1]]
        order = [slice(0, 2), slice(2, 4)] if files[0] == "0.parquet" else [slice(2, 4), slice(0, 2)]
        assert [[column[part] for part in order] for column in values] == [
            [[1, 2], [None, 3]],
            [[None, None], ["x", "y"]],
            [[None, None], [1, 2]],
        ]


NUMBERS = st.integers(-(2**31), 2**31 - 1)
LISTS = st.lists(NUMBERS, max_size=3)
KINDS = {
    "int": (pa.int64(), NUMBERS),
    "small": (pa.int32(), NUMBERS),
    "float": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    "text": (pa.large_string(), st.text("aé", max_size=3)),
    "flag": (pa.bool_(), st.booleans()),
    "price": (pa.decimal128(12, 2), st.decimals(-100, 100, places=2)),
    "time": (pa.timestamp("us"), st.datetimes()),
    "numbers": (pa.list_(pa.int32()), LISTS),
    "large": (pa.large_list(pa.int64()), LISTS),
    "holes": (pa.list_(pa.int32()), st.lists(NUMBERS | st.none(), max_size=3)),
    "pair": (pa.list_(pa.int32(), 2), st.lists(NUMBERS, min_size=2, max_size=2)),
    "grid": (pa.list_(pa.list_(pa.int32(), 1), 2), st.tuples(*[st.lists(NUMBERS, min_size=1, max_size=1)] * 2)),
    "nested": (pa.list_(pa.list_(pa.int64())), st.lists(LISTS, max_size=2)),
    "category": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from("xyz")),
    "record": (
        pa.struct([("a", pa.int8()), ("b", pa.date32())]),
        st.fixed_dictionaries({"a": st.none(), "b": st.dates()}),
    ),
    "map": (pa.map_(pa.string(), pa.decimal128(5, 1)), st.just([("k", Decimal("1.5"))]) | st.just([])),
}


def shown(kind, value):
    """Return what a dataset gives back for a value, whether it is stored as JSON or not."""
    if kind == "map" and value is not None:
        return {key: str(item) for key, item in value}
    if kind == "record" and value is not None:
        return {"a": None, "b": value["b"].isoformat()}
    if isinstance(value, (dt.date, dt.datetime)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value + 0)  # there is no negative zero
    return [shown(kind, item) for item in value] if isinstance(value, (list, tuple)) else value


def is_unfit(kind, value):
    if kind in ("flag", "record", "map", "nested"):
        return False  # they are JSON in any case
    return value is None or (kind in ("numbers", "large", "holes") and (not value or None in value))


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@settings(deadline=None, max_examples=40)
@given(data=st.data(), num_rows=st.integers(1, 12), begin=st.integers(0, 3))
def test_any_table_is_stored_unchanged_or_its_first_unfit_value_is_named(
    tmp_path_factory, suffix, data, num_rows, begin
):
    directory = tmp_path_factory.mktemp("table")
    kinds = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4, unique=True))
    has_nulls = data.draw(st.booleans())
    columns = {
        kind: data.draw(
            st.lists(KINDS[kind][1] | st.none() if has_nulls else KINDS[kind][1], min_size=num_rows, max_size=num_rows)
        )
        for kind in kinds
    }
    table = pa.table({kind: pa.array(values, KINDS[kind][0]) for kind, values in columns.items()})
    path = directory / f"table.{suffix}"
    table = table.slice(begin)
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table)
    columns = {kind: values[begin:] for kind, values in columns.items()}
    expected = {kind: [shown(kind, value) for value in values] for kind, values in columns.items()}

    def compare(out, **options):
        if not table.num_rows:
            assert convert([path], out, **options) == 0
            return
        for kind, (_, values) in converted([path], out, **options).items():
            assert values == expected[kind], kind

    compare(directory / "json", nulls="json")
    unfit = [
        (row, kind) for kind, values in columns.items() for row, value in enumerate(values) if is_unfit(kind, value)
    ]
    if not unfit:
        compare(directory / "refused")
        return
    with pytest.raises(SampleError) as caught:
        convert([path], directory / "refused")
    first = min(row for row, kind in unfit if kind == caught.value.column)
    assert caught.value.__notes__ == [f"row {first} (from 0) of {path}"]


WRONG = [
    (pa.table({"t": pa.array([0, 2**62], pa.timestamp("us"))}), "column 't', value <4611686018427387904 of type", 1),
    (
        pa.table({"t": pa.array([0, 0], pa.timestamp("us", "Mars/Base"))}),
        "column 't', value <0 of type timestamp[us",
        0,
    ),
    (pa.table({"b": pa.array([b"a", None])}), "column 'b', value None: expected bytes", 1),
    (
        pa.table({"r": [{"x": 1}, {"x": 2}], "j": [[b"a"], [b"b"]]}),
        "column 'j', value [b'a']: expected a value that JSON",
        0,
    ),
    (
        pa.table({"m": pa.array([[("k", 1)], [("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int8()))}),
        "column 'm', value [('k', 1), ('k', 2)]: expected a map with each key once",
        1,
    ),
    (
        pa.table({"i": pa.array([{"bytes": b"a", "path": None}, {"bytes": None, "path": "a.png"}])}),
        "column 'i', value {'bytes': None, 'path': 'a.png'}: expected an image or a recording in the table",
        1,
    ),
]


@pytest.mark.parametrize(("table", "text", "row"), WRONG, ids=lambda value: str(value)[:12])
@pytest.mark.parametrize("nulls", ["refuse", "json"])
def test_a_value_that_cannot_be_stored_is_named_with_file_row_and_column(tmp_path, table, text, row, nulls):
    path = tmp_path / "table.parquet"
    pq.write_table(table, path)
    with pytest.raises(SampleError, match=re.escape(text)) as caught:
        convert([path], tmp_path / "out", nulls=nulls)
    assert caught.value.__notes__ == [f"row {row} (from 0) of {path}"]
    assert not (tmp_path / "out" / "index.json").exists()


def test_recordings_of_hugging_face_datasets_are_bytes(tmp_path):
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    metadata = {"huggingface": '{"info": {"features": {"sound": {"_type": "Audio"}, "other": {}}}}'}
    schema = pa.schema([("sound", kind), ("image", kind)], metadata=metadata)
    files = [{"bytes": b"RIFF", "path": None}]
    pq.write_table(pa.table([files, files], schema=schema), tmp_path / "table.parquet")
    convert([tmp_path / "table.parquet"], tmp_path / "out")
    assert encodings(tmp_path / "out") == {"image": "jpeg", "sound": "bytes"}


def test_a_table_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"polars_int128.parquet': .*64 bits"):
        convert([TABLES / "polars_int128.parquet"], tmp_path / "out")
    content = bytearray((TABLES / "pandas.parquet").read_bytes())
    content[4:400] = bytes(396)
    (tmp_path / "damaged.parquet").write_bytes(content)
    with pytest.raises(ShardCorruptError, match=r"damaged.parquet': "):
        convert([tmp_path / "damaged.parquet"], tmp_path / "out", nulls="json")
    pq.write_table(pa.table([[1], [2]], names=["a", "a"]), tmp_path / "twice.parquet")
    with pytest.raises(ConfigurationError, match=r"twice\..*'a' comes 2 times"):
        convert([tmp_path / "twice.parquet"], tmp_path / "out")
    (tmp_path / "twice.csv").write_text("a,a\n1,2\n")
    with pytest.raises(ConfigurationError, match=r"twice\..*'a' comes 2 times"):
        convert([tmp_path / "twice.csv"], tmp_path / "out")
    with pytest.raises(ConfigurationError, match="nulls = 'drop'"):
        convert([TABLES / "pandas.parquet"], tmp_path / "out", nulls="drop")


def test_nulls_of_text_files_are_found_in_any_row(tmp_path):
    rows = "".join(f'{{"a": {number}, "b": 1}}\n' for number in range(1_000))
    (tmp_path / "rows.jsonl").write_text(rows + '{"a": null}\n')
    with pytest.raises(SampleError, match="column 'b', value <missing>") as caught:
        convert([tmp_path / "rows.jsonl"], tmp_path / "out")
    assert caught.value.__notes__ == [f"row 1000 (from 0) of {tmp_path / 'rows.jsonl'}"]
    found = converted([tmp_path / "rows.jsonl"], tmp_path / "out", nulls="json")
    assert {name: (encoding, values[-2:]) for name, (encoding, values) in found.items()} == {
        "a": ("json", [999, None]),
        "b": ("json", [1, None]),
    }
    (tmp_path / "rows.csv").write_text("a,b,c,d\n1,x,0.5,\n,,7.0,\n")
    found = converted([tmp_path / "rows.csv"], tmp_path / "csv", nulls="json")
    assert found == {
        "a": ("json", [1, None]),
        "b": ("str", ["x", ""]),
        "c": ("float64", [0.5, 7.0]),
        "d": ("str", ["", ""]),
    }
    found = converted([tmp_path / "rows.csv"], tmp_path / "refused")
    assert found["a"] == ("str", ["1", ""])


def test_a_time_of_96_bits_is_converted_in_any_year(tmp_path):
    far, near = dt.datetime(9999, 12, 31), dt.datetime(2024, 2, 29, 1, 2, 3, 4)  # noqa: DTZ001
    nested = pa.struct({"times": pa.list_(pa.timestamp("us"))})
    table = pa.table(
        {
            "until": pa.array([far, near], pa.timestamp("us")),
            "nested": pa.array([{"times": [near, far]}, {"times": [None]}], nested),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True, row_group_size=1)
    texts = ["9999-12-31T00:00:00", "2024-02-29T01:02:03.000004"]
    assert converted(tmp_path / "a.parquet", tmp_path / "out") == {
        "until": ("str", texts),
        "nested": ("json", [{"times": texts[::-1]}, {"times": [None]}]),
    }


def test_nanoseconds_within_other_values_are_kept(tmp_path):
    kind = pa.struct(
        {"at": pa.timestamp("ns", tz="+01:00"), "clock": pa.time64("ns"), "took": pa.list_(pa.duration("ns"))}
    )
    pq.write_table(pa.table({"a": pa.array([{"at": 1, "clock": 2, "took": [3, None]}], kind)}), tmp_path / "a.parquet")
    expected = {"at": "1970-01-01T01:00:00.000000001+01:00", "clock": "00:00:00.000000002"}
    expected["took"] = ["0:00:00.000000003", None]
    assert converted(tmp_path / "a.parquet", tmp_path / "out") == {"a": ("json", [expected])}


def test_views_of_lists_are_lists(tmp_path):
    column = pa.array([[dt.date(2024, 2, 29), None], None, []], pa.list_view(pa.date32()))
    pq.write_table(pa.table({"a": column}), tmp_path / "a.parquet")
    assert converted(tmp_path / "a.parquet", tmp_path / "out") == {"a": ("json", [["2024-02-29", None], None, []])}


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_extensions_keep_their_shape_and_their_type(tmp_path, kind):
    tensor = pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=[1, 0])
    stored = [pa.array([[*range(6)], [*range(6, 12)]], pa.list_(pa.float32(), 6)), pa.array([1, 0], pa.int8())]
    columns = [
        pa.ExtensionArray.from_storage(each, part) for each, part in zip([tensor, pa.bool8()], stored, strict=True)
    ]
    nested = pa.StructArray.from_arrays(columns, ["tensor", "flag"])
    table = pa.table({"tensor": columns[0], "flag": columns[1], "nested": nested})
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    shaped = np.arange(12.0).reshape(2, 2, 3).transpose(0, 2, 1).tolist()
    expected = {
        "tensor": ("ndarray:float32:3,2", shaped),
        "flag": ("json", [True, False]),
        "nested": ("json", [{"tensor": shaped[0], "flag": True}, {"tensor": shaped[1], "flag": False}]),
    }
    assert converted(path, tmp_path / "out") == expected
    with_null = [[*range(6)], None]
    column = pa.ExtensionArray.from_storage(tensor, pa.array(with_null, tensor.storage_type))
    pq.write_table(pa.table({"tensor": column}), tmp_path / "b.parquet")
    assert converted(tmp_path / "b.parquet", tmp_path / "b", nulls="json") == {"tensor": ("json", [shaped[0], None])}
    with pytest.raises(SampleError, match="'tensor', value None"):
        convert(tmp_path / "b.parquet", tmp_path / "c")


def test_a_tensor_of_times_is_lists_of_texts(tmp_path):
    kind = pa.fixed_shape_tensor(pa.timestamp("ns"), [1, 2])
    column = pa.ExtensionArray.from_storage(kind, pa.array([[0, 1], None], kind.storage_type))
    pq.write_table(pa.table({"t": column}), tmp_path / "a.parquet")
    expected = [[["1970-01-01T00:00:00", "1970-01-01T00:00:00.000000001"]], None]
    assert converted(tmp_path / "a.parquet", tmp_path / "out", nulls="json") == {"t": ("json", expected)}


@pytest.mark.parametrize("nulls", ["refuse", "json"])
def test_a_column_that_a_file_lacks_and_no_null_can_be_of_is_refused_before_anything_is_written(tmp_path, nulls):
    pq.write_table(pa.table({"a": [1], "b": [b"x"]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": [2]}), tmp_path / "1.parquet")
    files = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    with pytest.raises(ConfigurationError, match=r"'b': .*1\.parquet has it not, and .*0\.parquet has: leave it out"):
        convert(files, tmp_path / "out", nulls=nulls)
    assert not (tmp_path / "out").exists()
    assert converted(files, tmp_path / "out", nulls=nulls, only=["a"]) == {"a": ("int", [1, 2])}
