"""Random walks of loaders and of ranks: what they deliver, and where they say they are, is what a plain model says.

A failing walk is made short and printed as a program, with its seed: `WALK_SEED=SEED` repeats it as the first one.
"""

import logging
import os

import pytest
import walk_data
from loader_faces import KINDS
from loader_walk import walked
from rank_faces import RANK_KINDS
from rank_walk import chained

# Of a machine with fewer cores than workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
#: Ways in which workers make microbatches.
PROCESSES = (
    {"num_workers": 1, "max_worker_restarts": 99},
    {"num_workers": 2, "prefetch_factor": 1, "max_worker_restarts": 99},
    {"num_workers": 2, "max_worker_restarts": 99},
)
THREADS = (
    {"num_workers": 1, "workers": "threads"},
    {"num_workers": 2, "prefetch_factor": 1, "workers": "threads"},
    {"num_workers": 3, "prefetch_factor": 2, "workers": "threads"},
)
WITH_STRANDS = "iterable, strands"
MADE_HERE = [kind for kind in KINDS if kind != WITH_STRANDS]


@pytest.fixture
def seeds(pytestconfig, caplog):
    """Return a function that gives as many seeds as there are walks in this lane: others in each run of the lane `whole`."""
    caplog.set_level(logging.CRITICAL, "fkat_data")  # of samples that are left out
    lane, first = pytestconfig.getoption("lane"), int(os.environ.get("WALK_SEED", "0"))

    def of_lane(fast, default, most):
        return range(first, first + {"fast": fast, "default": default}.get(lane, most))

    return of_lane


def check(walk, kind, seeds, hows=()):
    for seed in seeds:
        failure = walk(kind, seed, hows)
        if failure is not None:
            pytest.fail(failure.text(), pytrace=False)


@pytest.mark.parametrize("kind", MADE_HERE)
def test_any_walk_of_a_loader_is_as_its_model_says(kind, seeds):
    check(walked, kind, seeds(1, 3, 10))


@pytest.mark.parametrize("kind", MADE_HERE)
def test_any_walk_with_threads_is_as_its_model_says(kind, seeds, monkeypatch):
    monkeypatch.setattr(walk_data, "drawn", walk_data.drawn_by_item)
    check(walked, kind, seeds(1, 3, 10), THREADS)


@pytest.mark.parametrize("kind", KINDS)
def test_any_walk_with_worker_processes_some_of_which_are_killed_is_as_its_model_says(processes, kind, seeds):
    check(walked, kind, seeds(1, 1, 2), PROCESSES)


@pytest.mark.parametrize("kind", [kind for kind in RANK_KINDS if kind != WITH_STRANDS])
def test_over_any_chain_of_ranks_each_sample_comes_once(kind, seeds):
    check(chained, kind, seeds(1, 3, 6))


def test_over_any_chain_of_ranks_with_strands_each_sample_comes_once(processes, seeds):
    check(chained, WITH_STRANDS, seeds(1, 1, 2))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", MADE_HERE)
def test_any_of_many_walks_is_as_its_model_says(kind, seeds):
    check(walked, kind, seeds(500, 500, 500))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [kind for kind in RANK_KINDS if kind != WITH_STRANDS])
def test_over_any_of_many_chains_each_sample_comes_once(kind, seeds):
    check(chained, kind, seeds(300, 300, 300))
