"""An epoch that other nodes finish, compared with a count of every sample and every shard, rank by rank."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fkat_data.errors import ConfigurationError
from fkat_data.streaming import StreamingDataset, World
from fkat_data.streaming.epoch import ResumePoint
from fkat_data.tools import simulate_resplit
from fkat_data.tools.cli.simulate_commands import write_synthetic_shards

SHARD_BYTES = 2048
NUMBERS = {"step_s": 1.0, "bandwidth_bytes_per_s": 1e6, "predownload": 0, "latency_s": 0.01}


def dataset_of(folder, num_shards, samples_per_shard, world, **options):
    folder.mkdir(exist_ok=True)
    write_synthetic_shards(folder, num_shards, samples_per_shard, str(SHARD_BYTES), None)
    return StreamingDataset(local=str(folder), world=World(*world), **options)


def read_by_node(dataset, epochs, point, steps, ranks_per_node, samples_per_shard, seen):
    """Count the samples of some steps; return the shards of each node."""
    plan = epochs.plan(point)
    shards = {}
    for rank in range(plan.grid.num_ranks):
        for batch in plan.rank_batches(rank, steps(plan)).tolist():
            ids = [sample for sample in batch if sample >= 0]
            seen.update(ids)
            shards.setdefault(rank // ranks_per_node, set()).update(sample // samples_per_shard for sample in ids)
    return shards


@given(
    num_shards=st.integers(4, 12),
    samples_per_shard=st.integers(2, 9),
    nodes=st.tuples(st.integers(1, 4), st.integers(1, 5)),
    ranks_per_node=st.integers(1, 3),
    batch_size=st.integers(1, 4),
    order=st.sampled_from([{"shuffle_algo": "block"}, {"shuffle_algo": "py1e"}, {"shuffle": False}]),
    share=st.floats(0, 1),
    workers=st.integers(0, 2),
)
@settings(max_examples=60)
def test_samples_and_bytes_are_those_that_one_counts_by_hand(
    tmp_path_factory, num_shards, samples_per_shard, nodes, ranks_per_node, batch_size, order, share, workers
):
    options = {"batch_size": batch_size, "shuffle": True, "shuffle_block_size": 16, **order}
    folder = tmp_path_factory.mktemp("index")
    try:
        dataset = dataset_of(folder, num_shards, samples_per_shard, (nodes[0], ranks_per_node), **options)
        start = dataset.epochs.settled(ResumePoint())
        batching = dataset.epochs.batching(start)
        assume(batching.num_even_batches > 1)
        step = 1 + int(share * (batching.num_even_batches - 2))
        point = replace(start, sample_in_epoch=step * nodes[0] * ranks_per_node * batch_size)
        others = replace(dataset.epochs, fixed_world=World(nodes[1], ranks_per_node))
        others.batching(point)
    except ConfigurationError:
        assume(False)
    found = simulate_resplit(
        dataset,
        step=step,
        num_nodes_after=nodes[1],
        num_nodes=nodes[0],
        ranks_per_node=ranks_per_node,
        workers_per_rank=workers,
        **NUMBERS,
    )
    seen = Counter()
    where = (ranks_per_node, samples_per_shard, seen)
    before = read_by_node(dataset, dataset.epochs, start, lambda plan: np.arange(step), *where)
    num_before = seen.total()
    after = read_by_node(dataset, others, point, lambda plan: np.arange(plan.batching.num_even_batches), *where)
    num_samples = num_shards * samples_per_shard
    assert (found.samples.num_before, found.samples.num_after) == (num_before, seen.total() - num_before)
    assert found.samples.num_due == num_samples
    assert found.samples.num_missing == num_samples - len(seen) == 0
    assert found.samples.num_repeated == seen.total() - num_samples
    expected = [len(before.get(node, ())) * SHARD_BYTES for node in range(nodes[0])]
    assert [node.fetched_bytes for node in found.before.nodes] == expected
    expected = [len(after.get(node, set()) - before.get(node, set())) * SHARD_BYTES for node in range(nodes[1])]
    assert [node.fetched_bytes for node in found.after.nodes] == expected
    assert found.before.num_steps == step


@pytest.mark.parametrize(
    ("given_numbers", "match"),
    [
        ({"step": 0}, "step"),
        ({"step": 50}, "step"),
        ({"num_nodes_after": 0}, "num_nodes_after"),
    ],
)
def test_what_cannot_be_split_again_is_refused(tmp_path, given_numbers, match):
    dataset = dataset_of(tmp_path / "index", 10, 10, (2, 1), batch_size=1, shuffle=True, shuffle_algo="block")
    numbers = {"step": 20, "num_nodes_after": 1, "num_nodes": 2} | NUMBERS | given_numbers
    with pytest.raises(ConfigurationError, match=match):
        simulate_resplit(dataset, **numbers)


def test_a_dataset_that_skips_is_refused(tmp_path):
    skip = [{"samples": [3]}]
    dataset = dataset_of(tmp_path / "index", 10, 10, (2, 1), batch_size=1, skip=skip)
    with pytest.raises(ConfigurationError, match="skip"):
        simulate_resplit(dataset, step=20, num_nodes_after=1, num_nodes=2, **NUMBERS)
