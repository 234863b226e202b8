"""Datasets and batch samplers that deal a plan out to ranks, in a loader."""

import json

import pytest
import torch

from fkat_data import DataLoader, StateMismatchError
from fkat_data.datasets import PackedDataset, PaddingCollate, TokenBudgetBatchSampler, collate_packed

LENGTHS = [1 + index * 7 % 13 for index in range(60)]
DOCUMENTS = [torch.full((length,), index) for index, length in enumerate(LENGTHS)]


def packed(rank, world_size, **options):
    dataset = PackedDataset(DOCUMENTS, 16, 20, lengths=LENGTHS, seed=1, rank=rank, world_size=world_size)
    return DataLoader(dataset, batch_size=2, collate_fn=collate_packed, **options)


def budgeted(rank, world_size):
    sampler = TokenBudgetBatchSampler(LENGTHS, 24, 20, seed=1, rank=rank, world_size=world_size)
    return DataLoader(DOCUMENTS, batch_sampler=sampler, collate_fn=PaddingCollate(-1))


def resumed_from(state, make, rank, world_size):
    loader = make(rank, world_size)
    loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


def tokens(batches):
    return [(batch["tokens"] if isinstance(batch, dict) else batch).tolist() for batch in batches]


@pytest.mark.parametrize("make", [packed, budgeted])
def test_a_part_resumes_at_each_position(make):
    loader = make(1, 3)
    states = [loader.state_dict()]
    whole = []
    for _ in range(2):
        for batch in loader:
            whole += tokens([batch])
            states.append(loader.state_dict())
    for position, state in enumerate(states[:-1]):
        rest = tokens(resumed_from(state, make, 1, 3))
        assert rest == whole[position:][: len(rest)]
        assert rest


@pytest.mark.parametrize("make", [packed, budgeted])
def test_a_part_is_not_dealt_out_again(make):
    alone, dealt = make(1, 3), make(1, 3)
    dealt.deal_out(3, 1)
    assert tokens(dealt) == tokens(alone)


@pytest.mark.parametrize("make", [packed, budgeted])
def test_an_epoch_of_other_ranks_is_refused_and_the_next_one_begins(make):
    loader = make(0, 2)
    iterator = iter(loader)
    next(iterator)
    within = loader.state_dict()
    with pytest.raises(StateMismatchError):
        tokens(resumed_from(within, make, 0, 3))
    list(iterator)
    resumed = resumed_from(loader.state_dict(), make, 0, 3)
    fresh = make(0, 3)
    list(fresh)
    assert resumed.epoch == 1
    assert tokens(resumed) == tokens(fresh)


def old(state, num_samples):
    """The state that was saved while the number of ranks shaped the plan."""
    fields = {name: value for name, value in state.items() if name != "dataset_ranks"}
    if "num_samples" in fields["sampler"]:
        return {**fields, "sampler": {**fields["sampler"], "num_samples": num_samples}}
    (saved,) = fields["sampler"]["samplers"]
    saved = {name: value for name, value in saved.items() if name not in ("dealt", "lengths")} | {"version": 1}
    return {**fields, "sampler": {**fields["sampler"], "samplers": [saved]}}


@pytest.mark.parametrize("make", [packed, budgeted])
def test_the_old_order_of_several_ranks_is_refused_by_name_within_an_epoch(make):
    loader = make(0, 2)
    next(iter(loader))
    resumed = make(0, 2)
    with pytest.raises(StateMismatchError, match=r"order of several ranks has changed.*begin the next epoch"):
        resumed.load_state_dict(old(loader.state_dict(), 17))
    list(loader)
    loader.end_epoch()
    resumed.load_state_dict(old(loader.state_dict(), 17))
    assert resumed.epoch == loader.epoch
    assert tokens(resumed) == tokens(loader)


def test_states_of_one_rank_go_on_as_they_were():
    for make in (packed, budgeted):
        loader = make(0, 1)
        iterator = iter(loader)
        next(iterator)
        resumed = make(0, 1)
        resumed.load_state_dict(old(loader.state_dict(), len(loader.dataset)))
        assert tokens(resumed) == tokens(iterator)
