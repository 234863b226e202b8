import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from interpreters import run_python
from loader_examples import generators

from fkat_data.errors import ConfigurationError
from fkat_data.samplers import ShardSampler, ShuffledShardSampler

# A saved place counts shards in an order that is computed anew: if an order changes, every checkpoint of every user
# goes on elsewhere, and says nothing. So the file may not change: never without a decision record (docs/adr).
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "shard_orders.json").read_text())

SEEDS = st.integers(-(2**70), 2**70)


def named(count):
    return [f"s{index}" for index in range(count)]


@pytest.mark.parametrize("golden", GOLDEN["shuffled"], ids=lambda golden: f"{golden['seed']}-{golden['epoch']}")
def test_the_orders_are_those_of_every_release(golden):
    sampler = ShuffledShardSampler(named(golden["num_shards"]), golden["seed"])
    assert sampler.shards(golden["epoch"]) == [f"s{index}" for index in golden["order"]]


@given(seed=SEEDS, epoch=st.integers(0, 10**6), count=st.integers(1, 40))
def test_an_epoch_is_a_permutation_and_a_function_of_seed_and_epoch(seed, epoch, count):
    sampler = ShuffledShardSampler(named(count), seed)
    order = sampler.shards(epoch)
    assert sorted(order) == sorted(named(count))
    sampler.shards(epoch + 1)  # what was asked for in between changes nothing
    assert sampler.shards(epoch) == order == ShuffledShardSampler(named(count), seed).shards(epoch)


@given(seed=SEEDS)
def test_epochs_and_seeds_differ(seed):
    # 30 shards have 10^32 orders: two of them equal by chance is no event to plan for.
    orders = [tuple(ShuffledShardSampler(named(30), seed + more).shards(epoch)) for more in (0, 1) for epoch in (0, 1)]
    assert len({*orders, tuple(named(30))}) == 5


def test_no_global_generator_is_read_or_moved():
    before = generators()
    order = ShuffledShardSampler(named(50)).shards(0)
    assert generators() == before
    random.seed(1)
    assert ShuffledShardSampler(named(50)).shards(0) == order


def test_the_order_is_the_same_in_every_process(processes):
    program = (
        "from fkat_data.samplers import ShuffledShardSampler as S; print(S([f's{i}' for i in range(9)], 3).shards(2))"
    )
    # Of this process, the seed of hash() is another one.
    assert run_python("-c", program, PYTHONHASHSEED="1").stdout == f"{ShuffledShardSampler(named(9), 3).shards(2)}\n"


def test_each_epoch_of_the_inner_sampler_is_shuffled():
    class Alternating(ShardSampler):
        def shards(self, epoch):
            return ["a", "b", "c"] if epoch % 2 == 0 else ["d", "e"]

    sampler = ShuffledShardSampler(Alternating())
    assert [sorted(sampler), sorted(sampler), sorted(sampler)] == [["a", "b", "c"], ["d", "e"], ["a", "b", "c"]]


def test_around_what_splits_nothing_there_are_no_other_ranks():
    sampler = ShuffledShardSampler(["a", "b"])
    assert sampler.dp_size is None
    with pytest.raises(ConfigurationError, match=r"^sampler = .*over any number of ranks"):
        sampler.for_rank(2, 0)
