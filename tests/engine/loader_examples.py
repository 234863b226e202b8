"""Datasets, factories and helpers for the tests of the loader; spawned workers import this module too.

A shard's name says what it holds: ``kind-name-count``, for example ``map-a-5``. Each sample carries draws from all
three generators, so that two microbatches are equal only if their random bits are.
"""

import os
import random
import signal
import threading
from itertools import islice

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from fkat_data import ShardedDataLoader

#: All kinds of products, empty shards at the start, in the middle and twice at the end.
MIXED = [
    "map-a-0",
    "map-b-5",
    "stream-c-3",
    "list-d-2",
    "generator-e-0",
    "skip-f-3",
    "map-g-1",
    "generator-h-2",
    "stream-i-0",
    "list-j-0",
]

#: With a time-out, the caller's thread makes nothing while workers start.
OF_WORKERS = {"stall_timeout_s": 600.0}


def count_of(shard):
    return int(shard.rsplit("-", 1)[1])


def sample(shard, index):
    """One sample: what it is, and a draw from each generator."""
    name = sum(ord(character) * 31**place for place, character in enumerate(shard)) % 65537
    draws = [random.random(), float(np.random.random_sample()), float(torch.rand(()))]
    return torch.tensor([name, index, *draws], dtype=torch.float64)


class OfShard:
    """As many samples as the shard's name says."""

    def __init__(self, shard):
        self.shard = shard
        self.count = count_of(shard)


class MapDataset(OfShard, Dataset):
    """Samples by index."""

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return sample(self.shard, index)


class StreamDataset(OfShard, IterableDataset):
    """Samples in a row, and no length."""

    def __iter__(self):
        for index in range(self.count):
            yield sample(self.shard, index)


class SkippingProduct:
    """A product of the user's own that can start later; it has never more than one microbatch in hand."""

    def __init__(self, shard, first=0):
        self.shard = shard
        self.first = first

    def skip(self, count):
        return SkippingProduct(self.shard, self.first + count)

    def __iter__(self):
        for index in range(self.first, count_of(self.shard)):
            yield {"sample": sample(self.shard, index), "text": f"{self.shard}/{index}"}


def generate(shard):
    for index in range(count_of(shard)):
        yield {"sample": sample(shard, index), "text": shard}


def mixed(shard):
    """A factory that makes of each shard the kind of product that its name says."""
    kind = shard.split("-", 1)[0]
    if kind == "map":
        dataset = MapDataset(shard)
        return DataLoader(dataset, batch_size=2, shuffle=len(dataset) > 0)  # torch shuffles no empty dataset
    if kind == "stream":
        return DataLoader(StreamDataset(shard), batch_size=2)
    if kind == "nested":
        return DataLoader(MapDataset(shard), batch_size=2, shuffle=True, num_workers=2)
    if kind == "list":
        return [sample(shard, index) for index in range(count_of(shard))]
    if kind == "skip":
        return SkippingProduct(shard)
    return generate(shard)


def make(shards=MIXED, factory=mixed, *, seed=7, multiprocessing=False, **options):
    """A loader, in process unless said otherwise."""
    return ShardedDataLoader(seed, shards, factory, multiprocessing=multiprocessing, **options)


def plain(microbatch):
    """A microbatch as values that compare."""
    if isinstance(microbatch, (torch.Tensor, np.ndarray)):
        return microbatch.tolist()
    if isinstance(microbatch, dict):
        return {key: plain(value) for key, value in microbatch.items()}
    return [plain(value) for value in microbatch] if isinstance(microbatch, (list, tuple)) else microbatch


def generators():
    """The states of the global random generators, and the number of threads, to compare."""
    return (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist(), torch.get_num_threads())


def following(loader, count):
    """The loader's next microbatches, over as many epochs as it takes."""
    found = []
    while len(found) < count:
        found += map(plain, islice(loader, count - len(found)))
    return found


def epoch(loader):
    """All that the loader's next loop yields."""
    return [plain(microbatch) for microbatch in loader]


def same_state(first, second):
    """Whether two states are one, tensors included."""
    return plain_state(first) == plain_state(second)


def plain_state(value):
    if isinstance(value, torch.Tensor):
        return ("tensor", value.dtype, value.tolist())
    if isinstance(value, dict):
        return {key: plain_state(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_state(item) for item in value]
    return value


def bounded(function, loader, timeout_s=60):
    """Run a function that may hang on the loader's pipe; a wait that long is ended by ending the workers."""
    from own_workers import worker_pids  # not where workers import this module

    timer = threading.Timer(timeout_s, lambda: [os.kill(pid, signal.SIGKILL) for pid in worker_pids()])
    timer.start()
    try:
        return function()
    finally:
        timer.cancel()
        timer.join()
