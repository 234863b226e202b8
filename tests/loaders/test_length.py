"""The length of a loader is that of the epoch under way, or of the next one."""

import pytest
import torch
from drop_in_examples import Lengths
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from walks import at_state, begun

from fkat_data import DataLoader
from fkat_data.datasets import BufferSortedDataset, MapDataset, PackedDataset, TokenBudgetBatchSampler
from fkat_data.mixing import DictBatchSampler, Weighted

LENGTHS = [1 + (7 * index + index * index) % 13 for index in range(120)]
DOCUMENTS = [torch.full((length,), index) for index, length in enumerate(LENGTHS)]


def packed(**options):
    return PackedDataset(DOCUMENTS, 16, 20, lengths=LENGTHS, seed=1, **options)


def by_tokens(seed):
    return TokenBudgetBatchSampler(LENGTHS, 26, 20, seed=seed)


def made(dataset, size=1, **options):
    return DataLoader(dataset, size, collate_fn=list, seed=3, **options)


def drawn(dataset):
    return made(dataset, sampler=RandomSampler(dataset))


def dealt_out(loader):
    loader.deal_out(1, 0)
    return loader


def mixed():
    names = {"a": 1.0, "b": 2.0}
    return DictBatchSampler(Weighted(names), {name: by_tokens(seed) for seed, name in enumerate(names)})


class Pairs:
    """Takes pairs of a name and indices."""

    def __len__(self):
        return 120

    def __getitems__(self, pair):
        return [pair]


KINDS = {
    "packed": lambda: made(packed()),
    "packed, shuffled": lambda: made(packed(), 2, shuffle=True),
    "packed, drawn": lambda: drawn(packed()),
    "packed for a rank": lambda: made(packed(rank=1, world_size=2)),
    "packed, dealt out": lambda: dealt_out(made(packed(), 2)),
    "a view of it": lambda: made(MapDataset(packed(), list)),
    "by tokens": lambda: made(range(120), batch_sampler=by_tokens(3)),
    "mixed": lambda: made(Pairs(), batch_sampler=mixed()),
    "sorted": lambda: made(BufferSortedDataset(Lengths(23), 8, 4, init_seed=3), 3),
    "given batches": lambda: made(
        range(23), batch_sampler=BatchSampler(SequentialSampler(range(23)), 4, drop_last=True)
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_before_and_within_each_epoch_the_length_is_what_it_delivers(kind):
    loader, lengths = KINDS[kind](), set()
    for _ in range(3):
        length = len(loader)
        found = [len(loader) for _ in loader]
        assert found == [length] * length
        lengths.add(length)
    assert len(lengths) > 1 or kind in ("sorted", "given batches", "mixed")


@pytest.mark.parametrize("kind", KINDS)
def test_after_an_epoch_that_was_left_or_loaded_the_length_is_that_of_the_next_iteration(kind):
    with KINDS[kind]() as loader:
        list(loader)
        iterator = begun(loader, 2)
        length, state = len(iterator), loader.state_dict()
        assert len(loader) == length
        del iterator
        next_length = len(loader)
        other = at_state(KINDS[kind](), state)
        assert len(other) == length
        assert 2 + sum(1 for _ in other) == length
        assert len(other) == sum(1 for _ in other)
        assert loader.state_dict() == state
        assert sum(1 for _ in loader) == next_length
        loader.end_epoch()
        assert len(loader) == sum(1 for _ in loader)


def test_a_batch_size_that_is_set_changes_the_length_of_the_next_epoch():
    loader = made(range(20), 2)
    iterator = begun(loader, 1)
    loader.batch_sampler.batch_size = 5
    assert (len(loader), len(iterator), sum(1 for _ in iterator)) == (10, 10, 9)
    assert len(loader) == 4
    loader.batch_sampler.batch_size = 4
    assert len(loader) == 5
