"""How much shared memory loaders take: by default, of small machines, and what an error says would do.

``LOCAL_WORLD_SIZE`` makes this machine small: its memory is that of so many ranks.
"""

import re

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from fkat_data import DataLoader, MemoryLimitError, ShardedDataLoader
from fkat_data.transport.memory_limit import available_bytes

MIB = 1 << 20
COUNT = 6


class Large(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return torch.full((self.size,), index, dtype=torch.uint8)


class LargeStream(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        return (torch.full((self.size,), index, dtype=torch.uint8) for index in range(info.id, COUNT, info.num_workers))


def pairs(rows):
    return [row.repeat(2) for row in rows[:1]]


@pytest.fixture
def small_machine(monkeypatch):
    """Return a function that leaves so much memory to this rank."""

    def share(size_bytes):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(max(1, available_bytes() // size_bytes)))

    return share


def of_shards(size, **options):
    return ShardedDataLoader(
        0, ["a", "b"], lambda shard: torch.utils.data.DataLoader(Large(size), batch_size=None), **options
    )


LOADERS = {
    "DataLoader": lambda size: DataLoader(Large(size), batch_size=None, num_workers=2, timeout=600),
    "batches": lambda size: DataLoader(Large(size // 2), batch_size=2, num_workers=2, timeout=600),
    "an iterable dataset": lambda size: DataLoader(LargeStream(size), batch_size=None, num_workers=2),
    "windows": lambda size: DataLoader(Large(size // 2), batch_size=1, window_size=2, window_fn=pairs, num_workers=2),
    "threads": lambda size: DataLoader(Large(size), batch_size=None, num_workers=2, workers="threads"),
    "ShardedDataLoader": lambda size: of_shards(size, num_workers_per_shard=2, num_shard_prefetches=2),
}


def test_microbatches_larger_than_a_workers_share_for_prefetching_are_ordinary(small_machine, processes):
    small_machine(512 * MIB)  # of which prefetching takes 64 MiB
    for kind, make in LOADERS.items():  # one environment: workers of all kinds come from one template
        # Four workers prefetch half of what two do, and each has room for two: one worker may make the next one, too.
        size = (24 if kind == "ShardedDataLoader" else 36) * MIB
        with make(size) as loader:
            count = sum(microbatch.numel() // size for microbatch in loader)
        assert count == (
            2 * COUNT if kind == "ShardedDataLoader" else COUNT // 2 if kind in ("batches", "windows") else COUNT
        ), kind


def test_a_caller_that_keeps_microbatches_gets_more_than_is_prefetched_up_to_the_limit(small_machine, processes):
    small_machine(512 * MIB)
    with of_shards(36 * MIB) as loader:
        assert loader.memory_limit_bytes <= 270 * MIB
        kept = []
        with pytest.raises(MemoryLimitError, match="microbatches that the caller keeps"):
            kept.extend(loader)
        assert 64 * MIB < 36 * MIB * len(kept) <= loader.memory_limit_bytes
        assert [int(microbatch[-1]) for microbatch in kept] == list(range(len(kept)))
        assert loader.step == len(kept)
        kept.clear()
        assert len([int(microbatch[-1]) for microbatch in loader]) == 2 * COUNT - loader.step or loader.step == 0


def limit_named(error):
    return int(re.search(r"memory_limit_bytes=(\d+)", str(error))[1])


@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_limit_that_the_error_names_for_a_microbatch_is_enough_for_the_loop(num_workers, processes):
    def run(limit_bytes):
        with DataLoader(
            Large(3 * MIB), batch_size=2, num_workers=num_workers, memory_limit_bytes=limit_bytes, timeout=600
        ) as loader:
            return [int(microbatch[1, 0]) for microbatch in loader]

    with pytest.raises(MemoryLimitError, match="make smaller microbatches") as caught:
        run(4 * MIB)
    assert run(limit_named(caught.value)) == list(range(1, COUNT, 2))


def test_the_limit_that_the_error_names_for_what_is_kept_is_enough_for_two_more(processes):
    def run(limit_bytes):
        kept = []
        with DataLoader(
            Large(MIB), batch_size=None, num_workers=1, timeout=600, memory_limit_bytes=limit_bytes
        ) as loader:
            try:
                kept.extend(loader)
            except MemoryLimitError as error:
                return len(kept), limit_named(error)
        return len(kept), limit_bytes

    count, named = run(2 * MIB)
    assert count == 2
    assert run(named)[0] == 4
