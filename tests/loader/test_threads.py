"""Threads and segments in real workers: the same bits as in process, from any position on, whatever the settings."""

import time

import numpy as np
import pytest
import torch
from loader_examples import make, plain
from torch.utils.data import DataLoader, Dataset, get_worker_info
from walks import at_state, begun

import fkat_data

SHARDS = ["a-7", "b-0", "c-12"]


class Waiting(Dataset):
    """Items that wait, and draw at their places."""

    def __init__(self, shard, size=1000):
        self.shard = shard
        self.size = size

    def __len__(self):
        return int(self.shard.split("-")[1])

    def __getitem__(self, index):
        generators = fkat_data.item_generators()
        time.sleep(generators.python.random() / 200)
        return {
            "noise": torch.rand(self.size, generator=generators.torch),
            "array": generators.numpy.random(5, dtype=np.float32),
            "index": index,
            "name": self.shard,
        }


def shuffled(shard):
    dataset = Waiting(shard)
    return DataLoader(dataset, batch_size=3, shuffle=len(dataset) > 0)


def layout_of(microbatch):
    tensors = [value for value in microbatch.values() if isinstance(value, torch.Tensor)]
    return [(tensor.dtype, tensor.stride()) for tensor in tensors]


def test_threads_and_processes_change_no_bit_and_a_state_goes_on_with_others(remote):
    with make(SHARDS, shuffled) as loader:
        due = [(plain(microbatch), layout_of(microbatch)) for microbatch in loader]
    assert len(due) == 7
    for threads, position in ((1, 3), (4, 2), (3, 6)):
        options = {"num_threads_per_worker": threads, "num_shard_prefetches": 2}
        with remote(SHARDS, shuffled, **options) as loader:
            assert [(plain(microbatch), layout_of(microbatch)) for microbatch in loader] == due
        with make(SHARDS, shuffled, num_threads_per_worker=threads) as loader:
            begun(loader, position)
            state = loader.state_dict()
        with at_state(remote(SHARDS, shuffled, num_threads_per_worker=2), state) as loader:
            assert [(plain(microbatch), layout_of(microbatch)) for microbatch in loader] == due[position:]


class Large(Waiting):
    """Items that cost nothing, of half a mebibyte in a microbatch of four."""

    def __getitem__(self, index):
        if self.shard.startswith("bad") and index == 6:
            raise ValueError("a bad item")
        return torch.full((1 << 15,), index)


def of_large(shard):
    return DataLoader(Large(shard), batch_size=4)


def test_segments_that_are_collated_into_fit_the_memory_limit_and_come_back(remote):
    # Two segments of a microbatch each: every one is used again and again.
    shards = ["a-40", "bad-40", "c-40"]
    options = {"memory_limit_bytes": 5 << 19, "on_shard_error": "skip", "num_shard_prefetches": 1}
    with remote(shards, of_large, **options) as loader:
        for _ in range(3):
            found = [microbatch[:, 0].tolist() for microbatch in loader]
            rows = [list(range(start, start + 4)) for start in range(0, 40, 4)]
            assert found == [*rows, rows[0], *rows]


def test_a_worker_that_waits_for_memory_to_collate_into_leaves_its_shard_when_it_is_no_longer_wanted(remote):
    with remote(["a-40", "b-40"], of_large, memory_limit_bytes=5 << 19) as loader:
        for _ in range(5):
            kept = next(iter(loader))
            time.sleep(0.05)
            state = loader.state_dict()
            del kept
            loader.load_state_dict(state)
        assert next(iter(loader))[0, 0] in range(40)


class Captions(Waiting):
    """Items with long texts."""

    def __getitem__(self, index):
        return {"caption": "ä" * 9000, "image": torch.full((100,), index), "in_worker": get_worker_info() is not None}


@pytest.mark.parametrize("zero_copy", [False, True])
def test_long_texts_lie_behind_the_tensors(remote, zero_copy):
    def factory(shard):
        return DataLoader(Captions(shard), batch_size=4)

    with make(["a-9"], factory) as loader:
        due = [plain(microbatch) for microbatch in loader]
    with remote(["a-9"], factory, zero_copy=zero_copy) as loader:
        assert [plain(microbatch) for microbatch in loader] == due
