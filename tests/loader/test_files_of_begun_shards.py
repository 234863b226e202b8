"""A shard's file that is written again between a saved state and its resume."""

import os

import pytest
from torch.utils.data import DataLoader
from walks import begun
from written_files import FORMATS, NUM_SAMPLES, left, saved_after, saved_by_two_ranks, write_lines

from fkat_data import (
    DataLoaderFactory,
    ShardedDataLoader,
    StateMismatchError,
)
from fkat_data.datasets import JsonDataset, MapDataset


class Texts:
    """Makes a view of a shard's dataset."""

    def __init__(self, kind):
        self.kind = kind

    def __call__(self, shard):
        return MapDataset(self.kind(shard), str)


class PlainFunction(Texts):
    def __call__(self, shard):
        return DataLoader(super().__call__(shard), batch_size=2)


class OneByOne:
    """An iterable of a user's own."""

    def __init__(self, shard):
        self.dataset = JsonDataset(shard)

    def __iter__(self):
        return (self.dataset[index] for index in range(len(self.dataset)))


FACTORIES = [lambda kind: DataLoaderFactory(Texts(kind), batch_size=2), PlainFunction]


def num_left(state, path, factory, **options):
    return len(left(state, [str(path)], factory, **options))


@pytest.mark.parametrize("of_kind", FACTORIES, ids=["DataLoaderFactory", "function"])
@pytest.mark.parametrize(("kind", "write"), FORMATS)
def test_a_begun_shard_is_not_finished_in_another_file(tmp_path, kind, write, of_kind):
    path, factory = tmp_path / "file", of_kind(kind)
    write(path, "older")
    state = saved_after(2, [str(path)], factory)
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1_000_000_000))
    assert num_left(state, path, factory) == NUM_SAMPLES // 2 - 2
    write(path, "new, and of another length" * 30)
    with pytest.raises(StateMismatchError, match=f"files.*the file has changed since the state was saved.*{path}"):
        num_left(state, path, factory)


@pytest.mark.parametrize("of_kind", FACTORIES, ids=["DataLoaderFactory", "function"])
def test_workers_report_and_compare_the_file(tmp_path, of_kind, processes):
    path, factory = tmp_path / "file", of_kind(JsonDataset)
    write_lines(path, "old")
    options = {"multiprocessing": True, "num_workers_per_shard": 2, "on_shard_error": "skip"}
    state = saved_after(2, [str(path)], factory, **options)
    assert num_left(state, path, factory, **options) == NUM_SAMPLES // 2 - 2
    write_lines(path, "new")
    with pytest.raises(StateMismatchError, match=f"the file has changed since the state was saved.*{path}"):
        num_left(state, path, factory, **options)


def test_an_iterable_that_names_its_dataset_is_compared(tmp_path):
    path = tmp_path / "file"
    write_lines(path, "old")
    state = saved_after(3, [str(path)], OneByOne)
    write_lines(path, "new")
    with pytest.raises(StateMismatchError, match=f"changed.*{path}"):
        num_left(state, path, OneByOne)


def test_a_state_without_files_and_one_between_two_shards_load(tmp_path):
    path, factory = tmp_path / "file", PlainFunction(JsonDataset)
    write_lines(path, "old")
    between = saved_after(NUM_SAMPLES // 2, [str(path)], factory)
    assert between["fingerprint"]["files"] is None
    within = saved_after(2, [str(path)], factory)
    del within["fingerprint"]["files"]
    write_lines(path, "new")
    assert num_left(between, path, factory) == NUM_SAMPLES // 2
    assert num_left(within, path, factory) == NUM_SAMPLES // 2 - 2


def test_a_loaded_state_that_is_saved_again_still_says_it(tmp_path):
    path, factory = tmp_path / "file", DataLoaderFactory(JsonDataset, batch_size=2)
    write_lines(path, "old")
    state = saved_after(2, [str(path)], factory)
    with ShardedDataLoader(0, [str(path)], factory, multiprocessing=False) as loader:
        loader.load_state_dict(state)
        assert loader.local_state_dict() == state
        whole = loader.state_dict()
    write_lines(path, "new")
    with pytest.raises(StateMismatchError, match=f"changed.*{path}"):
        num_left(whole, path, factory)


@pytest.mark.parametrize("files", ["9f3c", ["9f3c"], 7])
def test_a_state_whose_files_are_no_numbers_is_refused(tmp_path, files):
    path, factory = tmp_path / "file", DataLoaderFactory(JsonDataset, batch_size=2)
    write_lines(path, "old")
    state = saved_after(2, [str(path)], factory)
    state["fingerprint"]["files"] = files
    with pytest.raises(StateMismatchError, match=r"fingerprint\.files"):
        num_left(state, path, factory)


def test_another_number_of_ranks_finishes_the_begun_shards_of_all(tmp_path):
    paths = [tmp_path / "first", tmp_path / "second"]
    for path in paths:
        write_lines(path, path.name)

    factory = DataLoaderFactory(JsonDataset, batch_size=2)
    whole, sampler = saved_by_two_ranks(2, [str(path) for path in paths], factory)
    with ShardedDataLoader(0, sampler, factory, multiprocessing=False) as one:
        one.load_state_dict(whole)
        microbatches = begun(one, 1)
        within_a_piece = one.local_state_dict()
        assert 1 + sum(1 for _ in microbatches) == 2 * (NUM_SAMPLES // 2 - 2)
    for path in paths:
        write_lines(path, "new")
    with pytest.raises(StateMismatchError, match="the file has changed"):
        left(within_a_piece, sampler, factory)
