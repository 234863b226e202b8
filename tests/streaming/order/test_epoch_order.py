import numpy as np
import pytest
from order_vectors import DATASETS, VECTORS, check, name

from fkat_data.streaming.order import (
    EpochStart,
    Grid,
    OrderSettings,
    StreamSamples,
    StreamWeight,
    plan_epoch,
    selected,
    shares_of,
)


def settings_of(case, method="random"):
    sizes = tuple(np.array(shards, np.int64) for shards in case["shards"])
    of_others = {"num_canonical_nodes", "batch_size", "initial_physical_nodes"}
    given = {name: value for name, value in case["params"].items() if name not in of_others}
    return OrderSettings(sizes, batching_method=method, **given)


def shares_of_case(case):
    weights = [StreamWeight(*pair) for pair in case.get("streams") or [(None, None)] * len(case["shards"])]
    sizes = [sum(shards) for shards in case["shards"]]
    return shares_of(weights, sizes, case.get("epoch_size_arg"), case.get("shuffle_seed", 9176))


def tensor(plan, workers):
    """The epoch as the reference lays it out: nodes, ranks, workers, batches, samples."""
    num_batches = plan.num_batches + -plan.num_batches % workers
    grid = plan.grid
    found = plan.global_batches(np.arange(num_batches))
    found[plan.num_batches :] = -1
    return found.reshape(-1, workers, grid.num_nodes, grid.ranks_per_node, grid.batch_size).transpose(2, 3, 1, 0, 4)


def plan_of(case, dataset):
    params = dataset["params"]
    grid = Grid(case["num_nodes"], case["ranks_per_node"], params["batch_size"])
    start = EpochStart(
        case["epoch"],
        case["sample_in_epoch"],
        dataset.get("shuffle_seed", 9176),
        params["num_canonical_nodes"],
        params["initial_physical_nodes"],
    )
    return plan_epoch(settings_of(dataset, case["method"]), shares_of_case(dataset), start, grid)


@pytest.mark.parametrize("case", VECTORS["batching"] + VECTORS["elastic"], ids=name)
def test_epochs_are_the_references(case):
    dataset = DATASETS[case["dataset"]] if "dataset" in case else case
    check(lambda: tensor(plan_of(case, dataset), case["workers_per_rank"]), case)


@pytest.mark.parametrize("case", VECTORS["resample"], ids=name)
def test_selections_are_the_references(case):
    dataset = DATASETS[case["dataset"]]
    settings, shares = settings_of(dataset), shares_of_case(dataset)
    firsts = np.cumsum([0, *(sizes.sum() for sizes in settings.shard_sizes)]).tolist()
    streams = [
        StreamSamples(sizes, first, choose)
        for sizes, first, choose in zip(settings.shard_sizes, firsts, shares.choose, strict=False)
    ]
    if case["stream_id"] is not None:
        streams = [streams[case["stream_id"]]]
    made = selected(
        streams,
        seed=dataset["shuffle_seed"],
        epoch=case["epoch"],
        granularity=settings.sampling_granularity,
        is_balanced=settings.sampling_method == "balanced",
        is_shuffled=settings.shuffle,
    )
    assert made.unit_sizes.tolist() == case["shuffle_units"]
    assert made.sample_ids(np.arange(made.size)).tolist() == case["sample_ids"]
