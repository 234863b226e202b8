"""Datasets, factories and samplers whose loaders' states are kept; workers import this module too.

Never change what one of these yields: the files under tests/golden say it. A sample is a tensor of its number and of a
draw from each global generator, so that two microbatches are equal only if their random bits are.
"""

import math
import random

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from fkat_data import ShardSampler, item_generators
from fkat_data.datasets import JsonDataset

#: All kinds of products, with shards without a microbatch at the start, in the middle and at the end.
SHARDS = [
    *("map-1-0", "map-2-5", "stream-3-3", "list-4-2", "generator-5-0", "skip-6-3"),
    *("map-7-1", "list-8-4", "generator-9-2", "stream-10-0"),
]


def drawn():
    """A number of 12 bits of each global generator."""
    return random.getrandbits(12) ^ int(np.random.randint(4096)) ^ int(torch.randint(4096, ()))


def sample(number):
    return torch.tensor([number, drawn()])


def _numbers_of(shard):
    _, name, count = shard.split("-")
    return [100 * int(name) + index for index in range(int(count))]


class ShardItems(Dataset):
    """A shard's samples by index."""

    def __init__(self, shard):
        self.numbers = _numbers_of(shard)

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        return sample(self.numbers[index])


class ShardRow(IterableDataset):
    """A shard's samples in a row."""

    def __init__(self, shard):
        self.numbers = _numbers_of(shard)

    def __iter__(self):
        return map(sample, self.numbers)


class Skippable:
    """A shard's microbatches, of which the first need not be made."""

    def __init__(self, shard, first=0):
        self.shard = shard
        self.first = first

    def skip(self, count):
        return Skippable(self.shard, self.first + count)

    def __iter__(self):
        return (sample(number)[None] for number in _numbers_of(self.shard)[self.first :])


def _generated(shard):
    for number in _numbers_of(shard):
        yield sample(number)[None]


def microbatches_of(shard):
    """Make of a shard the kind of product that its name says."""
    kind = shard.split("-", 1)[0]
    if kind == "map":
        items = ShardItems(shard)
        return TorchDataLoader(items, batch_size=2, shuffle=len(items) > 0)
    if kind == "stream":
        return TorchDataLoader(ShardRow(shard), batch_size=2)
    if kind == "list":
        return [sample(number)[None] for number in _numbers_of(shard)]
    return Skippable(shard) if kind == "skip" else _generated(shard)


def failing(shard):
    """Fail for some shards, before or behind their first microbatch."""
    if shard == "list-4-2":
        raise ValueError(shard)
    if shard == "list-8-4":
        return _failing_inside(shard)
    return microbatches_of(shard)


def _failing_inside(shard):
    yield sample(_numbers_of(shard)[0])[None]
    raise ValueError(shard)


class RotatingShards:
    """A user's sampler with a state: each epoch begins one shard later."""

    def __init__(self):
        self.epoch = self.index = 0

    def __iter__(self):
        shards = SHARDS[self.epoch :] + SHARDS[: self.epoch]
        while self.index < len(shards):
            self.index += 1
            yield shards[self.index - 1]
        self.epoch, self.index = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "index": self.index}

    def load_state_dict(self, state):
        self.epoch, self.index = state["epoch"], state["index"]


class EndlessShards:
    """A user's sampler with a state that never ends."""

    def __init__(self):
        self.next = 0

    def __iter__(self):
        while True:
            self.next += 1
            yield SHARDS[self.next * 7 % len(SHARDS)]

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class ShuffledInPlace(ShardSampler):
    """A subclass as users of the older system write them: a list, shuffled by python's global generator."""

    def __init__(self):
        super().__init__()
        self.shards = list(SHARDS)

    def __iter__(self):
        random.shuffle(self.shards)
        return super().__iter__()


class Numbers(Dataset):
    """Samples by index, with a length that a bucket sorts by."""

    def __init__(self, count, first=0):
        self.count = count
        self.first = first

    def __len__(self):
        return self.count

    def sort_key(self, index):
        return index * 7 % 13 + 1

    def __getitem__(self, index):
        return sample(self.first + index)


class Documents(Numbers):
    """Documents of tokens."""

    def __getitem__(self, index):
        return {"tokens": torch.full((self.sort_key(index),), self.first + index)}


class ItemDraws(Numbers):
    """Samples that draw from their own generators."""

    def __getitem__(self, index):
        own = item_generators()
        draw = own.python.getrandbits(12) ^ int(own.numpy.integers(4096))
        return torch.tensor([self.first + index, draw ^ int(torch.randint(4096, (), generator=own.torch))])


class Labelled(Numbers):
    """Samples that are mappings."""

    def __getitem__(self, index):
        return {"x": sample(self.first + index)}


class Row(IterableDataset):
    """Samples in a row, of which each worker has every nth."""

    def __init__(self, count):
        self.count = count

    def _part(self):
        info = get_worker_info()
        return (info.id, info.num_workers) if info else (0, 1)

    def __iter__(self):
        number, total = self._part()
        for value in range(number, self.count, total):
            yield sample(value)


class UnevenRow(Row):
    """Each worker has twice as many as the one before it."""

    def __iter__(self):
        number, _ = self._part()
        for value in range(self.count * 2**number):
            yield sample(100 * number + value)


class RowWithState(Row):
    """Has a state, and other samples in each epoch."""

    def __init__(self, count):
        super().__init__(count)
        self.next = self.epoch = 0

    def __iter__(self):
        number, total = self._part()
        while number + self.next * total < self.count:
            self.next += 1
            yield sample(1000 * self.epoch + number + (self.next - 1) * total)
        self.next, self.epoch = 0, self.epoch + 1

    def state_dict(self):
        return {"next": self.next, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.next, self.epoch = state["next"], state["epoch"]


class IteratorWithState(Row):
    """Its own iterator, which begins at the start whenever ``iter`` is called, and has a state."""

    def __iter__(self):
        self.next, self.step = self._part()
        return self

    def __next__(self):
        if self.next >= self.count:
            raise StopIteration
        self.next += self.step
        return sample(self.next - self.step)

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class BatchesWithState:
    """A user's batch sampler with a state, whose order depends on all epochs before."""

    def __init__(self, count, batch_size):
        self.count = count
        self.batch_size = batch_size
        self.random = random.Random(3)

    def __len__(self):
        return math.ceil(self.count / self.batch_size)

    def __iter__(self):
        order = self.random.sample(range(self.count), self.count)
        for first in range(0, self.count, self.batch_size):
            yield order[first : first + self.batch_size]

    def state_dict(self):
        version, words, gauss = self.random.getstate()
        return {"random": [version, list(words), gauss]}

    def load_state_dict(self, state):
        version, words, gauss = state["random"]
        self.random.setstate((version, tuple(words), gauss))


class DrawnOneByOne:
    """A user's sampler that draws each index from python's global generator when it is asked for."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        return (random.randrange(self.count) for _ in range(self.count))


def lines_of(folder, name):
    """Return a dataset of a file of JSON lines, which is written where it is not there yet."""
    path = folder / f"{name}.jsonl"
    if not path.exists():
        folder.mkdir(exist_ok=True)
        path.write_text("".join(f'{{"number": {100 * int(name) + index}}}\n' for index in range(9)))
    return JsonDataset(str(path))


def with_item_draws(row):
    """Add a draw from the sample's own generators."""
    own = item_generators()
    draw = own.python.getrandbits(12) ^ int(own.numpy.integers(4096))
    return {**row, "draw": draw ^ int(torch.randint(4096, (), generator=own.torch))}
