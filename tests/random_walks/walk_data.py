"""Datasets, samplers, shards and functions of random walks: they draw at random, and fail while a file is there."""

import atexit
import contextlib
import random
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from fkat_data import DataLoader, item_generators
from fkat_data.samplers import ShardSampler

SEED = 20


class FailedError(Exception):
    """What datasets raise on purpose."""


_FOLDER = tempfile.mkdtemp()
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
#: While this file is there, datasets fail: they have its path, in workers as well.
FAULT = Path(_FOLDER) / "fault"


@contextlib.contextmanager
def fault():
    """Let every dataset fail."""
    FAULT.touch()
    try:
        yield
    finally:
        FAULT.unlink()


def check(path):
    if path.exists():
        raise FailedError


def seeded(seed):
    """Give the program's generators the state that a run begins with."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextlib.contextmanager
def undisturbed():
    """Leave the program's generators as they were."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def drawn():
    """Return a draw from each generator."""
    return random.random(), float(np.random.random_sample()), float(torch.rand(()))


def drawn_by_item():
    """Return a draw from each generator that threads have of their own."""
    own = item_generators()
    return own.python.random(), float(own.numpy.random()), float(torch.rand((), generator=own.torch))


class Samples(Dataset):
    """A number and what is drawn for it."""

    def __init__(self, count, bad=(), *, is_of_items=False):
        self.count, self.bad, self.is_of_items, self.path = count, bad, is_of_items, FAULT

    def __len__(self):
        return self.count

    def sort_key(self, index):
        return index * 7 % 13 + 1

    def __getitem__(self, index):
        check(self.path)
        if index in self.bad:
            raise ValueError(f"sample {index} cannot be read")
        if self.is_of_items:
            return index, item_generators().python.random(), float(torch.rand((), generator=item_generators().torch))
        return index, *drawn()


class Documents(Samples):
    """Tokens that say of which document they are."""

    def __getitem__(self, index):
        check(self.path)
        return index * 100 + torch.arange(self.sort_key(index))


class Backwards(Sampler):
    """An order of the user's that is the same each time."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        return reversed(range(self.count))


class Drawing(Backwards):
    """Draws each index when it is asked for."""

    def __iter__(self):
        for _ in range(self.count):
            yield int(torch.randint(self.count, ())) if random.random() < 0.5 else random.randrange(self.count)


class Permuted(Backwards):
    """Draws an order, index by index, from a generator of its own."""

    def __init__(self, count):
        super().__init__(count)
        self.generator = torch.Generator().manual_seed(3)

    def __iter__(self):
        left = [*range(self.count)]
        while left:
            yield left.pop(int(torch.randint(len(left), (), generator=self.generator)))


class Items(IterableDataset):
    """Numbers and draws, of which each worker has its part."""

    counts_workers_of_all_ranks = False

    def __init__(self, count, form="generator"):
        self.count, self.form, self.path = count, form, FAULT
        self.next = 0

    def numbers(self):
        info = get_worker_info()
        return range(info.id, self.count, info.num_workers) if info else range(self.count)

    def __iter__(self):
        return Iterated(self.numbers(), self.path) if self.form == "iterator with a state" else self.generate()

    def generate(self):
        for number in self.numbers():
            check(self.path)
            yield number, *drawn()


class Iterated:
    """An iterator with a state."""

    def __init__(self, numbers, path):
        self.numbers, self.index, self.path = numbers, 0, path

    def __iter__(self):
        return self

    def __next__(self):
        if self.index == len(self.numbers):
            raise StopIteration
        check(self.path)
        self.index += 1
        return self.numbers[self.index - 1], *drawn()

    def state_dict(self):
        return {"index": self.index}

    def load_state_dict(self, state):
        self.index = state["index"]


class RememberingItems(Items):
    """A dataset with a state."""

    def __iter__(self):
        numbers = self.numbers()
        while self.next < len(numbers):
            check(self.path)
            self.next += 1
            yield numbers[self.next - 1], *drawn()
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class Rows:
    """Makes so many rows of each sample, by its number; none of the window that begins an order in some cases."""

    def __init__(self, counts):
        self.counts = counts

    def __call__(self, samples):
        found = []
        for sample in samples:
            number = int(sample["number"] if isinstance(sample, dict) else sample[0])
            found += [(sample, row) for row in range(self.counts[number % len(self.counts)])]
        return [(row, sample, drawn()[-1]) for sample, row in found]


class Shards(ShardSampler):
    """Another order each epoch, of the user's own."""

    def __init__(self, names):
        self.names = names

    def shards(self, epoch):
        turn = epoch % len(self.names)
        return [*self.names[turn:], *self.names[:turn]]


def labelled(sample):
    return {"sample": sample}


def as_list(samples):
    return samples


def list_after_check(path, samples):
    check(path)
    return samples


def opened(shard):
    """Make what a shard's name says: kind, number, count."""
    kind, _, count = shard.split("-")
    samples = Samples(int(count))
    if kind == "map":
        order = {"shuffle": True} if int(count) else {}
        return DataLoader(samples, 2, collate_fn=as_list, **order)
    if kind == "stream":
        return DataLoader(Items(int(count)), 2, collate_fn=as_list)
    if kind == "skip":
        return Skippable(shard, int(count))
    if kind == "list":
        return [(shard, index) for index in range(int(count))]
    return of_generator(shard, int(count), FAULT)


def of_generator(shard, count, path):
    for index in range(count):
        check(path)
        yield shard, index, *drawn()


class Skippable:
    """A product that begins anywhere."""

    def __init__(self, shard, count, first=0):
        self.shard, self.count, self.first, self.path = shard, count, first, FAULT

    def skip(self, count):
        return Skippable(self.shard, self.count, self.first + count)

    def __iter__(self):
        for index in range(self.first, self.count):
            check(self.path)
            yield self.shard, index, *drawn()


def of_items(shard):
    return Samples(int(shard.split("-")[2]), is_of_items=True)
