import json
import logging
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.errors import ConfigurationError
from fkat_data.samplers import (
    DistributedDataParallelShardSampler,
    SequenceShardSampler,
    ShardSampler,
    ShuffledShardSampler,
    merge_uris,
)

# See test_shuffled.py: never changed without a decision record (docs/adr).
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "shard_orders.json").read_text())


@st.composite
def worlds(draw):
    dp_size = draw(st.integers(1, 9))
    return draw(st.integers(dp_size, 40)), dp_size


def named(count):
    return [f"s{index:03}" for index in range(count)]


def ranks(sampler, dp_size, epoch=0, **options):
    return [
        list(DistributedDataParallelShardSampler(sampler, dp_size, dp_rank, **options).shards(epoch))
        for dp_rank in range(dp_size)
    ]


def joined(parts):
    return [shard for part in parts for shard in part]


def plain(count):
    return [f"s{index}" for index in range(count)]


@pytest.mark.parametrize("golden", GOLDEN["data_parallel"], ids=str)
def test_the_blocks_are_those_of_every_release(golden):
    options = {key: golden[key] for key in ("drop_last", "num_uri_merge")}
    assert ranks(plain(golden["num_shards"]), golden["dp_size"], **options) == golden["ranks"]


@pytest.mark.parametrize("golden", GOLDEN["data_parallel_of_shuffled"], ids=lambda golden: str(golden["epoch"]))
def test_the_blocks_of_shuffled_shards_are_those_of_every_release(golden):
    sampler = ShuffledShardSampler(plain(golden["num_shards"]), golden["seed"])
    assert ranks(sampler, golden["dp_size"], golden["epoch"], drop_last=False) == golden["ranks"]


@pytest.mark.parametrize("golden", GOLDEN["shuffled_of_data_parallel"], ids=lambda golden: str(golden["epoch"]))
def test_the_shuffled_blocks_are_those_of_every_release(golden):
    for dp_rank, shards in enumerate(golden["ranks"]):
        block = DistributedDataParallelShardSampler(plain(golden["num_shards"]), golden["dp_size"], dp_rank)
        assert ShuffledShardSampler(block, golden["seed"]).shards(golden["epoch"]) == shards


@given(worlds())
@settings(deadline=None)
def test_the_union_of_all_ranks_is_the_epoch(world):
    count, dp_size = world
    parts = ranks(named(count), dp_size, drop_last=False)
    assert joined(parts) == named(count)
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


@given(worlds())
@settings(deadline=None)
def test_with_drop_last_all_ranks_have_equally_many_and_only_the_tail_is_lost(world):
    count, dp_size = world
    parts = ranks(named(count), dp_size)
    assert {len(part) for part in parts} == {count // dp_size}
    assert joined(parts) == named(count)[: count - count % dp_size]


@given(worlds(), st.integers(-(2**70), 2**70), st.integers(0, 1000), st.booleans())
@settings(deadline=None)
def test_a_shuffle_inside_is_one_global_order_whatever_the_number_of_ranks(world, seed, epoch, drop_last):
    count, dp_size = world
    order = ShuffledShardSampler(named(count), seed).shards(epoch)
    parts = ranks(ShuffledShardSampler(named(count), seed), dp_size, epoch, drop_last=drop_last)
    assert joined(parts) == order[: count - count % dp_size if drop_last else count]


@given(worlds(), st.integers(0, 1000))
@settings(deadline=None)
def test_a_shuffle_outside_keeps_each_rank_s_own_shards(world, epoch):
    count, dp_size = world
    for dp_rank, part in enumerate(ranks(named(count), dp_size)):
        block = DistributedDataParallelShardSampler(named(count), dp_size, dp_rank)
        assert sorted(ShuffledShardSampler(block, seed=epoch).shards(epoch)) == part


@given(worlds(), st.integers(-1, 6), st.booleans())
@settings(deadline=None)
def test_a_merge_joins_the_rank_s_own_uris_after_the_split(world, num_uri_merge, drop_last):
    count, dp_size = world
    split = ranks(named(count), dp_size, drop_last=drop_last)
    merged = ranks(named(count), dp_size, drop_last=drop_last, num_uri_merge=num_uri_merge)
    assert merged == [merge_uris(part, num_uri_merge) for part in split]


@given(world=worlds(), seed=st.integers(), data=st.data())
@settings(deadline=None)
def test_resuming_a_rank_twice_equals_no_stop(world, seed, data):
    count, dp_size = world
    dp_rank = data.draw(st.integers(0, dp_size - 1))

    def fresh():
        return DistributedDataParallelShardSampler(ShuffledShardSampler(named(count), seed), dp_size, dp_rank)

    each = len(fresh())
    whole = joined(fresh().shards(epoch) for epoch in range(3))
    taken, state = [], None
    for stop in sorted(data.draw(st.lists(st.integers(0, 2 * each), min_size=2, max_size=2))):
        sampler = fresh()
        if state is not None:
            sampler.load_state_dict(state)
        while len(taken) < stop:
            for shard in sampler:
                taken.append(shard)
                if len(taken) == stop:
                    break
        state = sampler.state_dict()
    sampler = fresh()
    sampler.load_state_dict(state)
    taken += list(sampler)
    assert taken == whole[: len(taken)]
    assert len(taken) % each == 0


def test_dropped_shards_are_logged_once_with_their_number(caplog):
    with caplog.at_level(logging.WARNING, logger="fkat_data"):
        sampler = DistributedDataParallelShardSampler(named(11), 4, 3)
        sampler.shards(0)
        sampler.shards(1)
    assert [record.getMessage() for record in caplog.records] == [
        (
            "dropping 3 of 11 shards in each epoch, so that all 4 ranks get the same number "
            "(pass drop_last=False to keep them)"
        )
    ]


@pytest.mark.parametrize(("count", "drop_last"), [(12, True), (11, False)])
def test_nothing_is_logged_where_nothing_is_dropped(caplog, count, drop_last):
    with caplog.at_level(logging.WARNING, logger="fkat_data"):
        DistributedDataParallelShardSampler(named(count), 4, 0, drop_last)
    assert not caplog.records


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"dp_size": 0}, "dp_size"),
        ({"dp_size": -1}, "dp_size"),
        ({"dp_size": "2"}, "dp_size"),
        ({"dp_size": True}, "dp_size"),
        ({"dp_size": 9}, "dp_size"),  # eight shards
        ({"dp_size": 9, "drop_last": False}, "dp_size"),
        ({"dp_rank": -1}, "dp_rank"),
        ({"dp_rank": 2}, "dp_rank"),
        ({"dp_rank": 0.0}, "dp_rank"),
        ({"drop_last": "false"}, "drop_last"),
        ({"drop_last": 1}, "drop_last"),
        ({"num_uri_merge": -2}, "num_uri_merge"),
        ({"num_uri_merge": None}, "num_uri_merge"),
    ],
)
def test_a_bad_argument_is_refused_by_its_name(options, where):
    with pytest.raises(ConfigurationError, match=rf"^{where} = "):
        DistributedDataParallelShardSampler(named(8), **{"dp_size": 2, "dp_rank": 0, **options})


def test_a_later_epoch_with_fewer_shards_than_ranks_is_an_error_that_names_it():
    class Shrinking(ShardSampler):
        def shards(self, epoch):
            return named(3 - epoch)

    sampler = DistributedDataParallelShardSampler(Shrinking(), 3, 0)
    with pytest.raises(ConfigurationError, match="at most 2, the number of shards in epoch 1"):
        sampler.shards(1)


def test_the_arguments_can_be_read_and_not_set():
    inner = SequenceShardSampler(named(4))
    sampler = DistributedDataParallelShardSampler(inner, 2, 1, drop_last=False, num_uri_merge=2)
    assert sampler.sampler is inner
    assert (sampler.dp_size, sampler.dp_rank, sampler.drop_last, sampler.num_uri_merge) == (2, 1, False, 2)
    with pytest.raises(AttributeError):
        sampler.dp_rank = 0


@given(worlds(), st.integers(1, 9), st.integers(0, 3), st.booleans(), st.integers(-1, 3))
@settings(deadline=None)
def test_a_sampler_gives_any_ranks_shards_of_any_number_of_ranks(world, dp_size, epoch, drop_last, num_uri_merge):
    count, own_size = world
    dp_size = min(dp_size, count)
    shuffled = ShuffledShardSampler(named(count), 3)
    sampler = DistributedDataParallelShardSampler(shuffled, own_size, own_size - 1, drop_last, num_uri_merge)
    before = sampler.shards(epoch)
    for dp_rank in range(dp_size):
        fresh = DistributedDataParallelShardSampler(shuffled, dp_size, dp_rank, drop_last, num_uri_merge)
        other = sampler.for_rank(dp_size, dp_rank)
        assert (other.dp_size, other.dp_rank) == (dp_size, dp_rank)
        assert other.shards(epoch) == fresh.shards(epoch)
        assert ShuffledShardSampler(sampler).for_rank(dp_size, dp_rank).shards(epoch) == (
            ShuffledShardSampler(fresh).shards(epoch)
        )
    assert (sampler.dp_size, sampler.shards(epoch)) == (own_size, before)


def test_another_ranks_sampler_begins_at_the_start_and_leaves_this_one_where_it_is():
    sampler = DistributedDataParallelShardSampler(named(8), 2, 0)
    iterator = iter(sampler)
    next(iterator)
    assert list(sampler.for_rank(4, 1)) == ["s002", "s003"]
    assert list(iterator) == ["s001", "s002", "s003"]


@pytest.mark.parametrize(("dp_size", "dp_rank", "where"), [(0, 0, "dp_size"), (2, 2, "dp_rank"), (2, -1, "dp_rank")])
def test_a_rank_that_cannot_be_has_no_sampler(dp_size, dp_rank, where):
    with pytest.raises(ConfigurationError, match=rf"^{where} = "):
        DistributedDataParallelShardSampler(named(8), 2, 0).for_rank(dp_size, dp_rank)


def test_another_number_of_ranks_than_there_are_shards_is_an_error_when_it_is_asked_for_them():
    with pytest.raises(ConfigurationError, match="dp_size = 9"):
        DistributedDataParallelShardSampler(named(8), 2, 0).for_rank(9, 0).shards(0)
