import math
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.datasets import IterableParquetDataset, ParquetDataset
from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.files import row_groups

NUM_ROWS = 10


def fixed(values, size, kind):
    return pa.array(values, type=pa.list_(kind, size))


TABLE = pa.table(
    {
        "tokens": fixed([[row, row + 1, row + 2] for row in range(NUM_ROWS)], 3, pa.uint8()),
        "label": pa.array(range(NUM_ROWS), type=pa.int64()),
        "text": [None if row == 4 else f"row {row}" for row in range(NUM_ROWS)],
    }
)
KINDS_OF_DATASETS = pytest.mark.parametrize("kind", [ParquetDataset, IterableParquetDataset])


@pytest.fixture
def path(tmp_path):
    pq.write_table(TABLE, tmp_path / "rows.parquet", row_group_size=4)  # row groups of 4, 4 and 2
    return str(tmp_path / "rows.parquet")


def test_rows_belong_to_the_caller(path):
    dataset = ParquetDataset(path, ["tokens"])
    dataset[0]["tokens"].fill_(99)
    assert dataset[0]["tokens"].tolist() == [0, 1, 2]


@pytest.fixture
def decoded(monkeypatch):
    """The row groups that were decoded."""
    seen = []
    read = row_groups.row_group

    def row_group(file, index, leaves):
        seen.append(index)
        return read(file, index, leaves)

    monkeypatch.setattr("fkat_data.files.parquet.row_group", row_group)
    return seen


def test_a_row_group_is_decoded_when_it_is_first_asked_for_and_then_kept(path, decoded):
    dataset = ParquetDataset(path)
    assert decoded == []
    dataset.__getitems__([5, 0, 6, 1])
    dataset.__getitems__([4, 3])
    assert decoded == [0, 1]


def test_no_more_row_groups_are_kept_than_asked_for(path, decoded):
    dataset = ParquetDataset(path, row_groups_kept=2)
    for row in (0, 4, 0, 8, 0, 4):  # row groups 0 1 0 2 0 1: the one used least recently goes
        dataset[row]
    assert decoded == [0, 1, 2, 1]


@KINDS_OF_DATASETS
@pytest.mark.parametrize("content", [b"", b"no Parquet file at all", b"PAR1" + b"\0" * 64 + b"PAR1"])
def test_a_file_that_is_not_parquet_is_named(tmp_path, content, kind):
    (tmp_path / "odd.parquet").write_bytes(content)
    with pytest.raises(ShardCorruptError, match=r"odd\.parquet.*not a Parquet file"):
        list(kind(str(tmp_path / "odd.parquet")))


@KINDS_OF_DATASETS
def test_a_missing_column_is_named_beside_those_that_exist(path, kind):
    with pytest.raises(ConfigurationError, match=r"'token': expected columns of .*: tokens, label, text"):
        list(kind(path, ["label", "token"]))


@KINDS_OF_DATASETS
def test_two_columns_of_one_name_are_refused_unless_others_are_chosen(tmp_path, path, kind):
    twice = str(tmp_path / "twice.parquet")
    pq.write_table(pa.table([[1, 2], [3, 4], [5, 6]], names=["label", "label", "text"]), twice)
    for paths, columns in ((twice, None), (twice, ["text", "label"]), ([twice, path], ["label"])):
        with pytest.raises(ConfigurationError, match=r"'label': .*twice\.parquet it comes 2 times"):
            next(iter(kind(paths, columns)))
    next(iter(kind(twice, ["text"])))


INTEGERS = {f"{sign}int{bits}": (sign, bits) for sign in ("", "u") for bits in (8, 16, 32, 64)}


def integers(kind):
    sign, bits = INTEGERS[kind]
    return st.integers(0, 2**bits - 1) if sign else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


#: pyarrow type -> values of it
KINDS = {
    **{getattr(pa, kind)(): integers(kind) for kind in INTEGERS},
    pa.float16(): st.floats(width=16).map(np.float16),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(st.characters(exclude_categories=["Cs"])),
    pa.large_string(): st.text("ab"),
    pa.binary(): st.binary(),
    pa.timestamp("us"): st.datetimes(),
    pa.date32(): st.dates(),
    pa.decimal128(9, 2): st.decimals(-9999999, 9999999, places=2),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["a", "b"]),
    pa.list_(pa.int64()): st.lists(integers("int64"), max_size=3),
    pa.list_(pa.float32(), 2): st.lists(st.floats(width=32) | st.none(), min_size=2, max_size=2),
    pa.list_(pa.list_(pa.int16(), 2), 3): st.lists(
        st.lists(integers("int16"), min_size=2, max_size=2), min_size=3, max_size=3
    ),
    pa.list_(pa.string(), 2): st.lists(st.text("ab"), min_size=2, max_size=2),
    pa.struct([("x", pa.int8()), ("y", pa.list_(pa.string()))]): st.fixed_dictionaries(
        {"x": integers("int8") | st.none(), "y": st.lists(st.text("xyz"), max_size=2)}
    ),
}


@st.composite
def tables(draw):
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4))
    num_rows = draw(st.integers(0, 12))
    columns = {}
    for number, kind in enumerate(kinds):
        values = KINDS[kind] | st.none() if draw(st.booleans()) else KINDS[kind]
        rows = draw(st.lists(values, min_size=num_rows, max_size=num_rows))
        columns[f"{number}"] = pa.array(rows, type=kind)
    return pa.table(columns)


def same(found, written, kind):
    """Whether a value is what was written: for numbers that Python has not, and lists, a tensor of the column's type."""
    if kind in (pa.int64(), pa.float64(), pa.bool_()):
        assert written is None or not isinstance(found, torch.Tensor)
        return equal(found, written)
    shape = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if is_number and written is not None and not (isinstance(written, list) and None in written):
        dtype = "bool" if kind == pa.bool_() else "float16" if kind == pa.float16() else str(kind)
        dtype = {"float": "float32", "double": "float64"}.get(dtype, dtype)
        assert list(found.shape) == shape
        assert found.numpy().dtype == dtype
        return equal(found.tolist(), written)
    return equal(found, written)


def equal(found, written):
    if isinstance(written, list):
        return len(found) == len(written) and all(map(equal, found, written))
    if isinstance(written, float):
        return found == written or (math.isnan(found) and math.isnan(written))
    return found == written


@settings(max_examples=150)
@given(tables(), st.integers(1, 5), st.integers(1, 5), st.integers(1, 3), st.data())
def test_what_was_written_is_read(table, rows_a_group, rows_at_once, row_groups_kept, data):
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/rows.parquet"
        pq.write_table(table, path, row_group_size=rows_a_group)
        dataset = ParquetDataset(path, row_groups_kept=row_groups_kept)
        num_rows = len(table)
        assert len(dataset) == num_rows
        indices = data.draw(st.lists(st.integers(-num_rows, num_rows - 1), max_size=15)) if num_rows else []
        singly = [dataset[index] for index in range(num_rows)]
        in_a_row = list(IterableParquetDataset(path, rows_at_once=rows_at_once))
        # As a list, or as samplers may give them.
        together = dataset.__getitems__(data.draw(st.sampled_from([list, torch.LongTensor]))(indices))
        written = table.to_pylist()
        found = [*zip(singly, written, strict=True), *zip(in_a_row, written, strict=True)]
        found += zip(together, [written[index] for index in indices], strict=True)
        for row, wanted in found:
            assert list(row) == list(wanted)
            for name, value in row.items():
                assert same(value, wanted[name], table.schema.field(name).type)


def test_no_more_files_are_open_than_a_few(tmp_path):
    paths = [str(tmp_path / f"{number:03}.parquet") for number in range(80)]
    for number, path in enumerate(paths):
        pq.write_table(pa.table({"number": [number, -number]}), path)

    def num_mapped():
        return sum(str(tmp_path) in line for line in Path("/proc/self/maps").read_text().splitlines())

    dataset = ParquetDataset(paths)
    assert num_mapped() <= 32
    assert [row["number"] for row in dataset.__getitems__(range(0, 160, 2))] == list(range(80))
    assert dataset[1]["number"] == 0
    assert 0 < num_mapped() <= 32


def test_files_follow_one_another_with_the_columns_in_the_order_asked_for_and_are_iterated_one_by_one(tmp_path, path):
    more = str(tmp_path / "more.parquet")
    pq.write_table(TABLE.slice(3, 2), more)
    rows = iter(IterableParquetDataset([path, more, f"{tmp_path}/missing"], ["text", "label"]))
    for found in (list(ParquetDataset([path, more], ["text", "label"])), [next(rows) for _ in range(12)]):
        assert [row["label"] for row in found] == [*range(10), 3, 4]
        assert list(found[0]) == ["text", "label"]
    with pytest.raises(ShardNotFoundError, match="missing"):
        next(rows)


@pytest.mark.long
def test_an_iterable_dataset_decodes_so_many_rows_at_a_time(tmp_path):
    # One row group of 64 MiB decoded, of which 1 MiB is asked for at a time.
    num_rows = 64
    values = np.tile(np.arange(1 << 17, dtype=np.int64), num_rows)
    column = pa.FixedSizeListArray.from_arrays(pa.array(values), 1 << 17)
    pq.write_table(pa.table({"row": column}), tmp_path / "wide.parquet", compression="zstd")
    del values, column
    pool = pa.default_memory_pool()
    rows = iter(IterableParquetDataset(str(tmp_path / "wide.parquet"), rows_at_once=1))
    before, most = pool.bytes_allocated(), 0
    for _ in range(num_rows):
        next(rows)
        most = max(most, pool.bytes_allocated() - before)
    assert most < 16 << 20


@KINDS_OF_DATASETS
@pytest.mark.parametrize("num_columns", [8, 9, 300])
def test_rows_of_wide_tables_are_those_of_pyarrow(tmp_path, kind, num_columns):
    columns = {f"c{number}": np.arange(100) * number for number in range(num_columns - 3)}
    nulls = pa.array([None if row % 7 else row for row in range(100)])
    table = pa.table({**columns, "null": nulls, "text": list(map(str, range(100))), "half": np.arange(100) / 2})
    pq.write_table(table.slice(0, 99), tmp_path / "rows.parquet", row_group_size=60)
    assert list(kind(tmp_path / "rows.parquet")) == table.slice(0, 99).to_pylist()
