"""Samplers nested in any order: whatever stands around what, ranks share each epoch out, purely and resumably."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkat_data import ConfigurationError, DistributedDataParallelShardSampler, ShuffledShardSampler
from fkat_data.samplers import SequenceShardSampler


def leaves(num_shards):
    return SequenceShardSampler([f"shard-{index}" for index in range(num_shards)])


@st.composite
def nestings(draw):
    """A recipe from (size, rank) of one split to a sampler; at most one layer splits, any number shuffle."""
    num_shards = draw(st.integers(4, 12))
    layers = draw(st.lists(st.integers(0, 99), max_size=3))
    place = draw(st.integers(0, len(layers)))
    drop_last, merge = draw(st.booleans()), draw(st.sampled_from([0, 2, -1]))

    def build(size, rank):
        sampler = leaves(num_shards)
        for number, seed in enumerate([*layers, None]):
            if number == place:
                sampler = DistributedDataParallelShardSampler(sampler, size, rank, drop_last, merge)
            if seed is not None:
                sampler = ShuffledShardSampler(sampler, seed)
        return sampler

    return num_shards, drop_last, build


def uris(shards):
    return [uri for shard in shards for uri in ([shard] if isinstance(shard, str) else shard)]


@given(nesting=nestings(), size=st.integers(1, 4), epoch=st.integers(0, 5))
def test_ranks_share_each_epoch_out(nesting, size, epoch):
    num_shards, drop_last, build = nesting
    given_out = [uris(build(size, rank).shards(epoch)) for rank in range(size)]
    together = [uri for part in given_out for uri in part]
    assert len(set(together)) == len(together)
    assert len(together) == (num_shards - num_shards % size if drop_last else num_shards)
    assert max(map(len, given_out)) - min(map(len, given_out)) <= (0 if drop_last else 1)


@given(nesting=nestings(), sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)), epoch=st.integers(0, 3))
def test_any_rank_of_any_number_of_ranks_can_be_asked_for(nesting, sizes, epoch):
    _, _, build = nesting
    ours, theirs = sizes
    asked = build(ours, 0).for_rank(theirs, theirs - 1)
    assert list(asked.shards(epoch)) == list(build(theirs, theirs - 1).shards(epoch))


def test_a_users_iterable_may_stand_below_if_it_is_finite():
    class Finite:
        def __iter__(self):
            return iter(["a", "b", "c", "d"])

    assert list(DistributedDataParallelShardSampler(ShuffledShardSampler(Finite(), seed=0), 2, 0)) != []
    with pytest.raises(ConfigurationError, match="sampler"):
        ShuffledShardSampler(5)
