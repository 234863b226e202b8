import json
import math
import time
from dataclasses import replace

import numpy as np
import pytest
from slow_model import costs

from fkat_data.errors import ConfigurationError
from fkat_data.quantities import readable_bytes
from fkat_data.streaming.epoch.epochs import Epochs
from fkat_data.streaming.epoch.skips import SampleSkips
from fkat_data.streaming.epoch.world import World
from fkat_data.streaming.order.epoch_order import OrderSettings
from fkat_data.streaming.order.spanner import Spanner
from fkat_data.streaming.order.weights import StreamWeight
from fkat_data.tools.simulation.result import later_share, num_warm_up_steps
from fkat_data.tools.simulation.setup import Setup, ShardCosts
from fkat_data.tools.simulation.simulate import simulate

SIZES = np.full(60, 100)
SPANNER = Spanner(SIZES)


def epochs_of(num_nodes=1, ranks_per_node=1, *, sizes=SIZES, batch_size=10, **options):
    canonical = options.pop("num_canonical_nodes", None)
    replication = options.pop("replication", None)
    settings = OrderSettings(
        (sizes,), **({"shuffle": True, "shuffle_algo": "block", "shuffle_block_size": 500} | options)
    )
    world = World(num_nodes, ranks_per_node, 1, 0)
    return Epochs(settings, [StreamWeight()], None, None, 0, canonical, batch_size, replication, world)


def setup_of(**options):
    given = {"step_s": 1.0, "bandwidth_bytes_per_s": 1000.0, "predownload": 200, "num_epochs": 1}
    return Setup(**given | options)


def simulated(num_nodes=1, ranks_per_node=1, *, size=1000, order=None, **options):
    epochs = epochs_of(num_nodes, ranks_per_node, **(order or {}))
    setup = setup_of(num_nodes=num_nodes, ranks_per_node=ranks_per_node, **options)
    return simulate(epochs, SPANNER, costs(*[size] * 60), SampleSkips(None), setup)


def test_a_fast_line_keeps_up():
    found = simulated()
    assert found.num_steps == 600
    assert found.later_share < 0.01
    assert found.first_batch_s > 0
    assert found.num_shards == 60
    assert found.whole_bytes == 60_000
    assert found.nodes[0].fetched_bytes == 60_000


def test_a_slow_line_and_a_short_read_ahead_wait_and_what_is_enough_does_not():
    assert simulated(bandwidth_bytes_per_s=50.0).later_share > 0.3
    assert simulated(bandwidth_bytes_per_s=250.0).later_share <= 0.01
    far = {"latency_s": 3.0, "bandwidth_bytes_per_s": 1e6}
    assert simulated(predownload=1, **far).later_share > 0.01
    assert simulated(predownload=512, **far).later_share <= 0.01
    assert simulated(2, 1, store_bytes_per_s=40.0, bandwidth_bytes_per_s=1e6).later_share > 0.3


def test_a_cache_that_is_too_small_fetches_again():
    order = {"shuffle_block_size": 2000}
    small = simulated(1, 2, order=order, cache_limit_bytes=8000, bandwidth_bytes_per_s=1e6)
    assert small.nodes[0].num_fetched_again > 0
    large = simulated(1, 2, order=order, cache_limit_bytes=50_000, bandwidth_bytes_per_s=1e6)
    assert large.nodes[0].num_fetched_again == 0
    two_epochs = {"num_epochs": 2}
    assert simulated(**two_epochs, cache_limit_bytes=40_000).nodes[0].num_fetches > 60
    assert simulated(**two_epochs).nodes[0].num_fetches == 60


def test_nodes_of_few_canonical_nodes_fetch_the_same():
    together = simulated(2, 1, order={"num_canonical_nodes": 1})
    assert sum(node.num_shards for node in together.nodes) > 100
    assert sum(node.num_shards for node in simulated(2, 1).nodes) <= 61


def test_replicated_ranks_fetch_once_a_node():
    epochs = epochs_of(1, 4, replication=2)
    found = simulate(epochs, SPANNER, costs(*[1000] * 60), SampleSkips(None), setup_of(ranks_per_node=4))
    assert found.nodes[0].num_fetches == 60


def test_the_numbers_are_plain():
    found = simulated(2, 2, connection_bytes_per_s=math.inf)
    plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert plain["num_steps"] == found.num_steps
    assert plain["setup"]["connection_bytes_per_s"] is None
    assert len(plain["nodes"]) == 2


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"cache_limit_bytes": 999}, "cache_limit"),
        ({"num_nodes": 2}, "num_nodes"),
    ],
)
def test_what_cannot_be_simulated_is_refused(options, match):
    with pytest.raises(ConfigurationError, match=match):
        simulate(epochs_of(), SPANNER, costs(*[1000] * 60), SampleSkips(None), setup_of(**options))


def test_an_epoch_of_no_step_is_refused():
    epochs = replace(epochs_of(), epoch_size=None, weights=[StreamWeight("choose", 0)])
    with pytest.raises(ConfigurationError):
        simulate(epochs, SPANNER, costs(*[1000] * 60), SampleSkips(None), setup_of())


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        ([], 0),
        ([0.0] * 10, 0),
        ([5.0] + [0.0] * 9, 1),
        ([5.0, 4.0] + [1.0] * 8, 2),
    ],
)
def test_the_warm_up_ends_where_it_waits_no_more_than_later(waits, expected):
    assert num_warm_up_steps(np.array(waits), 1.0) == expected


def test_what_the_first_step_of_an_epoch_waits_does_not_count_as_later():
    assert later_share(np.array([9.0, 1.0, 9.0, 0.0]), (0, 2), 1.0) == pytest.approx(1 / 5)
    assert later_share(np.zeros(0), (), 1.0) == 0


def test_sizes_are_told_as_people_say_them():
    assert [readable_bytes(size) for size in (0, 1023, 1024, 1.5 * 2**30, 2**44, math.inf)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1.5 GiB",
        "16 TiB",
        "∞",
    ]


@pytest.mark.long
def test_a_large_run_is_simulated_soon():
    sizes = np.full(24_415, 4096)
    epochs = epochs_of(8, 8, sizes=sizes, batch_size=32, shuffle_block_size=None)
    setup = Setup(
        num_nodes=8,
        ranks_per_node=8,
        step_s=0.3,
        bandwidth_bytes_per_s=5e7,
        predownload=8192,
        batches_together=32,
        batches_per_chunk=256,
        num_steps=400,
    )
    began_s = time.monotonic()
    found = simulate(epochs, Spanner(sizes), [ShardCosts(64 << 20, 64 << 20)] * len(sizes), SampleSkips(None), setup)
    assert found.num_steps == 400
    # Some seconds on a machine that has nothing else to do.
    assert time.monotonic() - began_s < 60
