"""What is made directly is what iterating makes: the same values, errors and random draws."""

import random

import numpy as np
import pytest
import torch
from drop_in_examples import Counted
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler
from torch.utils.data import dataloader as torch_dataloader

from fkat_data.seeding import seed_global_generators
from fkat_data.worker import fetch
from fkat_data.worker.fetch import direct_fetch, direct_iteration

pytestmark = pytest.mark.usefixtures("generators_as_they_were")


def is_direct(iterator):
    return type(iterator) is map


class Draws(Counted, Dataset):
    """Items that draw from every global generator."""

    def __getitem__(self, index):
        return torch.tensor([float(index), random.random(), np.random.random_sample(), float(torch.rand(()))])


class Together(Draws):
    """Items that are read together."""

    def __getitems__(self, indices):
        return [torch.tensor([-float(index)]) for index in indices]


class Row(Counted, IterableDataset):
    """Items in a row."""

    def __iter__(self):
        yield from (torch.tensor([float(index), random.random()]) for index in range(self.count))


def all_of(iterator):
    made = [microbatch.tolist() for microbatch in iterator]
    return made, random.random(), float(np.random.random_sample()), float(torch.rand(()))


@given(
    count=st.integers(0, 20),
    batch_size=st.one_of(st.none(), st.integers(1, 6)),
    kind=st.sampled_from([Draws, Together, Row]),
    order=st.sampled_from(["in order", "shuffled", "sampler", "batch sampler"]),
    drop_last=st.booleans(),
    has_generator=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_what_is_made_directly_is_what_iterating_makes(count, batch_size, kind, order, drop_last, has_generator, seed):
    def loader():
        generator = torch.Generator().manual_seed(seed) if has_generator else None
        dataset = kind(count)
        options = {"batch_size": batch_size, "generator": generator}
        if batch_size:
            options["drop_last"] = drop_last
        if kind is not Row and count:
            if order == "shuffled":
                options["shuffle"] = True
            elif order == "sampler":
                options["sampler"] = RandomSampler(dataset, generator=generator)
            elif order == "batch sampler":
                batches = BatchSampler(RandomSampler(dataset, generator=generator), batch_size or 2, drop_last)
                options = {"batch_sampler": batches, "generator": generator}
        return DataLoader(dataset, **options), generator

    found = []
    for iterate in (iter, direct_iteration):
        seed_global_generators(seed)
        made_by, generator = loader()
        iterator = iterate(made_by)
        assert is_direct(iterator) == (iterate is direct_iteration)
        found.append((all_of(iterator), generator is None or generator.get_state().tolist()))
    assert found[0] == found[1]


class OwnIterator(DataLoader):
    def _get_iterator(self):
        return super()._get_iterator()


class OwnIteration(DataLoader):
    def __iter__(self):
        yield from "abc"


class OwnIndices(DataLoader):
    @property
    def _index_sampler(self):
        return [[0], [1]]


@pytest.mark.parametrize("kind", [OwnIterator, OwnIteration, OwnIndices])
def test_a_data_loader_with_a_way_of_its_own_is_iterated(kind):
    loader = kind(Draws(3))
    before = torch.get_rng_state()
    assert direct_fetch(loader) is None
    assert torch.equal(before, torch.get_rng_state())
    assert not is_direct(direct_iteration(loader))


@pytest.mark.parametrize("options", [{"pin_memory": True}, {"num_workers": 1}])
def test_a_data_loader_that_does_more_than_fetch_is_iterated(options):
    assert direct_fetch(DataLoader(Draws(3), **options)) is None


@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
def test_a_data_loader_that_pins_memory_is_iterated():
    assert not is_direct(direct_iteration(DataLoader(Draws(3), pin_memory=True)))


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
def test_an_iterable_dataset_that_was_asked_for_its_length_is_iterated_as_torch_compares_with_it():
    loader = DataLoader(Row(3))
    assert direct_fetch(loader) is None
    assert is_direct(direct_iteration(loader))
    assert len(loader) == 3
    assert not is_direct(direct_iteration(loader))


def test_the_present_torch_is_known():
    """If this fails, torch has changed: compare its iterator with this module before its names are added."""
    for owner, method, names in fetch._KNOWN:
        assert set(getattr(owner, method).__code__.co_names) == names


@pytest.mark.parametrize("method", ["_next_data", "_next_index"])
def test_a_torch_that_does_something_else_is_iterated(method, monkeypatch):
    def other(self):
        return self.something_else()

    loader = DataLoader(Draws(3))
    monkeypatch.setattr(torch_dataloader._SingleProcessDataLoaderIter, method, other)
    assert direct_fetch(loader) is None
    assert not is_direct(direct_iteration(loader))
