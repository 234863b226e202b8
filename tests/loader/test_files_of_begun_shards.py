"""A shard's file that is written again between a saved state and its resume."""

import json
import os

import pytest
from torch.utils.data import DataLoader
from written_files import FORMATS, NUM_SAMPLES, write_lines

from fkat_data import (
    DataLoaderFactory,
    DistributedDataParallelShardSampler,
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


def saved_after(num_taken, path, factory, **options):
    with ShardedDataLoader(0, [str(path)], factory, **options) as loader:
        for _, _ in zip(range(num_taken), loader, strict=False):
            pass
        return json.loads(json.dumps(loader.local_state_dict()))


def num_left(state, path, factory, **options):
    with ShardedDataLoader(0, [str(path)], factory, **options) as loader:
        loader.load_state_dict(state)
        return sum(1 for _ in loader)


@pytest.mark.parametrize("of_kind", FACTORIES, ids=["DataLoaderFactory", "function"])
@pytest.mark.parametrize(("kind", "write"), FORMATS)
def test_a_begun_shard_is_not_finished_in_another_file(tmp_path, kind, write, of_kind):
    path, factory = tmp_path / "file", of_kind(kind)
    write(path, "older")
    state = saved_after(2, path, factory, multiprocessing=False)
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1_000_000_000))
    assert num_left(state, path, factory, multiprocessing=False) == NUM_SAMPLES // 2 - 2
    write(path, "new, and of another length" * 30)
    with pytest.raises(StateMismatchError, match=f"files.*the file has changed since the state was saved.*{path}"):
        num_left(state, path, factory, multiprocessing=False)


@pytest.mark.parametrize("of_kind", FACTORIES, ids=["DataLoaderFactory", "function"])
def test_workers_report_and_compare_the_file(tmp_path, of_kind, processes):
    path, factory = tmp_path / "file", of_kind(JsonDataset)
    write_lines(path, "old")
    options = {"multiprocessing": True, "num_workers_per_shard": 2, "on_shard_error": "skip"}
    state = saved_after(2, path, factory, **options)
    assert num_left(state, path, factory, **options) == NUM_SAMPLES // 2 - 2
    write_lines(path, "new")
    with pytest.raises(StateMismatchError, match=f"the file has changed since the state was saved.*{path}"):
        num_left(state, path, factory, **options)


def test_an_iterable_that_names_its_dataset_is_compared(tmp_path):
    path = tmp_path / "file"
    write_lines(path, "old")
    state = saved_after(3, path, OneByOne, multiprocessing=False)
    write_lines(path, "new")
    with pytest.raises(StateMismatchError, match=f"changed.*{path}"):
        num_left(state, path, OneByOne, multiprocessing=False)


def test_a_state_without_files_and_one_between_two_shards_load(tmp_path):
    path, factory = tmp_path / "file", PlainFunction(JsonDataset)
    write_lines(path, "old")
    between = saved_after(NUM_SAMPLES // 2, path, factory, multiprocessing=False)
    assert between["fingerprint"]["files"] is None
    within = saved_after(2, path, factory, multiprocessing=False)
    del within["fingerprint"]["files"]
    write_lines(path, "new")
    assert num_left(between, path, factory, multiprocessing=False) == NUM_SAMPLES // 2
    assert num_left(within, path, factory, multiprocessing=False) == NUM_SAMPLES // 2 - 2


def test_a_loaded_state_that_is_saved_again_still_says_it(tmp_path):
    path, factory = tmp_path / "file", DataLoaderFactory(JsonDataset, batch_size=2)
    write_lines(path, "old")
    state = saved_after(2, path, factory, multiprocessing=False)
    with ShardedDataLoader(0, [str(path)], factory, multiprocessing=False) as loader:
        loader.load_state_dict(state)
        assert loader.local_state_dict() == state
        whole = loader.state_dict()
    write_lines(path, "new")
    with pytest.raises(StateMismatchError, match=f"changed.*{path}"):
        num_left(whole, path, factory, multiprocessing=False)


@pytest.mark.parametrize("files", ["9f3c", ["9f3c"], 7])
def test_a_state_whose_files_are_no_numbers_is_refused(tmp_path, files):
    path, factory = tmp_path / "file", DataLoaderFactory(JsonDataset, batch_size=2)
    write_lines(path, "old")
    state = saved_after(2, path, factory, multiprocessing=False)
    state["fingerprint"]["files"] = files
    with pytest.raises(StateMismatchError, match=r"fingerprint\.files"):
        num_left(state, path, factory, multiprocessing=False)


def test_another_number_of_ranks_finishes_the_begun_shards_of_all(tmp_path):
    paths = [tmp_path / "first", tmp_path / "second"]
    for path in paths:
        write_lines(path, path.name)

    def loader(dp_size, dp_rank):
        sampler = DistributedDataParallelShardSampler([str(path) for path in paths], dp_size=dp_size, dp_rank=dp_rank)
        factory = DataLoaderFactory(JsonDataset, batch_size=2)
        return ShardedDataLoader(1, sampler, factory, multiprocessing=False, dp_rank=dp_rank)

    states = []
    for dp_rank in range(2):
        with loader(2, dp_rank) as each:
            for _, _ in zip(range(2), each, strict=False):
                pass
            states.append(each.local_state_dict())
    with loader(1, 0) as one:
        one.load_state_dict(ShardedDataLoader.merge_state_dicts(states))
        microbatches = iter(one)
        next(microbatches)
        within_a_piece = one.local_state_dict()
        assert 1 + sum(1 for _ in microbatches) == 2 * (NUM_SAMPLES // 2 - 2)
    for path in paths:
        write_lines(path, "new")
    with loader(1, 0) as again:
        again.load_state_dict(within_a_piece)
        with pytest.raises(StateMismatchError, match="the file has changed"):
            next(iter(again))
