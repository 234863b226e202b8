"""Values of Arrow columns, compared with what pyarrow itself says, for every kind of column."""

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.files.arrow import ArrowValues

#: The column, then the dtype and the shape of each value as an array; None if values are Python objects.
COLUMNS = {
    "int64": (pa.array([1, 2, -3, 4]), None),
    "bool": (pa.array([True, False, True, True]), None),
    "double": (pa.array([1.5, 2.5, float("inf"), 0.0]), None),
    "float32": (pa.array([1.5, 2.5, 3.5, 0.0], pa.float32()), (np.float32, ())),
    "uint16": (pa.array([1, 2, 65535, 0], pa.uint16()), (np.uint16, ())),
    "half": (pa.array(np.arange(4, dtype=np.float16)), (np.float16, ())),
    "fixed": (pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.int32(), 2)), (np.int32, (2,))),
    "nested fixed": (
        pa.array([[[1, 2], [3, 4]]] * 4, pa.list_(pa.list_(pa.uint8(), 2), 2)),
        (np.uint8, (2, 2)),
    ),
    "list": (pa.array([[1, 2, 3], [], [4], [5, 6]], pa.list_(pa.int32())), (np.int32, None)),
    "large list": (pa.array([[1.0], [], [4.0], []], pa.large_list(pa.float64())), (np.float64, None)),
    "flags": (pa.array([[True], [], [False, True], []], pa.list_(pa.bool_())), (np.bool_, None)),
    "list of texts": (pa.array([["a"], [], ["b", "c"], []]), None),
    "list of lists": (pa.array([[[1], []], [], [[2, 3]], []]), None),
    "list of fixed": (pa.array([[[1, 2]], [], [[3, 4], [5, 6]], []], pa.list_(pa.list_(pa.int32(), 2))), None),
    "text view": (pa.array(["a", "", "a text of more than 12 letters", "d"], pa.string_view()), None),
    "bytes view": (pa.array([b"a", b"", b"more bytes than a view holds", b"d"], pa.binary_view()), None),
    "list of views": (pa.array([["a"], [], ["b", "c"], []], pa.list_(pa.string_view())), None),
    "struct of views": (
        pa.array([{"a": "x"}, {"a": "y"}, {"a": None}, {"a": "z"}], pa.struct({"a": pa.string_view()})),
        None,
    ),
    "text": (pa.array(["a", "", "ccc", "\N{SNOWMAN}"]), None),
    "large text": (pa.array(["a", "", "ccc", "d"], pa.large_string()), None),
    "long text": (pa.array(["a" * 2000, "", "ccc", "d"]), None),
    "bytes": (pa.array([b"a", b"", b"\0c", b"d"]), None),
    "fixed bytes": (pa.array([b"ab", b"cd", b"ef", b"gh"], pa.binary(2)), None),
    "dictionary": (pa.array(["a", "b", "a", "b"]).dictionary_encode(), None),
    "dictionary of numbers": (pa.array([7, 9, 7, 7], pa.int32()).dictionary_encode(), (np.int32, ())),
    "struct": (pa.array([{"a": 1, "b": ["x"]}, {"a": 2, "b": []}, {"a": None, "b": None}, {"a": 0, "b": ["y"]}]), None),
    "map": (pa.array([[("a", 1)], [], [("b", 2), ("c", 3)], []], pa.map_(pa.string(), pa.int64())), None),
    "time": (pa.array([dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3, 4)]), None),
    "date": (pa.array([dt.date(2026, 1, day) for day in (1, 2, 3, 4)]), None),
    "decimal": (pa.array([decimal.Decimal(number).scaleb(-2) for number in (1, 22, 333, 4)]), None),
    "null": (pa.nulls(4), None),
}


def check(values, rows, expected, kind, **given):
    dtype, shape = kind
    for value, other in zip(values.listed(np.array(rows, np.int64), **given), expected, strict=True):
        if other is None:
            assert value is None
        elif shape == ():
            assert type(value) is dtype
            assert value == other
        elif given["arrays"] == "torch":
            assert isinstance(value, torch.Tensor)
            assert value.tolist() == other
        else:
            assert value.dtype == dtype
            assert value.shape == (shape if shape is not None else (len(other),))
            assert value.tolist() == other
            assert value.flags.writeable == given["is_writable"]


@pytest.mark.parametrize("with_nulls", [False, True])
@pytest.mark.parametrize("name", COLUMNS)
def test_every_kind_of_column_gives_its_values(name, with_nulls):
    array, kind = COLUMNS[name]
    if with_nulls and name != "null":
        array = pa.concat_arrays([array.slice(0, 2), pa.nulls(1, array.type), array.slice(2)])
    for column in (
        pa.chunked_array([array]),
        pa.chunked_array([array.slice(0, 1), array.slice(1)]),
        pa.chunked_array([pa.concat_arrays([array, array])]).slice(len(array)),
    ):
        values = ArrowValues(column)
        expected = column.to_pylist()
        rows = [*range(len(expected))][::-1] * 2
        wanted = [expected[row] for row in rows]
        for given_ in ({"arrays": "numpy", "is_writable": False}, {"arrays": "numpy", "is_writable": True}):
            if kind is None:
                assert values.listed(np.array(rows), **given_) == wanted
            else:
                check(values, rows, wanted, kind, **given_)
        if kind is not None and name != "half":
            check(values, rows, wanted, kind, arrays="torch", is_writable=False)
        assert values.can_gather == (
            not with_nulls and (name in ("int64", "bool", "double") or (kind is not None and kind[1] is not None))
        )
        if values.can_gather:
            found = values.gathered(np.array(rows))
            assert found.tolist() == wanted
            assert found.flags.owndata


@settings(max_examples=60, deadline=None)
@given(
    lists=st.lists(st.none() | st.lists(st.integers(-9, 9), max_size=3), min_size=1, max_size=8),
    data=st.data(),
)
def test_lists_of_numbers_with_nulls_anywhere_are_those_of_pyarrow(lists, data):
    whole = pa.array(lists, pa.list_(pa.int16()))
    start = data.draw(st.integers(0, len(lists) - 1))
    column = pa.chunked_array([whole.slice(start)])
    rows = data.draw(st.lists(st.integers(0, len(column) - 1), max_size=6))
    expected = [lists[start:][row] for row in rows]
    check(ArrowValues(column), rows, expected, (np.int16, None), arrays="numpy", is_writable=False)


def test_a_list_with_a_null_inside_gives_python_lists():
    values = ArrowValues(pa.chunked_array([pa.array([[1, None], [2]], pa.list_(pa.int16()))]))
    assert values.listed(np.array([1, 0]), arrays="numpy", is_writable=True) == [[2], [1, None]]
    fixed = ArrowValues(pa.chunked_array([pa.array([[1, None], [2, 3]], pa.list_(pa.int16(), 2))]))
    found = fixed.listed(np.array([0, 1]), arrays="numpy", is_writable=True)
    assert found[0] == [1, None]
    assert found[1].tolist() == [2, 3]


def test_an_extension_type_gives_what_it_is_stored_as():
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 2])
    array = pa.ExtensionArray.from_storage(kind, pa.array([[1, 2, 3, 4]], pa.list_(pa.int32(), 4)))
    assert ArrowValues(pa.chunked_array([array])).gathered(np.array([0])).tolist() == [[1, 2, 3, 4]]
