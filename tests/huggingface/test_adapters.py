"""accelerate's own loaders over this library's: a state that they gave, with the field that they add, resumes exactly."""

import copy

import pytest
from accelerate import Accelerator
from accelerate import data_loader as accelerates
from torch.utils.data import RandomSampler
from walks import at_state

from fkat_data import DataLoader

KINDS = [accelerates.DataLoaderShard, accelerates.DataLoaderDispatcher, accelerates.SkipDataLoader]
ORDERS = {
    "in order": dict,
    "shuffled": lambda: {"shuffle": True, "seed": 3},
    "by a sampler": lambda: {"sampler": RandomSampler(range(22)), "seed": 3},
}


@pytest.fixture(autouse=True)
def _is_accelerates_loader(monkeypatch):
    """Have accelerate make its loaders of this library's class, as it does of torchdata's."""
    monkeypatch.setattr(accelerates, "DataLoader", DataLoader)
    Accelerator(cpu=True)


def check_each_state(make):
    loader, epochs, states = make(), [], []
    for epoch in range(2):
        epochs.append([])
        for batch in loader:
            epochs[-1].append(batch.tolist())
            states.append((epoch, len(epochs[-1]), copy.deepcopy(loader.state_dict())))
    assert all("_iterator_finished" in state for _, _, state in states)
    for epoch, step, state in states:
        rest = epochs[epoch][step:] or (epochs[1] if epoch == 0 else None)
        if rest is not None:
            assert [batch.tolist() for batch in at_state(make(), state)] == rest, (epoch, step)
    loader.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS)
def test_each_state_of_accelerates_own_loaders_resumes_exactly(kind, order):
    check_each_state(lambda: kind(list(range(22)), batch_size=4, **ORDERS[order]()))


def test_a_state_of_accelerates_own_loader_resumes_with_workers(processes):
    def make():
        return accelerates.DataLoaderShard(list(range(22)), batch_size=4, num_workers=1, shuffle=True, seed=3)

    loader = make()
    batches = iter(loader)
    had = [next(batches).tolist() for _ in range(3)]
    state = copy.deepcopy(loader.state_dict())
    had += [batch.tolist() for batch in batches]
    resumed = at_state(make(), state)
    assert [batch.tolist() for batch in resumed] == had[3:]
    for each in (loader, resumed):
        each.close()
