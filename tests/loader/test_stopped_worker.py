"""A worker that is stopped, by a debugger or a freezer, and not continued."""

import os
import signal

import pytest
import torch
from loader_examples import make
from own_workers import worker_pids

from fkat_data.errors import WorkerStalledError

pytestmark = pytest.mark.slow
# The start of a worker counts as waiting too.
OPTIONS = {"multiprocessing": True, "num_microbatch_prefetches": 0, "stall_timeout_s": 12.0}


def make_factory():
    """A factory that is shipped by value."""
    return lambda shard: (torch.tensor(index) for index in range(6))


def stop():
    """Stop the worker for good; it is asked for more than it has made by then."""
    os.kill(worker_pids()[0], signal.SIGSTOP)


def test_it_is_killed_after_the_timeout_and_another_goes_on_in_its_place():
    with make(["a"], make_factory(), max_worker_restarts=9, **OPTIONS) as loader:
        iterator = iter(loader)
        got = [int(next(iterator)), int(next(iterator))]
        pid = worker_pids()[0]
        stop()
        got.extend(map(int, iterator))
        assert got == [0, 1, 2, 3, 4, 5]
        assert loader.statistics().worker_restarts >= 1
        assert worker_pids()[0] != pid


def test_without_restarts_it_is_an_error_that_says_so():
    with make(["a"], make_factory(), **OPTIONS) as loader:
        iterator = iter(loader)
        next(iterator)
        stop()
        with pytest.raises(WorkerStalledError, match="does not answer"):
            list(iterator)
