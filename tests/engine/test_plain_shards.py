"""Shards that are not URIs go wherever shards go: samplers, workers, states, ranks, lengths, errors."""

import pytest
import torch
from walks import at_state

from fkat_data import (
    DataLoaderFactory,
    DistributedDataParallelShardSampler,
    ShardedDataLoader,
    ShuffledShardSampler,
    StateMismatchError,
)

SHARDS = [("train.bin", begin, begin + 4) for begin in range(0, 32, 4)]


def rows(shard):
    """The numbers of a range."""
    name, begin, end = shard
    assert (name, type(shard)) == ("train.bin", tuple)
    return torch.arange(begin, end)


def loader_of(shards=SHARDS, dp_size=1, dp_rank=0, shard_sizes=None, **options):
    sampler = DistributedDataParallelShardSampler(ShuffledShardSampler(shards, seed=3), dp_size, dp_rank)
    factory = DataLoaderFactory(rows, batch_size=2, shard_sizes=shard_sizes)
    return ShardedDataLoader(5, sampler, factory, dp_rank=dp_rank, **options)


def numbers(loader):
    return [number for batch in loader for number in batch.tolist()]


@pytest.mark.parametrize("multiprocessing", [False, True])
def test_a_run_that_was_stopped_goes_on_with_the_same_values(multiprocessing):
    with loader_of(multiprocessing=False) as loader:
        whole = numbers(loader)
    assert sorted(whole) == list(range(32)) != whole
    with loader_of(multiprocessing=multiprocessing, num_shard_prefetches=1) as loader:
        first = [batch.tolist() for _, batch in zip(range(5), loader, strict=False)]
        state = loader.state_dict()
    with at_state(loader_of(multiprocessing=multiprocessing), state) as loader:
        assert [number for batch in first for number in batch] + numbers(loader) == whole
    others = [(name, begin, end - (end == 32)) for name, begin, end in SHARDS]
    with loader_of(others, multiprocessing=False) as loader, pytest.raises(StateMismatchError, match="shards"):
        loader.load_state_dict(state)


def test_other_ranks_share_what_is_left():
    begun, states = [], []
    for rank in range(2):
        with loader_of(dp_size=2, dp_rank=rank, multiprocessing=False) as loader:
            begun += [number for _, batch in zip(range(3), loader, strict=False) for number in batch.tolist()]
            states.append(loader.local_state_dict())
    merged = loader.merge_state_dicts(states)
    for rank in range(4):
        with at_state(loader_of(dp_size=4, dp_rank=rank, multiprocessing=False), merged) as loader:
            begun += numbers(loader)
    assert sorted(begun) == list(range(32))
