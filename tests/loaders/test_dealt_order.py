"""Datasets and batch samplers that deal a plan out to ranks, in a loader."""

import json
import pickle
from collections import Counter
from itertools import islice

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler
from walks import at_state, begun, recorded, saved

from fkat_data import DataLoader, StateMismatchError
from fkat_data.datasets import (
    DictDataset,
    PackedDataset,
    PaddingCollate,
    TokenBudgetBatchSampler,
    attention_cost,
    collate_packed,
    dealt_order,
    equal_cost,
)
from fkat_data.mixing import DictBatchSampler, Weighted

LENGTHS = [1 + index * 7 % 13 for index in range(60)]
DOCUMENTS = [torch.full((length,), index) for index, length in enumerate(LENGTHS)]


def packed(rank, world_size, **options):
    dataset = PackedDataset(DOCUMENTS, 16, 20, lengths=LENGTHS, seed=1, rank=rank, world_size=world_size)
    return DataLoader(dataset, batch_size=2, collate_fn=collate_packed, **options)


def budgeted(rank, world_size):
    sampler = TokenBudgetBatchSampler(LENGTHS, 24, 20, seed=1, rank=rank, world_size=world_size)
    return DataLoader(DOCUMENTS, batch_sampler=sampler, collate_fn=PaddingCollate(-1))


def resumed_from(state, make, rank, world_size):
    return at_state(make(rank, world_size), json.loads(json.dumps(state)))


def tokens(batches):
    return [(batch["tokens"] if isinstance(batch, dict) else batch).tolist() for batch in batches]


@pytest.mark.parametrize("make", [packed, budgeted])
def test_a_part_resumes_at_each_position(make):
    whole, states = recorded(make(1, 3), lambda batch: tokens([batch])[0], 2)
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
    iterator = begun(loader, 1)
    within = loader.state_dict()
    with pytest.raises(StateMismatchError):
        tokens(resumed_from(within, make, 0, 3))
    list(iterator)
    resumed = resumed_from(loader.state_dict(), make, 0, 3)
    fresh = make(0, 3)
    list(fresh)
    assert resumed.epoch == 1
    assert tokens(resumed) == tokens(fresh)


# --- on other numbers of ranks -----------------------------------------------------------------------------------


def job_of(kind, lengths, num_ranks, state=None, *, size=2, drop_last=False):
    """The loaders of a job's ranks, each at its place in a state."""
    documents = [torch.full((length,), index) for index, length in enumerate(lengths)]
    loaders = []
    for rank in range(num_ranks):
        ranks = {"seed": 1, "rank": rank, "world_size": num_ranks}
        if "by cost" in kind:
            ranks |= {"cost": attention_cost(2), "accumulate": 2}
        if "budgeted" in kind:
            sampler = TokenBudgetBatchSampler(lengths, 16, 8, **ranks)
            loader = DataLoader(range(len(lengths)), batch_sampler=sampler, collate_fn=list)
        else:
            dataset = PackedDataset(documents, 8, 8, lengths=lengths, pad_value=-1, **ranks)
            options = {"shuffle": "shuffled" in kind, "drop_last": drop_last, "seed": 5}
            loader = DataLoader(dataset, size, collate_fn=documents_of, **options)
        if state is not None:
            loader.load_state_dict(state)
        loaders.append(loader)
    return loaders


def documents_of(sequences):
    """The documents of packed sequences."""
    return [document for sequence in sequences for document in set(sequence["tokens"].tolist()) - {-1}]


def check_trip(kind, lengths, trip, *, drop_last=False):
    """Deliver an epoch on one number of ranks after another.

    Args:
        kind: What deals out.
        lengths: Those of the documents.
        trip: For each number of ranks, how many microbatches each rank delivers before they stop; the last goes on to the
            end.
        drop_last: The loaders'.
    """
    how = {"drop_last": drop_last}
    state, found = None, Counter()
    for counts in trip:
        loaders = job_of(kind, lengths, len(counts), state, **how)
        again = job_of(kind, lengths, len(counts), saved(loaders), **how)
        places = [(loader.epoch, loader.step) for loader in loaders]
        assert [(loader.epoch, loader.step) for loader in again] == places
        for (epoch, step), loader, stop in zip(places, again, counts, strict=True):
            if epoch:
                continue
            count = 10**6 if counts is trip[-1] else stop
            length = len(loader)
            if not length:  # everything is left out
                return
            batches = list(islice(loader, count))
            assert step + len(batches) == length or loader.epoch == 0
            assert (loader.epoch, loader.step) == ((0, step + len(batches)) if step + len(batches) < length else (1, 0))
            found.update(document for batch in batches for document in batch)
        state = saved(again)
        if all(loader.epoch for loader in again):
            break
    assert all(loader.epoch == 1 for loader in again)
    assert not found - Counter(set(found))  # nothing comes twice
    if not drop_last:
        # Too few for each of the last ranks.
        assert len(set(range(len(lengths))) - set(found)) < len(counts)
    # The next epoch is that of ranks that have had none of this one.
    fresh = job_of(kind, lengths, len(counts), **how)
    for loader in fresh:
        list(loader)
    assert [list(loader) for loader in again] == [list(loader) for loader in fresh]


KINDS = ["packed", "packed, shuffled", "budgeted", "packed by cost", "packed by cost, shuffled", "budgeted by cost"]


@pytest.fixture(scope="module", autouse=True)
def short_horizons():
    """Have horizons of a few sequences or batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(equal_cost, "_ROUNDS_OF_A_HORIZON", 2)
        patch.setattr(equal_cost, "WINDOWS_OF_A_HORIZON", 1)
        patch.setattr(dealt_order, "WINDOWS_OF_A_HORIZON", 1)
        yield


@pytest.mark.long
@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.lists(st.integers(1, 8), min_size=4, max_size=60),
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=2, max_size=5),
    st.booleans(),
)
@example("packed, shuffled", [6, 1, 3, 3, 6, 6, 5], [[1], [0, 0]], True)  # nothing is left for two
def test_every_document_comes_once_whatever_ranks_an_epoch_has(kind, lengths, trip, drop_last):
    check_trip(kind, lengths, trip, drop_last=drop_last)


def test_an_epoch_is_finished_by_who_deals_it_out():
    """``deal_out()`` over the plan gives other ranks other batches than the arguments of the dataset or the sampler do."""
    for make in (packed, budgeted):
        own = [make(rank, 2) for rank in range(2)]
        dealt = [make(0, 1) for _ in range(2)]
        for rank, loader in enumerate(dealt):
            loader.deal_out(2, rank)
        for first, second in ((own, dealt), (dealt, own)):
            next(iter(first[0]))
            with pytest.raises(StateMismatchError, match=r"dealt_by.*deal_out\(\).*begin the next epoch"):
                second[0].load_state_dict(saved(first))
            for loader in first:
                list(loader)
                loader.end_epoch()
            second[1].load_state_dict(saved(first))
            assert (second[1].epoch, second[1].step) == (own[1].epoch, 0)


def test_ranks_that_shuffle_by_other_seeds_say_what_they_lack():
    lengths = [3] * 20
    loaders = job_of("packed, shuffled", lengths, 2)
    loaders[1].seed = 6
    for loader in loaders:
        next(iter(loader))
    dataset = PackedDataset(DOCUMENTS[:20], 8, 8, lengths=lengths, seed=1)
    with pytest.raises(StateMismatchError, match=r"seed.*the same on all ranks.*pass the loader of each rank"):
        DataLoader(dataset, 2, shuffle=True).load_state_dict(saved(loaders))


@pytest.mark.parametrize("how", ["end_epoch", "set num_workers", "copy"])
def test_the_next_packed_epoch_may_have_another_length(how):
    lengths = [1 + (7 * index + index * index) % 13 for index in range(120)]
    documents = [torch.full((length,), index) for index, length in enumerate(lengths)]

    def make():
        return DataLoader(PackedDataset(documents, 16, 20, lengths=lengths, seed=1), 2, collate_fn=collate_packed)

    whole = make()
    epochs = [tokens(whole), tokens(whole)]
    assert len(epochs[0]) != len(epochs[1])
    loader = make()
    if how == "end_epoch":
        next(iter(loader))
        loader = resumed_from(loader.state_dict(), lambda *_: make(), 0, 1)
        loader.end_epoch()
    else:
        list(loader)
        if how == "copy":
            loader = pickle.loads(pickle.dumps(loader))
        else:
            loader.timeout = 60
    assert (loader.epoch, tokens(loader)) == (1, epochs[1])


def mixed(rank, world_size):
    strategy = Weighted({"a": 1, "b": 2}, seed=1)
    dataset = DictDataset({"a": [{"tokens": document} for document in DOCUMENTS], "b": [{"tokens": DOCUMENTS[0]}] * 9})
    sampler = DictBatchSampler(strategy, {"a": BatchSampler(range(60), 4, False), "b": [[3], [4], [5]]})
    return DataLoader(dataset, batch_sampler=sampler, collate_fn=lambda samples: samples[0])


@pytest.mark.parametrize("make", [budgeted, mixed])
def test_an_epoch_after_one_that_was_left_resumes(make):
    """The state of a batch sampler that was left in an epoch is not where its next iteration begins."""
    loader = make(0, 1)
    list(islice(loader, 3))
    iterator = begun(loader, 1)
    assert loader.epoch == 1
    assert tokens(resumed_from(loader.state_dict(), make, 0, 1)) == tokens(iterator)


def test_what_another_batch_sampler_has_left_is_refused_by_the_load():
    loaders = job_of("budgeted", LENGTHS[:40], 2)
    for loader in loaders:
        next(iter(loader))
    (other,) = job_of("budgeted", LENGTHS[20:], 1)
    with pytest.raises(StateMismatchError, match="lengths"):
        other.load_state_dict(saved(loaders))
    assert (other.epoch, other.step) == (0, 0)
