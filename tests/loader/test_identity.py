"""The data-parallel rank is said once: by the sampler, or to the loader."""

import pytest
from loader_examples import epoch, make

from fkat_data import ConfigurationError, DistributedDataParallelShardSampler, ShuffledShardSampler

SHARDS = ["list-a-2", "list-b-2", "list-c-2", "list-d-2"]


def split(dp_rank):
    return DistributedDataParallelShardSampler(SHARDS, 2, dp_rank)


@pytest.mark.parametrize("around", [lambda inside: inside, lambda inside: ShuffledShardSampler(inside, seed=3)])
@pytest.mark.parametrize("dp_rank", [0, 1])
def test_a_loader_has_the_rank_of_its_sampler(dp_rank, around):
    assert epoch(make(around(split(dp_rank)))) == epoch(make(around(split(dp_rank)), dp_rank=dp_rank))


@pytest.mark.parametrize(("dp_rank", "of_sampler"), [(0, 1), (1, 0), (5, 1)])
def test_another_rank_than_the_samplers_is_refused(dp_rank, of_sampler):
    with pytest.raises(ConfigurationError, match=rf"dp_rank = {dp_rank}: expected {of_sampler}, as its shard_sampler"):
        make(split(of_sampler), dp_rank=dp_rank)


def test_a_sampler_that_splits_nothing_says_nothing():
    assert make(SHARDS).local_state_dict()["fingerprint"]["dp_rank"] == 0
    assert make(ShuffledShardSampler(SHARDS), dp_rank=3).local_state_dict()["fingerprint"]["dp_rank"] == 3
