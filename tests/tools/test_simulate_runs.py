"""The simulation against runs of the real loader over a store on this machine, from a cold cache."""

import math

import pytest
from real_run import measured, write
from throttled_store import ThrottledStore

from fkat_data.streaming import StreamingDataset, World
from fkat_data.tools import simulate_dataset

# Slow: on a machine with other jobs a clock proves nothing.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("processes")]

#: What a run takes and what it waits may be off by so much, and by what a machine with other jobs makes of some seconds.
TOLERANCE = 0.15
NOISE_S = 0.5

ORDER = {"batch_size": 8, "shuffle": True, "shuffle_algo": "block", "shuffle_block_size": 100}
#: Shards of 400 KB; (ranks, workers, epochs, seconds of a step, bytes a second, latency, options, shards).
RUNS = {
    "a slow line": (1, 0, 1, 0.01, 3e6, 0.02, {"predownload": 100}, 40),
    "a line that just does": (1, 0, 1, 0.08, 3e6, 0.02, {"predownload": 100}, 40),
    "a long latency": (1, 0, 1, 0.02, 50e6, 1.0, {"predownload": 20}, 40),
    "two ranks": (2, 0, 1, 0.05, 3e6, 0.05, {"predownload": 60}, 60),
    "a small cache": (2, 0, 2, 0.02, 6e6, 0.02, {"predownload": 60, "cache_limit": "4mb"}, 40),
    "two workers": (1, 2, 1, 0.03, 4e6, 0.05, {"predownload": 100}, 40),
    "compressed": (1, 0, 1, 0.02, 2e6, 0.02, {"predownload": 100}, 40),
    "two epochs of a cache for both": (1, 0, 2, 0.03, 4e6, 0.02, {"predownload": 100}, 40),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_takes_as_long_as_its_simulation(name, tmp_path):
    num_ranks, num_workers, num_epochs, step_s, bytes_per_s, latency_s, options, num_shards = RUNS[name]
    compression = {"compression": "zstd"} if name == "compressed" else {}
    data = write(tmp_path / "data", 3 * num_shards, 20, 20_000, **compression)
    with ThrottledStore(data, bytes_per_s, latency_s) as store:
        given = ORDER | options | {"remote": store.url, "local": str(tmp_path / "cache")}
        duration_s, waits_s = measured(num_ranks, num_workers, num_epochs, step_s, given)
    dataset = StreamingDataset(**ORDER | options | {"local": str(data)}, world=World(1, num_ranks, 1, 0))
    found = simulate_dataset(
        dataset,
        num_nodes=1,
        ranks_per_node=num_ranks,
        workers_per_rank=num_workers,
        # What torch takes to start them is measured: it is not what is simulated.
        worker_start_s=waits_s[0] if num_workers else 0.0,
        step_s=step_s,
        bandwidth_bytes_per_s=bytes_per_s,
        latency_s=latency_s,
        num_epochs=num_epochs,
    )
    print(
        f"{name}: took {duration_s:.2f} s, simulated {found.duration_s:.2f} s; waited {sum(waits_s):.2f} s, "
        f"simulated {found.waited_s:.2f} s; first {waits_s[0]:.2f} s, simulated {found.first_batch_s:.2f} s; "
        f"fetched {sum(store.sent_bytes.values()):,}, simulated {sum(node.fetched_bytes for node in found.nodes):,}"
    )
    assert len(waits_s) == found.num_steps
    assert math.isclose(duration_s, found.duration_s, rel_tol=TOLERANCE, abs_tol=NOISE_S)
    assert math.isclose(sum(waits_s), found.waited_s, rel_tol=TOLERANCE, abs_tol=NOISE_S)
