"""Segments that real workers collate into: the same bits as in process, whatever the memory limit."""

import time

import pytest
import torch
from loader_examples import make, plain
from torch.utils.data import DataLoader, Dataset, get_worker_info


class OfShard(Dataset):
    """As many items as the shard's name says."""

    def __init__(self, shard):
        self.shard = shard

    def __len__(self):
        return int(self.shard.split("-")[1])


class Large(OfShard):
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


class Captions(OfShard):
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
