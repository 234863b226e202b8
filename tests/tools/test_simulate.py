import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.errors import ConfigurationError
from fkat_data.streaming import StreamingDataset, World
from fkat_data.tools import simulate_dataset


def invent(folder, num_shards, samples_per_shard, shard_bytes):
    """Write the index of shards that are not there."""
    folder.mkdir(exist_ok=True)
    known = {"column_encodings": ["bytes"], "column_names": ["data"], "column_sizes": [None], "format": "mds"}
    known |= {"compression": None, "zip_data": None, "hashes": [], "size_limit": shard_bytes, "version": 2}
    files = (
        {"basename": f"shard.{number:05d}.mds", "bytes": shard_bytes, "hashes": {}} for number in range(num_shards)
    )
    shards = [{**known, "samples": samples_per_shard, "raw_data": file} for file in files]
    (folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}))
    return str(folder)


NUMBERS = {"step_s": 1.0, "bandwidth_bytes_per_s": 1000.0 * 1500, "predownload": 200, "num_epochs": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The index of 60 shards of 1,500 KB with 100 samples each."""
    return invent(tmp_path_factory.mktemp("index"), 60, 100, 1_500_000)


@pytest.fixture
def simulated(folder):
    def simulate(num_nodes=1, ranks_per_node=1, *, order=None, **numbers):
        known = {"batch_size": 10, "shuffle": True, "shuffle_algo": "block", "shuffle_block_size": 500}
        dataset = StreamingDataset(local=folder, world=World(num_nodes, ranks_per_node), **known | (order or {}))
        given = {"num_nodes": num_nodes, "ranks_per_node": ranks_per_node, "batches_together": 1}
        return simulate_dataset(dataset, **NUMBERS | given | numbers)

    return simulate


def test_a_slow_line_and_a_short_read_ahead_wait_and_what_is_enough_does_not(simulated):
    assert simulated(bandwidth_bytes_per_s=50.0 * 1500).later_share > 0.3
    assert simulated(bandwidth_bytes_per_s=250.0 * 1500).later_share <= 0.01
    far = {"latency_s": 3.0, "bandwidth_bytes_per_s": 1e6 * 1500}
    assert simulated(predownload=1, **far).later_share > 0.01
    assert simulated(predownload=512, **far).later_share <= 0.01
    assert simulated(2, 1, store_bytes_per_s=40.0 * 1500, bandwidth_bytes_per_s=1e6 * 1500).later_share > 0.3


def test_a_small_cache_is_not_filled_by_what_is_read_together(folder):
    dataset = StreamingDataset(local=folder, batch_size=10, shuffle=True, world=World(1, 2))
    numbers = NUMBERS | {"ranks_per_node": 2, "step_s": 0.0}
    # A sixteenth of a rank's share: 120 MB, which is no bound; then 3 MB, which 200 samples take.
    large, small = (
        simulate_dataset(dataset, **numbers, cache_limit_bytes=size) for size in (3_840_000_000, 96_000_000)
    )
    assert small.setup.batches_together == 20
    assert large.setup.batches_together == simulate_dataset(dataset, **numbers).setup.batches_together > 20


def test_nodes_of_few_canonical_nodes_fetch_the_same(simulated):
    together = simulated(2, 1, order={"num_canonical_nodes": 1})
    assert sum(node.num_shards for node in together.nodes) > 100
    assert sum(node.num_shards for node in simulated(2, 1).nodes) <= 61


def test_replicated_ranks_fetch_once_a_node(simulated):
    assert simulated(1, 4, order={"replication": 2}).nodes[0].num_fetches == 60


def test_the_numbers_are_plain(simulated):
    found = simulated(2, 2, connection_bytes_per_s=math.inf)
    plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert plain["num_steps"] == found.num_steps
    assert plain["setup"]["connection_bytes_per_s"] is None
    assert len(plain["nodes"]) == 2


def test_another_world_than_the_datasets_is_refused(folder):
    with pytest.raises(ConfigurationError, match="num_nodes"):
        simulate_dataset(StreamingDataset(local=folder, batch_size=10, world=World(1, 1)), num_nodes=2, **NUMBERS)


def test_what_the_first_step_of_an_epoch_waits_does_not_count_as_later(simulated):
    found = simulated(num_epochs=2, bandwidth_bytes_per_s=1e12, predownload=6000, latency_s=100.0)
    assert len(found.epoch_starts) == 2
    assert found.waited_s > 0
    first_s = sum(found.wait_s[start] for start in found.epoch_starts)
    assert found.later_share == pytest.approx((found.waited_s - first_s) / (found.duration_s - first_s))


def waits_s(folder, num_shards, num_nodes=1, ranks_per_node=1, **numbers):
    """What each step waits: in each, a rank reads one more shard of 100 bytes."""
    world = World(num_nodes, ranks_per_node)
    dataset = StreamingDataset(local=invent(folder, num_shards, 4, 100), batch_size=4, shuffle=False, world=world)
    known = {"step_s": 1.0, "bandwidth_bytes_per_s": 100.0, "predownload": 0, "num_threads": 1, "batches_together": 1}
    return simulate_dataset(
        dataset, num_nodes=num_nodes, ranks_per_node=ranks_per_node, **known | {"num_epochs": 1} | numbers
    ).wait_s.tolist()


@pytest.mark.parametrize(
    ("num_shards", "numbers", "expected"),
    [
        (3, {}, [1.0, 0.0, 0.0]),  # the next shard comes while a step is made
        (3, {"bandwidth_bytes_per_s": 50.0}, [2.0, 1.0, 1.0]),
        (3, {"latency_s": 0.25}, [1.25, 0.25, 0.25]),
        (3, {"connection_bytes_per_s": 40.0}, [2.5, 1.5, 1.5]),
        (
            3,
            {"step_s": 3.0, "bandwidth_bytes_per_s": 25.0, "num_threads": 2, "predownload": 8},
            [4.0, 5.0, 0.0],
        ),  # side by side
        (2, {"num_nodes": 2, "num_steps": 1, "num_epochs": None}, [1.0]),  # each has a line of its own
        (2, {"num_nodes": 2, "store_bytes_per_s": 100.0}, [2.0]),
        (2, {"ranks_per_node": 2, "poll_s": 0.0}, [2.0]),  # they share one
        (2, {"workers_per_rank": 1, "worker_start_s": 2.5}, [2.5, 0.0]),
        (
            2,
            {"num_epochs": 2, "cache_limit_bytes": 800},
            [1.0, 0.0, 0.0, 0.0],
        ),  # a second epoch finds what the first one kept
        (2, {"num_epochs": 2, "cache_limit_bytes": 100, "step_s": 0.0}, [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_waits_of_small_runs_are_as_computed_by_hand(tmp_path, num_shards, numbers, expected):
    assert waits_s(tmp_path, num_shards, **numbers) == pytest.approx(expected)


@settings(max_examples=40, deadline=None)
@given(
    num_shards=st.integers(2, 12),
    world=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    numbers=st.fixed_dictionaries(
        {
            "step_s": st.sampled_from([0.0, 0.37, 2.1]),
            "latency_s": st.sampled_from([0.0, 0.213]),
            "store_bytes_per_s": st.sampled_from([math.inf, 131.0]),
            "num_threads": st.integers(1, 3),
            "predownload": st.sampled_from([0, 5, 16]),
        }
    ),
    limit_bytes=st.integers(400, 1200),
)
def test_no_run_is_faster_than_its_lines_and_a_small_cache_only_fetches_more(
    tmp_path_factory, num_shards, world, numbers, limit_bytes
):
    folder = invent(tmp_path_factory.mktemp("index"), num_shards, 7, 200)
    order = {"batch_size": 3, "shuffle": True, "shuffle_algo": "block", "shuffle_block_size": 16}
    dataset = StreamingDataset(local=folder, world=World(*world), **order)
    known = {"num_nodes": world[0], "ranks_per_node": world[1], "bandwidth_bytes_per_s": 100.0, "num_epochs": 2}
    found = simulate_dataset(dataset, **known | numbers)
    assert found.duration_s >= found.num_steps * numbers["step_s"] - 1e-9
    for node in found.nodes:
        assert node.num_fetches == node.num_shards
        assert found.duration_s >= node.fetched_bytes / 100.0 - 1e-6
    total = sum(node.fetched_bytes for node in found.nodes)
    assert found.duration_s >= total / numbers["store_bytes_per_s"] - 1e-6
    free = {"bandwidth_bytes_per_s": math.inf, "store_bytes_per_s": math.inf, "latency_s": 0.0}
    assert simulate_dataset(dataset, **known | numbers | free).waited_s == 0
    small = simulate_dataset(dataset, **known | numbers, cache_limit_bytes=limit_bytes)
    for node, unlimited in zip(small.nodes, found.nodes, strict=True):
        assert node.num_shards == unlimited.num_shards
        assert node.num_fetches >= unlimited.num_fetches
        assert node.most_bytes <= limit_bytes + (numbers["num_threads"] + 1) * world[1] * 200


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"step_s": math.inf}, "step_s"),
        ({"latency_s": math.nan}, "latency_s"),
        ({"num_steps": 1}, "duration"),
        ({"cache_limit_bytes": 1_499_999}, "cache_limit"),
        ({"order": {"batch_size": None}}, "batch_size"),
    ],
    ids=str,
)
def test_a_number_that_cannot_be_simulated_is_refused_by_name(simulated, changes, argument):
    with pytest.raises(ConfigurationError, match=argument):
        simulated(**changes)
