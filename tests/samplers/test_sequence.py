import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from fkat_data.errors import ConfigurationError
from fkat_data.samplers import (
    DistributedDataParallelShardSampler,
    SequenceShardSampler,
    ShardSampler,
    ShuffledShardSampler,
    as_shard_sampler,
    merge_uris,
)

URIS = st.text("abc/", min_size=1, max_size=5)
SHARDS = st.lists(URIS | st.lists(URIS, min_size=1, max_size=4), min_size=1, max_size=12)


def flat(shards):
    return [uri for shard in shards for uri in ([shard] if isinstance(shard, str) else shard)]


@given(SHARDS)
def test_the_given_shards_come_in_the_given_order_each_epoch(shards):
    sampler = SequenceShardSampler(shards)
    assert list(sampler) == list(sampler) == shards
    assert len(sampler) == len(shards)


def test_an_iterable_of_shards_is_read_once_and_a_list_may_change_afterwards():
    assert [list(sampler) for sampler in [SequenceShardSampler(iter("ab"))] * 2] == [["a", "b"], ["a", "b"]]
    shards = ["a", ["b", "c"]]
    sampler = SequenceShardSampler(shards)
    shards[1].append("d")
    shards.clear()
    assert list(sampler) == ["a", ["b", "c"]]


@pytest.mark.parametrize(
    ("sampler", "shards"),
    [
        (("b", "a"), ["b", "a"]),
        ((uri for uri in "ab"), ["a", "b"]),
        (OmegaConf.create(["a", ["b", "c"]]), ["a", ["b", "c"]]),
    ],
)
def test_any_finite_iterable_of_shards_becomes_a_sampler(sampler, shards):
    sampler = as_shard_sampler("sampler", sampler)
    assert list(sampler.shards(0)) == list(sampler.shards(1)) == shards


@pytest.mark.parametrize(
    "sampler", ["s3://bucket/one", None, 3, [], {"a"}, {"a": 1}, ShardSampler(), SequenceShardSampler]
)
@pytest.mark.parametrize(
    "build",
    [
        lambda sampler: as_shard_sampler("sampler", sampler),
        ShuffledShardSampler,
        lambda sampler: DistributedDataParallelShardSampler(sampler, 1, 0),
    ],
)
def test_what_is_no_sampler_is_refused_by_the_argument(sampler, build):
    with pytest.raises(ConfigurationError, match=r"^sampler = "):
        build(sampler)


def test_an_endless_iterable_is_refused_and_not_read_for_ever():
    with pytest.raises(ConfigurationError, match=r"^sampler = .*seems endless"):
        as_shard_sampler("sampler", itertools.repeat("a"))


@given(SHARDS, st.integers(-1, 9))
def test_a_merge_keeps_the_uris_and_their_order_in_shards_of_as_many_but_for_the_last(shards, num_uri_merge):
    merged = merge_uris(shards, num_uri_merge)
    assert flat(merged) == flat(shards)
    if num_uri_merge > 0:
        assert all(isinstance(shard, list) for shard in merged)
        assert {len(shard) for shard in merged[:-1]} <= {num_uri_merge}
        assert 1 <= len(merged[-1]) <= num_uri_merge


@pytest.mark.parametrize("num_uri_merge", [-2, 1.0, "2", None, True])
def test_a_merge_by_what_is_no_count_is_refused(num_uri_merge):
    with pytest.raises(ConfigurationError, match=r"^num_uri_merge = "):
        merge_uris(["a"], num_uri_merge)


def test_only_uris_are_merged():
    assert merge_uris(["a", ("b", "c")], 2) == [["a", "b"], ["c"]]
    with pytest.raises(ConfigurationError, match=r"^shards\[1\], for num_uri_merge=2 = \('b', 0\): expected a URI"):
        merge_uris(["a", ("b", 0)], 2)
    with pytest.raises(ConfigurationError, match=r"for num_uri_merge=-1 = 7: expected a URI"):
        DistributedDataParallelShardSampler([7, 8], 1, 0, num_uri_merge=-1)


# Samplers nested in any order: whatever stands around what, ranks share each epoch out, purely and resumably.


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


@given(nesting=nestings(), size=st.integers(1, 4), epoch=st.integers(0, 5))
def test_ranks_share_each_epoch_out(nesting, size, epoch):
    num_shards, drop_last, build = nesting
    given_out = [flat(build(size, rank).shards(epoch)) for rank in range(size)]
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
