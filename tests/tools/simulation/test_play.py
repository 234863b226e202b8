import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.errors import ConfigurationError
from fkat_data.tools.simulation.needs import Part
from fkat_data.tools.simulation.play import Setup, ShardCosts, fair_rates, play

INF = math.inf
SETUP = {
    "step_s": 1.0,
    "bandwidth_bytes_per_s": 100.0,
    "predownload": 0,
    "num_steps": 1,
    "num_threads": 2,
    "poll_s": 0.0,
    "batches_per_chunk": 256,
}


def setup(**changes):
    return Setup(**SETUP | changes)


def costs(*sizes):
    return [ShardCosts(size, size) for size in sizes]


def part(shards, num_steps=1, num_samples=1):
    """A part, from the shards of each rank."""
    edges = np.cumsum([0, *map(len, shards)])
    return Part(num_steps, num_samples, np.array([shard for each in shards for shard in sorted(each)]), edges)


def needs(*parts, num_steps=1, num_samples=1):
    """An epoch: for each part, the shards of each rank."""
    return [part(shards, num_steps, num_samples) for shards in parts]


def num_ranks_of(made):
    return made.num_nodes * made.ranks_per_node


def waits_s(epochs, sizes, **changes):
    made = setup(**changes)
    shards = sizes if isinstance(sizes[0], ShardCosts) else costs(*sizes)
    return play(epochs, shards, made, num_ranks_of(made)).wait_s.tolist()


@pytest.mark.parametrize(
    ("epoch", "sizes", "changes", "expected"),
    [
        (needs([[0]], [[1]]), (100, 100), {}, [1.0, 0.0]),  # nothing shares the line with what is read first
        (needs([[0]], [[1]], [[2]]), (50, 100, 100), {"predownload": 2}, [0.5, 1.0, 0.0]),  # side by side
        (needs([[0]], [[1]], [[2]]), (50, 100, 100), {"predownload": 2, "num_threads": 1}, [0.5, 0.0, 0.0]),
        (needs([[0]], [[1]], [[2]]), (100, 100, 150), {"num_threads": 1}, [1.0, 0.0, 0.5]),
        (needs([[0]], [[1]], [[2]]), (100, 100, 150), {"num_threads": 1, "predownload": 2}, [1.0, 0.0, 0.5]),
        (needs([[0]], [[0]], [[1]]), (100, 250), {"num_threads": 1, "predownload": 2}, [1.0, 0.0, 0.5]),
        (needs([[0]], [[0]], [[1]]), (100, 250), {"num_threads": 1}, [1.0, 0.0, 1.5]),
        (needs([[0]]), (100,), {"latency_s": 0.25}, [1.25]),
        (needs([[0, 1]]), (10, 10), {"latency_s": 0.25, "connection_bytes_per_s": 20.0}, [0.75]),
        (needs([[0, 1, 2]]), (100, 100, 100), {}, [3.0]),
        (needs([[0], [0]]), (100,), {"ranks_per_node": 2}, [1.0]),  # fetched once for both
        (needs([[0], [0]]), (100,), {"num_nodes": 2}, [1.0]),  # each has a line of its own
        (needs([[0], [0]]), (100,), {"num_nodes": 2, "store_bytes_per_s": 100.0}, [2.0]),
        (needs([[0], [1]]), (100, 300), {"num_nodes": 2}, [3.0]),  # the slowest decides
        (needs([[0]], [[1]], num_steps=2), (100, 150), {"num_threads": 1}, [1.0, 0.0, 0.0, 0.0]),
        (needs([[0]]), (1,), {"bandwidth_bytes_per_s": 3.0, "step_s": 0.0}, [1 / 3]),  # less than a second counts
    ],
)
def test_waits_of_small_runs_are_as_computed_by_hand(epoch, sizes, changes, expected):
    assert waits_s([epoch], sizes, **changes) == pytest.approx(expected)


def test_a_compressed_shard_is_decompressed_by_the_thread_that_fetched_it():
    shards = [ShardCosts(100, 400, is_compressed=True, num_requests=2)]
    found = waits_s([needs([[0]])], shards, latency_s=0.5, decompress_bytes_per_s=800.0)
    assert found == pytest.approx([1.0 + 1.0 + 0.5])


def test_what_is_kept_serves_the_next_epoch_and_what_is_not_is_fetched_again():
    epochs = [needs([[0]], [[1]], [[2]]) for epoch in range(3)]
    kept = play(epochs, costs(100, 100, 100), setup(num_threads=1), 1)
    assert kept.nodes[0].num_fetches == 3
    made = setup(num_threads=1, cache_limit_bytes=200)
    evicted = play(epochs, costs(100, 100, 100), made, 1)
    assert evicted.nodes[0].num_fetches == 9
    assert evicted.nodes[0].num_fetched_again == 0
    assert evicted.nodes[0].most_bytes == 200
    assert evicted.nodes[0].num_evictions == 7


def test_a_shard_that_gives_way_while_it_is_read_is_fetched_again():
    epoch = needs(*([[0]], [[1]], [[2]], [[3]]) * 3)
    small = play([epoch], costs(100, 100, 100, 100), setup(cache_limit_bytes=300), 1)
    assert small.nodes[0].num_fetched_again > 0
    large = play([epoch], costs(100, 100, 100, 100), setup(cache_limit_bytes=400), 1)
    assert large.nodes[0].num_fetched_again == 0


def test_a_rank_sees_that_another_one_has_fetched_when_it_looks():
    assert waits_s([needs([[0], [0]])], (100,), ranks_per_node=2, poll_s=0.5) == pytest.approx([1.25])


def test_ranks_that_read_the_same_fetch_once_a_node():
    found = play([needs([[0], [1]])], costs(100, 50), setup(ranks_per_node=4), 2)
    assert found.nodes[0].fetched_bytes == 150
    assert found.wait_s.tolist() == pytest.approx([1.5])
    spread = play([needs([[0], [1]])], costs(100, 50), setup(num_nodes=4), 2)
    assert [each.fetched_bytes for each in spread.nodes] == [100, 100, 50, 50]


def test_workers_ask_for_the_batches_that_they_make_ahead():
    epoch = needs(*([[shard]] for shard in range(6)))
    alone = waits_s([epoch], [150] * 6, num_threads=1)
    helped = waits_s([epoch], [150] * 6, num_threads=1, workers_per_rank=2)
    assert sum(helped) <= sum(alone)
    assert helped[1:] == pytest.approx([0.5] * 5)


def test_shards_are_fetched_while_workers_start():
    epochs = [needs([[0]], [[1]]) for epoch in range(2)]
    found = waits_s(epochs, (100, 300), num_threads=1, workers_per_rank=1, worker_start_s=2.5)
    assert found == pytest.approx([2.5, 0.5, 2.5, 0.0])
    assert waits_s(epochs, (100, 300), worker_start_s=2.5) == waits_s(epochs, (100, 300))


def test_epochs_are_read_ahead_one_by_one():
    epochs = [needs([[0]]), needs([[1]])]
    assert waits_s(epochs, (100, 200), predownload=100) == pytest.approx([1.0, 2.0])


@st.composite
def runs(draw, max_nodes=2, max_ranks=2):
    num_nodes, ranks = draw(st.integers(1, max_nodes)), draw(st.integers(1, max_ranks))
    num_shards = draw(st.integers(1, 8))
    # No two sums are alike: who comes first when two things end at once is not what is compared.
    sizes = [round(float(size), 6) for size in np.random.default_rng(draw(st.integers(0, 99))).uniform(20, 400, 8)]
    one = st.lists(st.integers(0, num_shards - 1), min_size=1, max_size=4, unique=True)
    part = st.lists(one, min_size=num_nodes * ranks, max_size=num_nodes * ranks)
    epoch = needs(*draw(st.lists(part, min_size=1, max_size=6)), num_steps=draw(st.integers(1, 2)), num_samples=4)
    made = setup(
        num_nodes=num_nodes,
        ranks_per_node=ranks,
        step_s=draw(st.sampled_from([0.0, 0.37, 2.1])),
        latency_s=draw(st.sampled_from([0.0, 0.213])),
        connection_bytes_per_s=draw(st.sampled_from([math.inf, 41.0])),
        store_bytes_per_s=draw(st.sampled_from([math.inf, 131.0])),
        num_threads=draw(st.integers(1, 3)),
        predownload=draw(st.sampled_from([0, 5, 16])),
    )
    return epoch, costs(*sizes), made


@settings(max_examples=150, deadline=None)
@given(runs())
def test_with_any_bandwidth_and_no_latency_nothing_waits(run):
    epoch, shards, made = run
    free = replace(
        made,
        bandwidth_bytes_per_s=math.inf,
        store_bytes_per_s=math.inf,
        connection_bytes_per_s=math.inf,
        latency_s=0.0,
    )
    assert play([epoch], shards, free, num_ranks_of(made)).wait_s.sum() == 0


@settings(max_examples=150, deadline=None)
@given(runs())
def test_no_run_is_faster_than_its_steps_and_its_lines(run):
    epoch, shards, made = run
    found = play([epoch], shards, made, num_ranks_of(made))
    assert found.duration_s >= sum(part.num_steps for part in epoch) * made.step_s - 1e-9
    for node in found.nodes:
        assert found.duration_s >= node.fetched_bytes / made.bandwidth_bytes_per_s - 1e-6
    total = sum(node.fetched_bytes for node in found.nodes)
    assert found.duration_s >= total / made.store_bytes_per_s - 1e-6


@settings(max_examples=150, deadline=None)
@given(runs())
def test_a_cache_that_keeps_everything_fetches_each_shard_once_a_node(run):
    epoch, shards, made = run
    found = play([epoch, epoch], shards, made, num_ranks_of(made))
    for number, node in enumerate(found.nodes):
        ranks = range(number * made.ranks_per_node, (number + 1) * made.ranks_per_node)
        used = {int(shard) for part in epoch for rank in ranks for shard in part.of(rank)}
        assert node.num_fetches == len(used)
        assert node.fetched_bytes == pytest.approx(sum(shards[shard].fetched_bytes for shard in used))


@settings(max_examples=150, deadline=None)
@given(runs(max_nodes=1, max_ranks=1))
def test_a_faster_line_is_no_slower_by_more_than_a_shard(run):
    epoch, shards, made = run
    slow = play([epoch], shards, made, 1).duration_s
    fast = play([epoch], shards, replace(made, bandwidth_bytes_per_s=160.0), 1).duration_s
    assert fast <= slow + 400 / 160 + made.latency_s


@settings(max_examples=150, deadline=None)
@given(runs(max_ranks=1), st.randoms(use_true_random=False))
def test_the_order_of_nodes_is_of_no_importance(run, random):
    epoch, shards, made = run
    order = list(range(made.num_nodes))
    random.shuffle(order)
    parts = [part([each.of(node) for node in order], each.num_steps, each.num_samples) for each in epoch]
    found = play([epoch], shards, made, num_ranks_of(made))
    other = play([parts], shards, made, num_ranks_of(made))
    assert other.wait_s.tolist() == pytest.approx(found.wait_s.tolist())
    assert [other.nodes[order.index(node)].num_shards for node in range(made.num_nodes)] == [
        node.num_shards for node in found.nodes
    ]


@settings(max_examples=200, deadline=None)
@given(runs(), st.integers(400, 1200), st.integers(0, 2))
def test_a_small_cache_ends_and_is_exceeded_by_what_is_in_work_alone(run, limit_bytes, num_workers):
    epoch, shards, made = run
    made = replace(made, cache_limit_bytes=limit_bytes, workers_per_rank=num_workers)
    found = play([epoch, epoch], shards, made, num_ranks_of(made))
    unlimited = play([epoch, epoch], shards, replace(made, cache_limit_bytes=None), num_ranks_of(made))
    for node, free in zip(found.nodes, unlimited.nodes, strict=True):
        assert node.num_shards == free.num_shards
        assert node.num_fetches >= free.num_fetches
        in_work = (made.num_threads + max(1, num_workers)) * made.ranks_per_node * 400
        assert node.most_bytes <= limit_bytes + in_work


@pytest.mark.parametrize(
    ("num_moving", "limits", "expected"),
    [
        ([2, 1, 0], (100, INF, INF), [50, 100, 0]),
        ([2, 1], (100, 30, INF), [30, 30]),
        ([2, 1], (100, INF, 120), [40, 40]),
        ([4, 1], (40, INF, 60), [10, 20]),
        ([4, 1, 1], (40, 10, 1000), [10, 10, 10]),
        ([3], (INF, INF, INF), [INF]),
        ([3, 1], (INF, INF, 80), [20, 20]),
        ([], (1, 1, 1), []),
    ],
)
def test_the_line_is_shared_as_evenly_as_its_limits_let_it(num_moving, limits, expected):
    assert fair_rates(num_moving, *limits) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"num_nodes": 0}, "num_nodes"),
        ({"ranks_per_node": 1.5}, "ranks_per_node"),
        ({"workers_per_rank": -1}, "workers_per_rank"),
        ({"predownload": -1}, "predownload"),
        ({"cache_limit_bytes": 0}, "cache_limit_bytes"),
        ({"step_s": -0.1}, "step_s"),
        ({"step_s": INF}, "step_s"),
        ({"step_s": "1"}, "step_s"),
        ({"latency_s": math.nan}, "latency_s"),
        ({"bandwidth_bytes_per_s": 0}, "bandwidth_bytes_per_s"),
        ({"store_bytes_per_s": math.nan}, "store_bytes_per_s"),
        ({"connection_bytes_per_s": True}, "connection_bytes_per_s"),
        ({"num_steps": None}, "duration"),
        ({"num_epochs": 1}, "duration"),
    ],
    ids=str,
)
def test_what_cannot_be_simulated_is_refused_by_name(changes, argument):
    with pytest.raises(ConfigurationError, match=argument):
        setup(**changes)


def test_what_can_be_simulated_is_taken():
    setup(num_nodes=3, ranks_per_node=2, workers_per_rank=0, predownload=0, latency_s=0, step_s=0)
