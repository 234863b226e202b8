"""What pyarrow writes in any schema, each reader and `convert` give as pyarrow does, or refuse by file and column."""

import datetime as dt
import json
import math
import re
import tempfile
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fkat_data.datasets import IterableParquetDataset, ParquetDataset
from fkat_data.errors import FkatDataError
from fkat_data.streaming import LocalDataset, StreamingDataset
from fkat_data.tools import convert

UNITS = ["s", "ms", "us", "ns"]
ZONES = [None, "UTC", "Europe/Berlin", "+05:30"]
NOON = dt.time(12, 0, 0, 123456)
INTEGERS = [getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)]


#: The one number of nanoseconds that NumPy takes for no time at all: it is refused.
NO_TIME = ("ns", -(1 << 63))


def int_range(bits, *, is_signed=True):
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else st.integers(0, (1 << bits) - 1)


def decimals(kind):
    most = 10**kind.precision - 1
    return st.integers(-most, most).map(lambda number: Decimal(number).scaleb(-kind.scale))


def of_integers(kind):
    return int_range(kind.bit_width, is_signed=pa.types.is_signed_integer(kind))


#: Each type beside what makes its values; ``pa.array`` takes integers for times.
LEAVES = [
    (pa.bool_(), st.booleans()),
    (pa.null(), st.none()),
    *((kind, of_integers(kind)) for kind in INTEGERS),
    (pa.float16(), st.floats(width=16).map(np.float16)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    *((kind(), st.text(max_size=20)) for kind in (pa.string, pa.large_string, pa.string_view)),
    *((kind(), st.binary(max_size=20)) for kind in (pa.binary, pa.large_binary, pa.binary_view)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), int_range(32)),
    (pa.date64(), st.dates()),
    *((pa.timestamp(unit, zone), int_range(64)) for unit in UNITS for zone in ZONES),
    *((pa.timestamp(unit, zone), st.integers(0, 10**9)) for unit in UNITS for zone in ZONES),
    *((pa.time32(unit), st.just(NOON)) for unit in ("s", "ms")),
    (pa.time64("us"), st.times()),
    (pa.time64("ns"), st.integers(0, 86_400 * 10**9 - 1)),
    *((pa.duration(unit), int_range(64)) for unit in UNITS),
    *((kind, decimals(kind)) for kind in (pa.decimal128(5, 2), pa.decimal128(38, 10), pa.decimal256(76, 0))),
    *((kind, decimals(kind)) for kind in (pa.decimal32(9, 4), pa.decimal64(18, 18), pa.decimal128(5, -2))),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "b"])),
    (pa.dictionary(pa.int32(), pa.int64()), st.integers(0, 3)),
    (pa.dictionary(pa.int16(), pa.timestamp("ns")), st.integers(0, 3)),
    (pa.run_end_encoded(pa.int32(), pa.int64()), st.integers(0, 1)),
    (pa.uuid(), st.binary(min_size=16, max_size=16)),
    (pa.json_(), st.integers().map(json.dumps)),
    (pa.bool8(), st.integers(-128, 127)),
    *(
        (pa.fixed_shape_tensor(value, [2, 3], permutation=axes), st.lists(st.integers(0, 9), min_size=6, max_size=6))
        for value in (pa.int32(), pa.float64(), pa.timestamp("ns"))
        for axes in (None, [1, 0])
    ),
]


@st.composite
def columns(draw, depth=2):
    """A type, and what makes its values."""
    if depth == 0 or draw(st.booleans()):
        kind, values = draw(st.sampled_from(LEAVES))
        return kind, st.none() | values
    form = draw(st.sampled_from(["list", "large", "view", "fixed", "struct", "map"]))
    kind, values = draw(columns(depth - 1))
    if form == "struct":
        names = ["a", "b.c", ""][: draw(st.integers(1, 3))]
        parts = {name: draw(columns(depth - 1)) for name in names}
        kinds = pa.struct([(name, part) for name, (part, _) in parts.items()])
        return kinds, st.none() | st.fixed_dictionaries({name: made for name, (_, made) in parts.items()})
    if form == "map":
        return pa.map_(pa.string(), kind), st.none() | st.lists(st.tuples(st.text(max_size=2), values), max_size=2)
    if form == "fixed":
        size = draw(st.integers(1, 3))
        return pa.list_(kind, size), st.none() | st.lists(values, min_size=size, max_size=size)
    make = {"list": pa.list_, "large": pa.large_list, "view": pa.list_view}[form]
    return make(kind), st.none() | st.lists(values, max_size=3)


def made(kind, values):
    """An array of a type, also of those that pa.array does not make."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, made(kind.storage_type, values))
    if pa.types.is_struct(kind):
        parts = [made(field.type, [None if value is None else value[field.name] for value in values]) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=pa.array([value is None for value in values]))
    if pa.types.is_list(kind):
        ends = np.cumsum([0, *(len(value or ()) for value in values)]).tolist()
        starts = [None if value is None else end for value, end in zip(values, ends, strict=False)]
        offsets = pa.array([*starts, ends[-1]], pa.int32())
        items = made(kind.value_type, [item for value in values for item in value or ()])
        return pa.ListArray.from_arrays(offsets, items, type=kind)
    if pa.types.is_run_end_encoded(kind):
        return pa.compute.run_end_encode(pa.array(values, kind.value_type))
    return pa.array(values, kind)


def of_pyarrow(scalar):
    """What pyarrow says that a value is; nanoseconds as whole numbers, and tensors as nested lists."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if isinstance(kind, pa.FixedShapeTensorType):
        stored = np.empty(len(scalar.value), object)
        stored[:] = list(map(of_pyarrow, scalar.value))
        return stored.reshape(kind.shape).transpose(kind.permutation or range(len(kind.shape))).tolist()
    if pa.types.is_dictionary(kind):
        return of_pyarrow(scalar.dictionary[scalar.index.as_py()])
    if getattr(kind, "unit", None) == "ns":
        return ("ns", scalar.value)
    return parts_of(scalar) if pa.types.is_nested(kind) else plain(scalar.as_py())


def parts_of(scalar):
    if pa.types.is_struct(scalar.type):
        return {field.name: of_pyarrow(scalar[index]) for index, field in enumerate(scalar.type)}
    if pa.types.is_map(scalar.type):
        return [(of_pyarrow(item["key"]), of_pyarrow(item["value"])) for item in scalar.values]
    return list(map(of_pyarrow, scalar.values))


def plain(value):
    """A value of a reader's with arrays and numbers as Python has them, and one NaN."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        assert np.datetime_data(value)[0] == "ns"
        return ("ns", int(value.astype(np.int64)))
    if isinstance(value, (np.ndarray, torch.Tensor, np.generic)):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


class NotStoredError(Exception):
    """No encoding of a dataset stores a value: bytes within JSON, a null among bytes, a map with a key twice."""


def stored(scalar, *, is_whole=True):
    """What a conversion makes of a value: times are text, decimals and UUIDs as well, and a map is an object."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_dictionary(kind):
        return stored(scalar.dictionary[scalar.index.as_py()], is_whole=is_whole)
    if isinstance(kind, pa.FixedShapeTensorType) or pa.types.is_nested(kind):
        return stored_parts(scalar)
    value = time_text(scalar) if pa.types.is_temporal(kind) else scalar.as_py()
    if isinstance(value, bytes) and not is_whole:
        raise NotStoredError
    if isinstance(kind, pa.JsonType) and is_whole:
        return json.loads(value)
    return str(value) if isinstance(value, (Decimal, UUID)) else plain(value)


def stored_parts(scalar):
    kind = scalar.type
    if pa.types.is_struct(kind):
        return {field.name: stored(scalar[index], is_whole=False) for index, field in enumerate(kind)}
    if pa.types.is_map(kind):
        pairs = [(item["key"].as_py(), stored(item["value"], is_whole=False)) for item in scalar.values]
        if len(dict(pairs)) < len(pairs):
            raise NotStoredError
        return dict(pairs)
    items = [stored(item, is_whole=False) for item in (scalar.values if pa.types.is_nested(kind) else scalar.value)]
    if pa.types.is_nested(kind):
        return items
    tensor = np.empty(len(items), object)
    tensor[:] = items
    return tensor.reshape(kind.shape).transpose(kind.permutation or range(len(kind.shape))).tolist()


def time_text(scalar):
    kind, rest = scalar.type, 0
    if getattr(kind, "unit", None) == "ns":
        count, rest = divmod(scalar.value, 1_000)
        coarse = {"timestamp": lambda: pa.timestamp("us", kind.tz), "time64": lambda: pa.time64("us")}
        make = coarse.get(str(kind).partition("[")[0], lambda: pa.duration("us"))
        scalar = pa.scalar(count, pa.int64()).cast(make())
    value = scalar.as_py()
    text = str(value) if isinstance(value, dt.timedelta) else value.isoformat()
    if not rest:
        return text
    whole, zone = re.fullmatch(r"(.*?[0-9]+:[0-9]{2}:[0-9]{2}(?:\.[0-9]{6})?)(.*)", text).groups()
    return f"{whole}{'' if '.' in whole else '.000000'}{rest:03}{zone}"


def stored_of(path):
    """What a conversion makes of a column; None: there is a value that it refuses."""
    column = pq.read_table(path).column("a.b")
    try:
        values = [stored(scalar) for chunk in column.chunks for scalar in chunk]
    except (ValueError, OverflowError, NotStoredError):
        return None
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_binary = any(ask(kind) for ask in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view))
    return None if None in values and (is_binary or pa.types.is_fixed_size_binary(kind)) else values


def converted(path):
    convert(path, path.parent / "out", nulls="json")
    found = [plain(row["a.b"]) for row in LocalDataset(path.parent / "out")]
    return [str(value) if isinstance(value, Decimal) else value for value in found]


def expected_of(path):
    """The values that pyarrow gives of a column; None: it gives none of one of them."""
    try:
        return [of_pyarrow(scalar) for chunk in pq.read_table(path).column("a.b").chunks for scalar in chunk]
    except (ValueError, OverflowError):
        return None


@given(st.data())
def test_what_pyarrow_writes_each_reader_and_a_conversion_give_or_refuse_by_name(data):
    kind, values = data.draw(columns(), label="type")
    rows = data.draw(st.lists(values, min_size=1, max_size=5), label="rows")
    options = data.draw(
        st.fixed_dictionaries(
            {
                "row_group_size": st.integers(1, 5),
                "use_dictionary": st.booleans(),
                "store_schema": st.booleans(),
                "data_page_version": st.sampled_from(["1.0", "2.0"]),
            }
        ),
        label="options",
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.parquet")
        try:
            pq.write_table(pa.table({"a.b": made(kind, rows), "b": range(len(rows))}), path, **options)
        except (pa.ArrowException, ValueError, OverflowError, TypeError, OSError):
            assume(False)
        expected = expected_of(path)
        may_refuse = expected is None or repr(NO_TIME) in repr(expected)
        ways = {
            "map": lambda: ParquetDataset(path).__getitems__(range(len(rows))),
            "iterable": lambda: list(IterableParquetDataset(path, rows_at_once=2)),
            "stream": lambda: list(map(StreamingDataset(local=folder, batch_size=1).__getitem__, range(len(rows)))),
        }
        for name, read in ways.items():
            refusal = None
            try:
                found = [plain(row["a.b"]) for row in read()]
            except FkatDataError as error:
                refusal = str(error)
            if refusal is None:
                assert found == expected, name
            else:
                assert may_refuse, refusal
                assert "rows.parquet" in refusal
                assert "a.b" in refusal
        expected, refusal = stored_of(path), None
        try:
            found = converted(path)
        except FkatDataError as error:
            refusal = "".join((str(error), *getattr(error, "__notes__", ())))
        if refusal is None:
            assert found == expected
        else:
            assert may_refuse or expected is None, refusal
            assert "rows.parquet" in refusal
            assert "a.b" in refusal
