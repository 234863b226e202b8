"""Batches that are dealt out to ranks: those of accelerate's own sampler, and each position resumes."""

import pickle

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from drop_in_examples import Strand, Uneven
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, RandomSampler

from fkat_data import ConfigurationError, DataLoader, StateMismatchError


def dealt(num_ranks, *options, **arguments):
    """Return a loader for each rank, as processes that know nothing of one another have them."""
    deal = {name: arguments.pop(name) for name in ("even_batches", "split_batches") if name in arguments}
    if arguments.get("batch_size", 1) is not None:
        arguments["collate_fn"] = list
    loaders = [DataLoader(*options, **arguments) for _ in range(num_ranks)]
    for rank, loader in enumerate(loaders):
        loader.deal_out(num_ranks, rank, **deal)
    return loaders


@given(
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(2, 4),
    st.fixed_dictionaries({"drop_last": st.booleans(), "even_batches": st.booleans(), "split_batches": st.booleans()}),
    st.booleans(),
)
def test_each_rank_gets_the_batches_that_accelerate_would_give_it(num_samples, size, num_ranks, how, is_drawn):
    drop_last = how.pop("drop_last")
    batch_size = size * num_ranks if how["split_batches"] else size
    whole = BatchSampler(range(num_samples), batch_size, drop_last)
    arguments = {"batch_sampler": whole} if is_drawn else {"batch_size": batch_size, "drop_last": drop_last}
    for rank, loader in enumerate(dealt(num_ranks, range(num_samples), **arguments, **how)):
        expected = BatchSamplerShard(whole, num_ranks, rank, how["split_batches"], how["even_batches"])
        assert list(loader) == list(expected)
        assert len(loader) == len(list(expected))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=9), st.integers(2, 3), st.booleans())
def test_batches_without_a_size_are_dealt_out_whole(sizes, num_ranks, is_even):
    sampler = Uneven(sizes)
    for rank, loader in enumerate(dealt(num_ranks, range(40), batch_sampler=sampler, even_batches=is_even)):
        assert list(loader) == list(BatchSamplerShard(sampler, num_ranks, rank, even_batches=is_even))
        assert len(loader) == len(list(loader))


@pytest.mark.parametrize("order", ["shuffled", "items", "a generator", "torch's"])
def test_ranks_share_one_shuffle_and_any_rank_loads_the_state_of_another(order):
    def make():
        torch.manual_seed(5)
        ranks = []
        for rank in range(2):
            generator = torch.Generator().manual_seed(3)
            arguments = {
                "shuffled": {"shuffle": True, "batch_size": 2, "seed": 3},
                "items": {"shuffle": True, "batch_size": None, "seed": 3},
                "a generator": {"sampler": RandomSampler(range(17), generator=generator), "batch_size": 2},
                "torch's": {"sampler": RandomSampler(range(17)), "batch_size": 2, "seed": 3},
            }[order]
            ranks.append(dealt(2, range(17), **arguments)[rank])
        return ranks

    def flat(epoch):
        return [index for batch in epoch for index in (batch if isinstance(batch, list) else [batch])]

    ranks = make()
    epochs = [[list(loader) for loader in ranks] for _ in range(2)]
    for epoch in epochs:
        assert set(flat(epoch[0]) + flat(epoch[1])) == set(range(17))
        assert len(epoch[0]) == len(epoch[1])
    assert epochs[0] != epochs[1]
    ranks = make()
    iterators = [iter(loader) for loader in ranks]
    for _ in range(3):
        for iterator in iterators:
            next(iterator)
        states = [loader.state_dict() for loader in ranks]
        assert {**states[0], "seed": 0} == {**states[1], "seed": 0}
    for rank, other in enumerate(make()):
        other.load_state_dict(states[1 - rank])
        assert [list(other), list(other)] == [epochs[0][rank][3:], epochs[1][rank]]


def test_what_cannot_be_dealt_out_says_why():
    with pytest.raises(ConfigurationError, match="dp_rank"):
        DataLoader(Strand(range(9))).deal_out(2, 0)
    DataLoader(Strand(range(9)), dp_rank=0).deal_out(2, 0)
    with pytest.raises(ConfigurationError, match="a multiple of 2"):
        DataLoader(range(9), 3).deal_out(2, 0, split_batches=True)
    sampler = BatchSampler(range(9), 3, drop_last=False)
    sampler.__class__ = type("Odd", (BatchSampler,), {"__iter__": lambda self: iter([[0], [1, 2, 3], [4], [5]])})
    (first, _) = dealt(2, range(9), batch_sampler=sampler)
    with pytest.raises(ConfigurationError, match="without the attribute batch_size"):
        list(first)
    (own, _) = dealt(2, range(9))
    with pytest.raises(StateMismatchError, match="num_ranks"):
        DataLoader(range(9)).load_state_dict(own.state_dict())
    with pytest.raises(StateMismatchError, match="even_batches"):
        dealt(2, range(9), even_batches=False)[0].load_state_dict(own.state_dict())
    copied = pickle.loads(pickle.dumps(own))
    assert list(copied) == [[0], [2], [4], [6], [8]]


def test_a_loader_goes_to_an_epoch_that_its_seed_decides_on():
    loader = DataLoader(range(9), shuffle=True, seed=4, collate_fn=list)
    epochs = [list(loader) for _ in range(3)]
    other = DataLoader(range(9), shuffle=True, seed=4, collate_fn=list)
    other.set_epoch(2)
    assert list(other) == epochs[2]
    other.set_epoch(0)
    assert list(other) == epochs[0]
    with pytest.raises(ConfigurationError, match="needs the seed of"):
        DataLoader(range(9), shuffle=True).set_epoch(1)
    in_order = DataLoader(range(9), collate_fn=list)
    in_order.set_epoch(1)
    assert (list(in_order), in_order.epoch) == ([[number] for number in range(9)], 2)
    in_order.set_epoch(5)
    in_order.set_epoch(4)
    assert in_order.epoch == 4
    drawn = RandomSampler(range(9), generator=torch.Generator())
    with pytest.raises(ConfigurationError, match="depends on the epochs before"):
        DataLoader(range(9), sampler=drawn, seed=4).set_epoch(1)
    left = DataLoader(range(9), shuffle=True, seed=4, collate_fn=list)
    next(iter(left))
    left.set_epoch(1)
    assert list(left) == epochs[1]
    loaded = DataLoader(range(9), shuffle=True, seed=4, collate_fn=list)
    next(iter(left))
    loaded.load_state_dict(left.state_dict())
    loaded.set_epoch(2)
    with pytest.raises(StateMismatchError, match="epoch"):
        loaded.set_epoch(0)
