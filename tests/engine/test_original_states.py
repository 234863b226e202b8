import json
from pathlib import Path

import pytest
import torch
from loader_examples import make
from walks import at_state

from fkat_data import DistributedDataParallelShardSampler, ShardSampler, StateMismatchError

GOLDEN = Path(__file__).parents[1] / "golden" / "states"
CASES = json.loads((GOLDEN / "cases.json").read_text())["original"]
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case["file"])


class Assigned(ShardSampler):
    def __init__(self, num_shards):
        super().__init__()
        self.shards = [f"shard-{index}" for index in range(num_shards)]


def two(shard):
    return [torch.tensor([int(shard.removeprefix("shard-")), index]) for index in range(2)]


def loader_of(case, dp_size, dp_rank, **options):
    sampler = DistributedDataParallelShardSampler(Assigned(case["num_shards"]), dp_size, dp_rank)
    return make(sampler, two, dp_rank=dp_rank, **options)


def saved(name):
    return torch.load(GOLDEN / name, weights_only=True)


def delivered(loader):
    return [microbatch.tolist() for microbatch in loader]


@cases
@pytest.mark.parametrize("num_shards_ahead", [0, 3])
def test_a_loader_goes_on_where_the_original_stopped(case, num_shards_ahead):
    assert set(saved(case["file"])) == {"all_rank_indices"}
    for dp_rank in range(2):
        whole = delivered(loader_of(case, 2, dp_rank))
        loader = loader_of(case, 2, dp_rank, num_shard_prefetches=num_shards_ahead)
        loader.load_state_dict(saved(case["file"]))
        assert (loader.epoch, case["delivered"][dp_rank] + delivered(loader)) == (0, whole)
        assert (loader.epoch, delivered(loader)) == (1, whole)


@cases
def test_a_state_from_before_the_first_microbatch_is_the_start(case):
    assert min(saved(case["begin"])["all_rank_indices"]) < -1
    for dp_rank in range(2):
        loader = at_state(loader_of(case, 2, dp_rank), saved(case["begin"]))
        assert delivered(loader) == delivered(loader_of(case, 2, dp_rank))


@cases
@pytest.mark.parametrize("dp_size", [1, 3])
def test_what_the_original_left_is_split_over_another_number_of_ranks(case, dp_size):
    loaders = [loader_of(case, dp_size, dp_rank) for dp_rank in range(dp_size)]
    for loader in loaders:
        loader.load_state_dict(saved(case["file"]))
    left = [microbatch for loader in loaders for microbatch in delivered(loader)]
    whole = [microbatch for dp_rank in range(2) for microbatch in delivered(loader_of(case, 2, dp_rank))]
    assert sorted(left + case["delivered"][0] + case["delivered"][1]) == sorted(whole)


@cases
def test_a_state_of_the_original_with_an_epoch_goes_on_in_it(case):
    loader = at_state(loader_of(case, 2, 1), {**saved(case["file"]), "epoch": 4})
    assert loader.epoch == 4
    assert delivered(loader) == delivered(loader_of(case, 2, 1))[4:]


def test_a_state_of_this_loader_is_not_below_minus_one():
    loader = loader_of(CASES[0], 2, 0)
    state = loader.state_dict()
    with pytest.raises(StateMismatchError, match="all_rank_indices"):
        loader.load_state_dict({**state, "all_rank_indices": [torch.tensor(-2)]})
