import json
import math
import time

import pytest

from fkat_data.errors import ConfigurationError
from fkat_data.streaming import StreamingDataset, World
from fkat_data.tools import simulate_dataset
from fkat_data.tools.cli.simulate_commands import write_synthetic_shards

NUMBERS = {"step_s": 1.0, "bandwidth_bytes_per_s": 1000.0 * 1500, "predownload": 200, "num_epochs": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The index of 60 shards of 1,500 KB with 100 samples each."""
    path = tmp_path_factory.mktemp("index")
    write_synthetic_shards(path, 60, 100, "1500000", None)
    return str(path)


@pytest.fixture
def simulated(folder):
    def simulate(num_nodes=1, ranks_per_node=1, *, order=None, **numbers):
        known = {"batch_size": 10, "shuffle": True, "shuffle_algo": "block", "shuffle_block_size": 500}
        dataset = StreamingDataset(local=folder, world=World(num_nodes, ranks_per_node), **known | (order or {}))
        given = {"num_nodes": num_nodes, "ranks_per_node": ranks_per_node, "batches_together": 1}
        return simulate_dataset(dataset, **NUMBERS | given | numbers)

    return simulate


def test_a_fast_line_keeps_up(simulated):
    found = simulated()
    assert found.num_steps == 600
    assert found.later_share < 0.01
    assert found.first_batch_s > 0
    assert found.num_shards == 60
    assert found.whole_bytes == 60_000 * 1500
    assert found.nodes[0].fetched_bytes == 60_000 * 1500


def test_a_slow_line_and_a_short_read_ahead_wait_and_what_is_enough_does_not(simulated):
    assert simulated(bandwidth_bytes_per_s=50.0 * 1500).later_share > 0.3
    assert simulated(bandwidth_bytes_per_s=250.0 * 1500).later_share <= 0.01
    far = {"latency_s": 3.0, "bandwidth_bytes_per_s": 1e6 * 1500}
    assert simulated(predownload=1, **far).later_share > 0.01
    assert simulated(predownload=512, **far).later_share <= 0.01
    assert simulated(2, 1, store_bytes_per_s=40.0 * 1500, bandwidth_bytes_per_s=1e6 * 1500).later_share > 0.3


def test_a_cache_that_is_too_small_fetches_again(simulated):
    order = {"shuffle_block_size": 2000}
    small = simulated(1, 2, order=order, cache_limit_bytes=8000 * 1500, bandwidth_bytes_per_s=1e6 * 1500)
    assert small.nodes[0].num_fetched_again > 0
    large = simulated(1, 2, order=order, cache_limit_bytes=50_000 * 1500, bandwidth_bytes_per_s=1e6 * 1500)
    assert large.nodes[0].num_fetched_again == 0
    two_epochs = {"num_epochs": 2}
    assert simulated(**two_epochs, cache_limit_bytes=40_000 * 1500).nodes[0].num_fetches > 60
    assert simulated(**two_epochs).nodes[0].num_fetches == 60


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


def test_what_cannot_be_simulated_is_refused(simulated, folder):
    with pytest.raises(ConfigurationError, match="cache_limit"):
        simulated(cache_limit_bytes=1_499_999)
    dataset = StreamingDataset(local=folder, batch_size=10, world=World(1, 1))
    with pytest.raises(ConfigurationError, match="num_nodes"):
        simulate_dataset(dataset, num_nodes=2, **NUMBERS)
    with pytest.raises(ConfigurationError, match="batch_size"):
        simulated(order={"batch_size": None})


def test_what_the_first_step_of_an_epoch_waits_does_not_count_as_later(simulated):
    found = simulated(num_epochs=2, bandwidth_bytes_per_s=1e12, predownload=6000, latency_s=100.0)
    assert len(found.epoch_starts) == 2
    assert found.waited_s > 0
    assert found.later_share == pytest.approx(
        (found.waited_s - sum(found.wait_s[start] for start in found.epoch_starts))
        / (found.duration_s - sum(found.wait_s[start] for start in found.epoch_starts))
    )


@pytest.mark.long
def test_a_large_run_is_simulated_soon(tmp_path):
    write_synthetic_shards(tmp_path, 24_415, 4096, "64mb", None)
    dataset = StreamingDataset(
        local=str(tmp_path), batch_size=32, shuffle=True, shuffle_algo="block", world=World(8, 8)
    )
    began_s = time.monotonic()
    found = simulate_dataset(
        dataset, num_nodes=8, ranks_per_node=8, step_s=0.3, bandwidth_bytes_per_s=5e7, predownload=8192, num_steps=400
    )
    assert found.num_steps == 400
    # Some seconds on a machine that has nothing else to do.
    assert time.monotonic() - began_s < 60
