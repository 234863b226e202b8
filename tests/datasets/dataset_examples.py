"""Datasets for the tests of datasets around datasets; spawned workers import this module too."""

import random

import numpy as np
import torch
from torch.utils.data import DataLoader

from fkat_data.datasets import (
    BufferSortedDataset,
    DistributedShardedDataset,
    PackedDataset,
    PaddingCollate,
    ResumableSequentialSampler,
    ShardedDataset,
    TokenBudgetBatchSampler,
    collate_packed,
)


class Keyed:
    """Items that are their own index, with sort keys that are given."""

    def __init__(self, keys):
        self.keys = list(keys)
        self.asked = []

    def __len__(self):
        return len(self.keys)

    def sort_key(self, index):
        self.asked.append(index)
        return self.keys[index]

    def __getitem__(self, index):
        if not 0 <= index < len(self.keys):
            raise IndexError(index)
        return index


class Documents:
    """Documents of different lengths; each token says which document and which place it is of."""

    def __init__(self, lengths, name=0):
        self.lengths = [int(length) for length in lengths]
        self.name = name

    def __len__(self):
        return len(self.lengths)

    def sort_key(self, index):
        return self.lengths[index]

    def __getitem__(self, index):
        if not 0 <= index < len(self.lengths):
            raise IndexError(index)
        return self.name * 1_000_000 + index * 1000 + torch.arange(self.lengths[index])


class Together(list):
    """A dataset that notes what it is asked for at once."""

    asked = ()

    def __getitems__(self, indices):
        self.asked = (*self.asked, list(indices))
        return [self[index] for index in indices]


class CountedKeyed(Keyed):
    """Keeps a state of its own."""

    def __init__(self, keys, visits=0):
        super().__init__(keys)
        self.visits = visits

    def state_dict(self):
        return {"visits": self.visits}

    def load_state_dict(self, state_dict):
        self.visits = state_dict["visits"]


def documents_of(shard):
    """A shard's documents: ``name-count``; their lengths are a function of the name."""
    name, count = map(int, shard.split("-"))
    return Documents(random.Random(name).choices(range(1, 30), k=count), name)


def numbers_of(shard):
    """A shard's samples: ``name-count``; each carries a draw."""
    name, count = map(int, shard.split("-"))
    return [(1000 * name + index) for index in range(count)]


class Drawing:
    """Samples of a shard with a draw from each global generator, as augmentation has them."""

    def __init__(self, shard):
        self.numbers = numbers_of(shard)

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        draws = [random.random(), float(np.random.random_sample()), float(torch.rand(()))]
        return torch.tensor([self.numbers[index], *draws], dtype=torch.float64)


def bucketed(shard):
    """Sorted in buffers, padded."""
    dataset = BufferSortedDataset(documents_of(shard), 8, 3)
    return DataLoader(dataset, batch_size=3, collate_fn=PaddingCollate(-1))


def budgeted(shard):
    """Batches by tokens."""
    documents = documents_of(shard)
    sampler = TokenBudgetBatchSampler(documents, 60, 8)
    return DataLoader(documents, batch_sampler=sampler, collate_fn=PaddingCollate(-1))


def packed(shard):
    """Sequences of one length."""
    return DataLoader(PackedDataset(documents_of(shard), 32, 8), batch_size=2, collate_fn=collate_packed)


def viewed(shard):
    """The second of two views, in order."""
    view = ShardedDataset(Drawing(shard), 2, 1, "sequential", True)
    return DataLoader(view, batch_size=2, sampler=ResumableSequentialSampler(view))


def distributed(shard):
    """Shards within the shard."""
    inner = [f"{shard.split('-')[0]}{place}-{place + 2}" for place in range(3)]
    dataset = DistributedShardedDataset.from_uris(inner, dataset_type=Drawing, rank=0, world_size=1, shuffle=True)
    return DataLoader(dataset, batch_size=2)
