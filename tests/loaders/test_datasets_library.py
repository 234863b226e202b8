"""Datasets that behave as those of the library ``datasets`` do, which the tests do not install."""

import copy
from itertools import chain, islice

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset as TorchIterableDataset
from walks import at_state, recorded

from fkat_data import DataLoader, StateMismatchError

COUNT = 20
_MODULE = "datasets.iterable_dataset"


class Source:
    """Numbers, and how many were given."""

    def __init__(self):
        self.state = {"given": 0}

    def __iter__(self):
        while self.state["given"] < COUNT:
            self.state["given"] += 1
            yield self.state["given"] - 1


class BufferShuffledExamplesIterable:
    """A buffer that no state has."""

    def __init__(self, inner, seed):
        self.inner = inner
        self.generator = np.random.default_rng(seed)

    @property
    def state(self):
        return self.inner.state

    @state.setter
    def state(self, state):
        self.inner.state = state

    def __iter__(self):
        held = list(self.inner)
        order = np.random.default_rng(int(self.generator.bit_generator.state["state"]["state"] % 2**32))
        return (held[index] for index in order.permutation(len(held)))


class IterableDataset(TorchIterableDataset):
    """Begins where the state that was loaded last says, again and again."""

    def __init__(self, seed=None, *, is_shuffled=False):
        self._ex_iterable = BufferShuffledExamplesIterable(Source(), seed) if is_shuffled else Source()
        self._starting_state_dict = None
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        self._ex_iterable.state = {"given": 0}
        if self._starting_state_dict and self._starting_state_dict["epoch"] == self.epoch:
            self._ex_iterable.state = dict(self._starting_state_dict["source"])
        yield from self._ex_iterable

    def state_dict(self):
        return {"source": dict(self._ex_iterable.state), "epoch": self.epoch}

    def load_state_dict(self, state):
        self._starting_state_dict = state


for _kind in (Source, BufferShuffledExamplesIterable, IterableDataset):
    _kind.__module__ = _MODULE


def batches(loader):
    return [batch.tolist() for batch in loader]


def numbers(delivered):
    return sorted(chain.from_iterable(delivered))


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_each_place_of_two_epochs_resumes_and_the_epochs_after_it_are_whole(is_shuffled):
    def make():
        return DataLoader(IterableDataset(3, is_shuffled=is_shuffled), 3, seed=1)

    loader = make()
    delivered, states = recorded(loader, torch.Tensor.tolist, 2)
    delivered += batches(loader)
    assert numbers(delivered) == sorted([*range(COUNT)] * 3)
    for index, state in enumerate(states):
        resumed = at_state(make(), state)
        found = []
        while resumed.epoch < 3:
            found += batches(resumed)
        assert found == delivered[index:]


@pytest.mark.parametrize("num_delivered", range(1, 8))
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_a_copy_has_the_whole_epoch_before_a_resume_and_after_it(is_shuffled, num_delivered):
    def make():
        return DataLoader(IterableDataset(3, is_shuffled=is_shuffled), 3, seed=1)

    loader = make()
    expected = batches(loader)
    for epoch in range(1, 3):
        delivered = [batch.tolist() for batch in islice(loader, num_delivered)]
        copied = copy.deepcopy(loader)
        assert copied.epoch == loader.epoch
        assert [batches(copied) for _ in range(2)] == [expected] * 2
        assert delivered == expected[:num_delivered]
        loader.end_epoch()
        assert loader.epoch == epoch + (num_delivered > 0)
    saved = make()
    list(islice(saved, 2))
    loader.load_state_dict(saved.state_dict())
    rest = [batch.tolist() for batch in islice(loader, min(num_delivered, 4) + 1)]
    assert rest == expected[2:][: len(rest)]
    copied = copy.deepcopy(loader)
    assert [batches(copied) for _ in range(2)] == [expected] * 2


def test_a_state_of_the_users_own_stays_where_an_epoch_begins():
    dataset = at_state(IterableDataset(), {"source": {"given": 15}, "epoch": 0})
    loader = DataLoader(dataset, 3, seed=1)
    assert batches(loader) == [[15, 16, 17], [18, 19]]
    loader.load_state_dict(loader.state_dict()["place"][0] | {"epoch": 0, "step": 0})
    assert batches(loader) == [[15, 16, 17], [18, 19]]


def test_another_order_of_the_dataset_is_refused():
    dataset = IterableDataset(3, is_shuffled=True)
    dataset.set_epoch(1)
    loader = DataLoader(dataset, 3, seed=1)
    first = next(iter(loader)).tolist()
    state = loader.state_dict()
    other = IterableDataset(3, is_shuffled=True)
    resumed = at_state(DataLoader(other, 3, seed=1), state)
    with pytest.raises(StateMismatchError, match=r"dataset_order.epoch.*dataset\.set_epoch\(1\)"):
        iter(resumed)
    other.set_epoch(1)
    assert numbers([first, *batches(resumed)]) == list(range(COUNT))
    unseeded = IterableDataset(None, is_shuffled=True)
    unseeded.set_epoch(1)
    resumed = at_state(DataLoader(unseeded, 3, seed=1), state)
    with pytest.raises(StateMismatchError, match=r"dataset_order.shuffle.*shuffle\(\) the seed"):
        iter(resumed)
