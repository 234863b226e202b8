"""The file and row of a sample, in the notes of errors of functions on samples and of collate."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

from fkat_data import DataLoader, DataLoaderFactory, ShardedDataLoader
from fkat_data.datasets import (
    IterableJsonDataset,
    IterableMapDataset,
    IterableParquetDataset,
    JsonDataset,
    MapDataset,
    PaddingCollate,
    ParquetDataset,
)


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps({"n": n, "ids": list(range(n % 5))}) + "\n" for n in range(20)), "utf-8")
    return str(path)


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"n": range(20), "ids": [list(range(n % 5)) for n in range(20)]}), path, row_group_size=6)
    return str(path)


def no_seven(sample):
    if sample["n"] == 7:
        raise ValueError("seven")
    return sample["n"]


def ids_of(sample):
    return {"ids": torch.tensor(sample["ids"], dtype=torch.int64)}


def notes_of(read):
    with pytest.raises((ValueError, RuntimeError, TypeError, KeyError)) as raised:
        read()
    return "\n".join(raised.value.__notes__)


def test_an_error_of_a_function_on_samples_names_the_samples_file_and_location(lines, rows):
    line, row = (
        f"Sample: line 7 (from 0, blank lines not counted) of {lines}",
        f"row group 1, row 1 (from 0), of {rows}",
    )
    for dataset, place in (
        (MapDataset(JsonDataset(lines), no_seven), line),
        (MapDataset(Subset(JsonDataset(lines), [3, 7, 1]), no_seven), line),
        (
            MapDataset(
                ConcatDataset([ParquetDataset(rows, ["ids"]), JsonDataset(lines)]), lambda s: no_seven({"n": 0} | s)
            ),
            line,
        ),
        (MapDataset(MapDataset(JsonDataset(lines), dict), no_seven), line),
        (MapDataset(ParquetDataset(rows), no_seven), row),
        (IterableMapDataset(IterableJsonDataset(lines), no_seven), line),
        (IterableMapDataset(IterableParquetDataset(rows, rows_at_once=4), no_seven), row),
    ):
        notes = notes_of(lambda dataset=dataset: list(DataLoader(dataset, batch_size=3)))
        assert place in notes
        assert "fkat_data: at microbatch" in notes


def test_a_subclass_with_samples_of_its_own_has_no_location(lines):
    class Backwards(IterableJsonDataset):
        def __iter__(self):
            return iter(list(super().__iter__())[::-1])

    class Chosen(JsonDataset):
        def __len__(self):
            return 2

        def __getitems__(self, indices):
            return [{"n": index + 7} for index in indices]

    for dataset in (IterableMapDataset(Backwards(lines), no_seven), MapDataset(Chosen(lines), no_seven)):
        assert "Sample" not in notes_of(lambda dataset=dataset: list(DataLoader(dataset, batch_size=2)))


def test_an_error_of_the_mapped_dataset_names_no_sample_that_it_may_not_be_about(lines):
    dataset = MapDataset(JsonDataset(lines), no_seven)
    with pytest.raises(IndexError, match="index 1000000 is out of range") as raised:
        dataset.__getitems__([0, 10**6])
    assert not getattr(raised.value, "__notes__", [])
    with pytest.raises(IndexError) as raised:
        list(DataLoader(dataset, batch_sampler=[[0, 1], [2, 10**6]]))
    assert "Sample: " not in "\n".join(raised.value.__notes__)


def test_the_note_arrives_from_a_worker(processes, lines):
    loader = DataLoader(MapDataset(JsonDataset(lines), no_seven), batch_size=4, num_workers=1)
    assert f"Sample: line 7 (from 0, blank lines not counted) of {lines}" in notes_of(lambda: list(loader))
    loader.close()


def test_samples_of_different_lengths_are_named_with_what_would_do(lines, rows):
    tensors = MapDataset(JsonDataset(lines), ids_of)
    notes = notes_of(lambda: list(DataLoader(tensors, batch_size=4)))
    assert "entry ['ids'] of the samples: shapes (0,), (1,), (2,) and (3,)" in notes
    assert "collate_fn=fkat_data.datasets.PaddingCollate(...)" in notes
    assert f"Samples: line 0 (from 0, blank lines not counted) of {lines}" in notes
    assert len(list(DataLoader(tensors, batch_size=4, collate_fn=PaddingCollate()))) == 5
    for kind in (ParquetDataset, IterableParquetDataset):
        factory = DataLoaderFactory(kind, batch_size=4)
        notes = notes_of(lambda f=factory: list(ShardedDataLoader(0, [rows], f, multiprocessing=False)))
        assert "entry ['ids'] of the samples: lists of 0, 1, 2 and 3 items" in notes


@pytest.mark.parametrize(
    ("samples", "found"),
    [
        (
            [{"a": [torch.zeros(2), torch.zeros(3)]}, {"a": [torch.zeros(2), torch.zeros(4)]}],
            "['a'][1] of the samples: shapes (3,) and (4,)",
        ),
        ([{"a": 1, "b": 2}, {"a": 1}], "sample 1 of the microbatch has no entry 'b'"),
        ([{"a": None}, {"a": 1}], "['a'] of the samples: None and a number in one microbatch"),
        ([{"a": object()}, {"a": object()}], "['a'] of the samples: values of type object"),
        ([torch.zeros(2, 3), torch.zeros(3, 2)], "the samples: shapes (2, 3) and (3, 2)"),
    ],
)
def test_what_differs_between_samples_is_named(samples, found):
    assert found in notes_of(lambda: list(DataLoader(samples, batch_size=2)))
