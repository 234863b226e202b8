import json
import logging
from pathlib import Path

import pytest
from walks import begun

from fkat_data.errors import ConfigurationError
from fkat_data.samplers import (
    DistributedDataParallelShardSampler,
    SequenceShardSampler,
    ShardSampler,
    ShuffledShardSampler,
)

# See test_shuffled.py: never changed without a decision record (docs/adr).
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "shard_orders.json").read_text())


def ranks(sampler, dp_size, epoch=0, **options):
    return [
        list(DistributedDataParallelShardSampler(sampler, dp_size, dp_rank, **options).shards(epoch))
        for dp_rank in range(dp_size)
    ]


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


def test_dropped_shards_are_logged_once_with_their_number(caplog):
    with caplog.at_level(logging.WARNING, logger="fkat_data"):
        sampler = DistributedDataParallelShardSampler(plain(11), 4, 3)
        sampler.shards(0)
        sampler.shards(1)
    assert [record.getMessage() for record in caplog.records] == [
        (
            "dropping 3 of 11 shards in each epoch, so that all 4 ranks get the same number "
            "(pass drop_last=False to keep them)"
        )
    ]


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"dp_size": 9}, "dp_size"),  # eight shards
        ({"dp_size": 9, "drop_last": False}, "dp_size"),
        ({"num_uri_merge": -2}, "num_uri_merge"),
    ],
)
def test_a_bad_argument_is_refused_by_its_name(options, where):
    with pytest.raises(ConfigurationError, match=rf"^{where} = "):
        DistributedDataParallelShardSampler(plain(8), **{"dp_size": 2, "dp_rank": 0, **options})


def test_a_later_epoch_with_fewer_shards_than_ranks_is_an_error_that_names_it():
    class Shrinking(ShardSampler):
        def shards(self, epoch):
            return plain(3 - epoch)

    sampler = DistributedDataParallelShardSampler(Shrinking(), 3, 0)
    with pytest.raises(ConfigurationError, match="at most 2, the number of shards in epoch 1"):
        sampler.shards(1)


def test_the_arguments_can_be_read_and_not_set():
    inner = SequenceShardSampler(plain(4))
    sampler = DistributedDataParallelShardSampler(inner, 2, 1, drop_last=False, num_uri_merge=2)
    assert sampler.sampler is inner
    assert (sampler.dp_size, sampler.dp_rank, sampler.drop_last, sampler.num_uri_merge) == (2, 1, False, 2)
    with pytest.raises(AttributeError):
        sampler.dp_rank = 0


def test_another_ranks_sampler_begins_at_the_start_and_leaves_this_one_where_it_is():
    sampler = DistributedDataParallelShardSampler(plain(8), 2, 0)
    iterator = begun(sampler, 1)
    assert list(sampler.for_rank(4, 1)) == ["s2", "s3"]
    assert list(iterator) == ["s1", "s2", "s3"]


@pytest.mark.parametrize(
    ("dp_size", "dp_rank", "where"), [(0, 0, "dp_size"), (2, 2, "dp_rank"), (2, -1, "dp_rank"), (9, 0, "dp_size")]
)
def test_a_rank_that_cannot_be_has_no_sampler_or_no_shards(dp_size, dp_rank, where):
    with pytest.raises(ConfigurationError, match=rf"^{where} = "):
        DistributedDataParallelShardSampler(plain(8), 2, 0).for_rank(dp_size, dp_rank).shards(0)
