import math

import pytest

from fkat_data.errors import ConfigurationError
from fkat_data.tools.simulation.setup import Setup

GIVEN = {"step_s": 0.1, "bandwidth_bytes_per_s": 1e9, "predownload": 64, "num_steps": 10}


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"num_nodes": 0}, "num_nodes"),
        ({"ranks_per_node": 1.5}, "ranks_per_node"),
        ({"workers_per_rank": -1}, "workers_per_rank"),
        ({"num_threads": 0}, "num_threads"),
        ({"predownload": -1}, "predownload"),
        ({"batches_per_chunk": 0}, "batches_per_chunk"),
        ({"cache_limit_bytes": 0}, "cache_limit_bytes"),
        ({"step_s": -0.1}, "step_s"),
        ({"step_s": math.inf}, "step_s"),
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
        Setup(**GIVEN | changes)


def test_what_can_be_simulated_is_taken():
    setup = Setup(**GIVEN | {"num_nodes": 3, "ranks_per_node": 2, "workers_per_rank": 4, "latency_s": 0, "step_s": 0})
    assert (setup.num_ranks, setup.batches_made_ahead) == (6, 8)
