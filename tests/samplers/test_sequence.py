import copy
import itertools
import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from own_sampler_examples import CHANGING, FIXED, Assigned, Filled, Generated, GloballyShuffled, Indexed
from own_sampler_examples import SHARDS as SIX_SHARDS

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


WRAPPERS = [
    lambda sampler: as_shard_sampler("sampler", sampler),
    ShuffledShardSampler,
    lambda sampler: DistributedDataParallelShardSampler(sampler, 2, 1),
]


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
@pytest.mark.parametrize("build", WRAPPERS)
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


# Subclasses that have their shards in a loop or in a list of their own.


@pytest.mark.parametrize("sampler", FIXED)
def test_a_subclass_of_either_form_has_its_shards_in_every_epoch(sampler):
    converted = as_shard_sampler("sampler", sampler())
    assert [list(converted.shards(epoch)) for epoch in (0, 3, 1)] == [SIX_SHARDS] * 3
    assert list(converted) == SIX_SHARDS
    assert list(DistributedDataParallelShardSampler(sampler(), 2, 1).shards(0)) == SIX_SHARDS[3:]


@pytest.mark.parametrize("sampler", [Assigned, Filled])
def test_a_list_has_a_length_and_a_position_that_is_saved(sampler):
    left, resumed = sampler(), sampler()
    assert len(left) == 6
    loop = iter(left)
    assert [next(loop), next(loop)] == SIX_SHARDS[:2]
    resumed.load_state_dict(left.state_dict())
    assert list(resumed) == SIX_SHARDS[2:]


@pytest.mark.parametrize("sampler", CHANGING)
def test_any_epoch_can_be_asked_for_at_any_time_and_is_that_of_loops_in_a_row(sampler):
    orders = as_shard_sampler("sampler", sampler())
    in_a_row = [list(orders.shards(epoch)) for epoch in range(5)]
    assert len({tuple(order) for order in in_a_row}) > 3
    assert all(sorted(order) == sorted(SIX_SHARDS) for order in in_a_row)
    for epoch in (3, 1, 4, 4, 0):
        assert as_shard_sampler("sampler", sampler()).shards(epoch) == in_a_row[epoch]
        assert orders.shards(epoch) == in_a_row[epoch]
    for wrap in WRAPPERS:
        assert [wrap(sampler()).shards(epoch) for epoch in (2, 0)] == [
            wrap(as_shard_sampler("sampler", sampler())).shards(epoch) for epoch in (2, 0)
        ]


def test_the_sampler_and_the_global_generators_stay_as_they_are():
    sampler, before = GloballyShuffled(), random.getstate()
    first = as_shard_sampler("sampler", sampler).shards(0)
    assert random.getstate() == before
    assert sampler.shards == SIX_SHARDS
    random.seed(5)
    assert as_shard_sampler("sampler", GloballyShuffled()).shards(0) == first


class Locked(Generated):
    def __init__(self):
        self.lock = threading.Lock()


class Endless(ShardSampler):
    def __iter__(self):
        return itertools.repeat("a")


class Empty(ShardSampler):
    def __iter__(self):
        return iter(())


class Wrong(ShardSampler):
    def __init__(self):
        self.shards = ["a", {5}]


class SplitLoop(DistributedDataParallelShardSampler):
    def __init__(self):
        super().__init__(SIX_SHARDS, 2, 1)

    def __iter__(self):
        return reversed(list(super().__iter__()))


class SplitList(DistributedDataParallelShardSampler):
    def __init__(self):
        super().__init__(SIX_SHARDS, 2, 1)
        self.shards = ["a", "b"]


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (Locked, r"shards\(epoch\), or one that copy\.deepcopy\(\) can copy.*TypeError: cannot pickle"),
        (Endless, "seems endless"),
        (Empty, "at least one shard"),
        (Wrong, r"\[1\] = \{5\}"),
        (SplitLoop, r"overrides shards\(epoch\), not __iter__ or self\.shards"),
        (SplitList, r"overrides shards\(epoch\), not __iter__ or self\.shards"),
        (ShardSampler, "a list in self.shards, or its own __iter__"),
    ],
)
def test_what_cannot_work_is_refused_by_the_argument(sampler, expected):
    with pytest.raises(ConfigurationError, match=rf"^sampler.*{expected}"):
        ShuffledShardSampler(sampler()).shards(0)


def test_a_loop_of_its_own_has_no_length_that_the_base_class_could_know():
    with pytest.raises(TypeError, match="a Generated has no length"):
        len(Generated())


def test_a_position_that_is_not_known_is_not_saved():
    sampler = Indexed()
    next(iter(sampler))
    with pytest.raises(ConfigurationError, match=r"^sampler = .*to save its position"):
        sampler.state_dict()
    with pytest.raises(ConfigurationError, match=r"^sampler = .*to save its position"):
        sampler.load_state_dict({"version": 1, "epoch": 0, "index": 1})


def test_a_method_that_is_more_derived_than_the_loop_decides():
    class Both(Generated):
        def shards(self, epoch):
            return [f"{epoch}a", f"{epoch}b"]

    sampler = Both()
    assert as_shard_sampler("sampler", sampler) is sampler
    assert copy.deepcopy(sampler).shards(2) == ["2a", "2b"]
