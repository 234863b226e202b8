"""Datasets that resume exactly, and datasets that do not; spawned workers import this module too."""

import itertools
import os
import random
import sys
import time
import uuid

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from fkat_data import ShardedDataLoader

SHARDS = ["1", "2", "3"]
SAMPLES = 8
BATCH_SIZE = 2


class Exact(Dataset):
    """Draws from the generators that the loader seeds."""

    def __init__(self, shard):
        self.shard = int(shard)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        draws = [random.random(), float(np.random.random_sample()), float(torch.rand(()))]
        return {"index": self.shard * 100 + index, "draw": torch.tensor([*draws, self.extra()], dtype=torch.float64)}

    def extra(self):
        return 0.0


class OwnGenerator(Exact):
    def __init__(self, shard):
        super().__init__(shard)
        self.generator = np.random.default_rng()

    def extra(self):
        return self.generator.random()


class OwnRandom(Exact):
    def extra(self):
        return random.Random().random()


class Clock(Exact):
    def extra(self):
        return time.time_ns() % 1_000_003


class Entropy(Exact):
    def extra(self):
        return uuid.uuid4().int % 1_000_003


class Counter(Exact):
    def __init__(self, shard):
        super().__init__(shard)
        self.count = 0

    def extra(self):
        self.count += 1
        return self.count


class SetOrder(Exact):
    def extra(self):
        return int("".join(f"{ord(letter):03}" for letter in {*"abcdef"}))


class ProcessId(Exact):
    def extra(self):
        return os.getpid()


calls = itertools.count()


class GlobalCount(Exact):
    def extra(self):
        return next(calls)


class ProcessState(Exact):
    def extra(self):
        return float("pytest" in sys.modules)


class Failing(Exact):
    def extra(self):
        if self.shard == 2:
            raise OSError("the disk is on fire")
        return 0.0


class Hanging(Exact):
    def extra(self):
        time.sleep(1000)


class HiddenBuffer(IterableDataset):
    """Shuffles through a buffer that it does not empty at a shard's end: what is left comes first in the next."""

    def __init__(self, buffer):
        self.shard = 0
        self.buffer = buffer

    def __iter__(self):
        for index in range(SAMPLES):
            self.buffer.append(self.shard * 100 + index)
            if len(self.buffer) > 3:
                yield self.buffer.pop(random.randrange(len(self.buffer)))


class BufferFactory:
    """Keeps one dataset for all shards."""

    def __init__(self):
        self.dataset = HiddenBuffer([])

    def __call__(self, shard):
        self.dataset.shard = int(shard)
        return DataLoader(self.dataset, batch_size=BATCH_SIZE)


class Backwards:
    """A product whose ``skip`` gives what is left the other way round."""

    def __init__(self, shard, places=range(SAMPLES)):
        self.shard = shard
        self.places = places

    def __iter__(self):
        return (f"{self.shard}/{place}" for place in self.places)

    def skip(self, count):
        return Backwards(self.shard, self.places[count:][::-1])


class FailingSkip(Backwards):
    def skip(self, count):
        raise LookupError(f"cannot skip {count}")


class Factory:
    """Makes a DataLoader of a dataset."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __call__(self, shard):
        return DataLoader(self.dataset(shard), batch_size=BATCH_SIZE, shuffle=True)


def maker(factory, shards=tuple(SHARDS)):
    """A function that makes loaders; a dataset class counts as its factory."""

    def make_loader(**overrides):
        made = Factory(factory) if isinstance(factory, type) and issubclass(factory, Dataset) else factory()
        return ShardedDataLoader(7, list(shards), made, **overrides)

    return make_loader
