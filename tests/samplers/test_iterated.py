import copy
import itertools
import random
import threading

import pytest
from own_sampler_examples import (
    CHANGING,
    FIXED,
    SHARDS,
    Assigned,
    Filled,
    Generated,
    GloballyShuffled,
    Indexed,
)

from fkat_data.errors import ConfigurationError
from fkat_data.samplers import (
    DistributedDataParallelShardSampler,
    ShardSampler,
    ShuffledShardSampler,
    as_shard_sampler,
)

WRAPPERS = [
    lambda sampler: as_shard_sampler("sampler", sampler),
    ShuffledShardSampler,
    lambda sampler: DistributedDataParallelShardSampler(sampler, 2, 1),
]


@pytest.mark.parametrize("sampler", FIXED)
def test_a_subclass_of_either_form_has_its_shards_in_every_epoch(sampler):
    converted = as_shard_sampler("sampler", sampler())
    assert [list(converted.shards(epoch)) for epoch in (0, 3, 1)] == [SHARDS] * 3
    assert list(converted) == SHARDS
    assert list(DistributedDataParallelShardSampler(sampler(), 2, 1).shards(0)) == SHARDS[3:]


@pytest.mark.parametrize("sampler", [Assigned, Filled])
def test_a_list_has_a_length_and_a_place_that_is_saved(sampler):
    left, resumed = sampler(), sampler()
    assert len(left) == 6
    loop = iter(left)
    assert [next(loop), next(loop)] == SHARDS[:2]
    resumed.load_state_dict(left.state_dict())
    assert list(resumed) == SHARDS[2:]


@pytest.mark.parametrize("sampler", CHANGING)
def test_any_epoch_can_be_asked_for_at_any_time_and_is_that_of_loops_in_a_row(sampler):
    orders = as_shard_sampler("sampler", sampler())
    in_a_row = [list(orders.shards(epoch)) for epoch in range(5)]
    assert len({tuple(order) for order in in_a_row}) > 3
    assert all(sorted(order) == sorted(SHARDS) for order in in_a_row)
    for epoch in (3, 1, 4, 4, 0):
        assert as_shard_sampler("sampler", sampler()).shards(epoch) == in_a_row[epoch]
        assert orders.shards(epoch) == in_a_row[epoch]
    for wrap in WRAPPERS:
        assert [wrap(sampler()).shards(epoch) for epoch in (2, 0)] == [
            wrap(as_shard_sampler("sampler", sampler())).shards(epoch) for epoch in (2, 0)
        ]


def test_the_sampler_and_the_global_generators_stay_as_they_are():
    sampler, before = GloballyShuffled(), random.getstate()
    orders = as_shard_sampler("sampler", sampler)
    first = orders.shards(0)
    assert random.getstate() == before
    assert sampler.shards == SHARDS
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
        super().__init__(SHARDS, 2, 1)

    def __iter__(self):
        return reversed(list(super().__iter__()))


class SplitList(DistributedDataParallelShardSampler):
    def __init__(self):
        super().__init__(SHARDS, 2, 1)
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
