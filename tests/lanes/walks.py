"""What tests do with a loader of any kind: begin an epoch, write down a run, gather states and load them, wait."""

import json
import time

import pytest
from patience import PATIENCE_S, Patience

__all__ = ["at_state", "begun", "both_modes", "delivered", "gathered", "recorded", "saved", "wait_until"]

both_modes = pytest.mark.parametrize("multiprocessing", [False, True], ids=["in process", "worker process"])


def at_state(resumed, state):
    """Return what is to be resumed after it has loaded a state."""
    resumed.load_state_dict(state)
    return resumed


def begun(loader, count):
    """Return the iterator of a loader's next epoch after so many microbatches."""
    iterator = iter(loader)
    for _ in range(count):
        next(iterator)
    return iterator


def delivered(loader, count):
    """Return what a loader of windows delivers of its first epoch, so many microbatches at most; None: all."""
    if loader.epoch or count == 0:
        return []
    found, iterator = [], iter(loader)
    while len(found) != count and (batch := next(iterator, None)) is not None:
        if (loader.epoch, loader.step) > (1, 0):  # nothing was left, and the next epoch has begun
            assert loader.take_back()
            break
        found.append(batch)
    return found


def recorded(loader, shown, num_epochs=1):
    """Return the microbatches up to the end of an epoch, as ``shown`` shows them, and the state before each and at the end."""
    microbatches, states = [], [loader.state_dict()]
    while loader.epoch < num_epochs:
        for microbatch in loader:
            microbatches.append(shown(microbatch))
            states.append(loader.state_dict())
    return microbatches, states


def gathered(loaders):
    """Return the state of all ranks, of states that went through JSON."""
    return loaders[0].merge_state_dicts([json.loads(json.dumps(loader.local_state_dict())) for loader in loaders])


def saved(loaders):
    """Return the state of all ranks, as a file of JSON would have it."""
    return json.loads(json.dumps(gathered(loaders)))


def wait_until(condition, timeout_s=PATIENCE_S):
    """Wait until something is so, or fail."""
    patience = Patience(timeout_s)
    while not condition():
        assert not patience.is_over()
        time.sleep(0.01)
