"""Datasets, samplers and functions that workers import."""

import os
import random
import time
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info


class Point(NamedTuple):
    x: torch.Tensor
    y: int


class Counted:
    """As many as it is told."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


class Items(Counted, Dataset):
    """Samples of one of many forms."""

    def __init__(self, count, form):
        super().__init__(count)
        self.form = form

    def __getitem__(self, index):
        return FORMS[self.form](index)


FORMS = {
    "int": lambda index: index,
    "float": lambda index: index / 3,
    "bool": lambda index: index % 2 == 0,
    "text": lambda index: f"sample {index}",
    "bytes": lambda index: bytes([index % 256]),
    "tensor": lambda index: torch.full((3, 2), index, dtype=torch.int16),
    "bfloat16": lambda index: torch.full((2,), index, dtype=torch.bfloat16),
    "array": lambda index: np.full((2, 2), index, dtype=np.float32),
    "number": np.float16,
    "empty": lambda index: torch.empty(0),
    "dictionary": lambda index: {"a": torch.tensor(index), "b": [index, str(index)]},
    "tuple": lambda index: (index, {"x": torch.ones(1) * index}),
    "named": lambda index: Point(torch.tensor([index]), index),
}


class Drawing(Counted, Dataset):
    """Samples with random draws from each of the global generators."""

    def __getitem__(self, index):
        return index, random.random(), np.random.rand(), torch.rand(1)


class Counting(Counted, IterableDataset):
    """Numbers, of which each worker has its part, and draws."""

    def __iter__(self):
        info = get_worker_info()
        number, total = (info.id, info.num_workers) if info else (0, 1)
        for value in range(number, self.count, total):
            yield value, torch.rand(1)


class Remembering(Counting):
    """Has a state of its own, and counts what it has made since it was loaded."""

    def __init__(self, count):
        super().__init__(count)
        self.next = self.made = self.epoch = 0

    def __iter__(self):
        info = get_worker_info()
        number, total = (info.id, info.num_workers) if info else (0, 1)
        while number + self.next * total < self.count:
            value = number + self.next * total
            self.next += 1
            self.made += 1
            yield value, self.epoch, torch.rand(1)
        self.next = 0
        self.epoch += 1

    def state_dict(self):
        return {"next": self.next, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.next, self.epoch = state["next"], state["epoch"]


class Restarting(Counting):
    """Its own iterator, which begins at the start whenever ``iter`` is called, and has a state."""

    def __iter__(self):
        info = get_worker_info()
        self.next, self.step = (info.id, info.num_workers) if info else (0, 1)
        return self

    def __next__(self):
        if self.next >= self.count:
            raise StopIteration
        self.next += self.step
        return self.next - self.step, torch.rand(1)

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class Strand(IterableDataset):
    """These values, whoever reads them."""

    def __init__(self, values):
        self.values = values

    def __iter__(self):
        return iter(self.values)


class Rows(IterableDataset):
    """Every nth number, for the nth of all ranks' workers."""

    def __init__(self, num_samples, *, counts_all=True, has_state=True):
        self.num_samples = num_samples
        self.counts_workers_of_all_ranks = counts_all
        self.has_state = has_state

    def __iter__(self):
        info = get_worker_info()
        own = range(info.id, self.num_samples, info.num_workers) if info else range(self.num_samples)
        return Row(own) if self.has_state else iter(own)


class Row:
    """An iterator with a state."""

    def __init__(self, own):
        self.own, self.index = own, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.index == len(self.own):
            raise StopIteration
        self.index += 1
        return self.own[self.index - 1]

    def state_dict(self):
        return {"index": self.index}

    def load_state_dict(self, state):
        self.index = state["index"]


class Growing(Counted, Dataset):
    """Says which process has it, and what `mark` is."""

    mark = 0

    def __getitem__(self, index):
        return self.mark, os.getpid()


class Told(Counted, Dataset):
    """What a dataset is told of its worker."""

    def __init__(self, count):
        super().__init__(count)
        self.entered = []

    def __getitem__(self, index):
        info = get_worker_info()
        return None if info is None else (info.id, info.num_workers, tuple(info.dataset.entered), info.dataset is self)


class Slow(Counted, Dataset):
    def __getitem__(self, index):
        time.sleep(60)


class Lazy(Counted, Sampler):
    """Draws each index when it is asked for, from the global generators."""

    def __iter__(self):
        for _ in range(self.count):
            yield random.randrange(self.count)


class Forgetful(Counted, Sampler):
    """An order that nothing says how to begin again."""

    def __init__(self, count):
        super().__init__(count)
        self.order = np.random.default_rng(5)

    def __iter__(self):
        return iter(self.order.permutation(self.count).tolist())


class Uneven(Sampler):
    """Batches of these sizes, as a token budget makes them."""

    def __init__(self, sizes):
        self.sizes = sizes

    def __len__(self):
        return len(self.sizes)

    def __iter__(self):
        ends = [sum(self.sizes[:index]) for index in range(len(self.sizes) + 1)]
        return (list(range(*pair)) for pair in pairwise(ends))


def enter(number):
    get_worker_info().dataset.entered.append(number)


def unchanged(samples):
    return samples


def refuse(number):
    raise KeyError(f"worker {number} is refused")


class Sized(Counted, Dataset):
    """Samples that are their own index, of lengths that are known."""

    def sort_key(self, index):
        return index * 7 % 13

    def __getitem__(self, index):
        return index


class FromGenerator(Counted, Sampler):
    """Draws its numbers one by one."""

    def __init__(self, count, generator):
        super().__init__(count)
        self.generator = generator

    def __iter__(self):
        for _ in range(self.count):
            yield int(torch.randint(self.count, (1,), generator=self.generator))


class Continuing(Counted, Sampler):
    """Goes on where the iteration before was left, and has another order each epoch."""

    def __init__(self, count):
        super().__init__(count)
        self.epoch = self.index = 0

    def __iter__(self):
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        while self.index < self.count:
            self.index += 1
            yield order[self.index - 1]
        self.epoch, self.index = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "index": self.index}

    def load_state_dict(self, state_dict):
        self.epoch, self.index = state_dict["epoch"], state_dict["index"]


class Rewinding(Counted, Sampler):
    """Begins anew with each iteration, except for the one that a load is for; its state says how far the last one was."""

    def __init__(self, count):
        super().__init__(count)
        self.first = self.index = 0

    def __iter__(self):
        first, self.first = self.first, 0
        for index in range(first, self.count):
            self.index = index + 1
            yield index
        self.index = 0

    def state_dict(self):
        return {"index": self.index}

    def load_state_dict(self, state_dict):
        self.first = self.index = state_dict["index"]


class Further(Counted, Sampler):
    """Each iteration is a further epoch, except for the one that a load is for: its state is that within the epoch."""

    def __init__(self, count):
        super().__init__(count)
        self.epoch, self.index, self.is_loaded = -1, 0, False

    def __iter__(self):
        if not self.is_loaded:
            self.epoch, self.index = self.epoch + 1, 0
        self.is_loaded = False
        while self.index < self.count:
            self.index += 1
            yield (self.index - 1 + self.epoch) % self.count

    def state_dict(self):
        return {"epoch": self.epoch, "index": self.index}

    def load_state_dict(self, state_dict):
        self.epoch, self.index, self.is_loaded = state_dict["epoch"], state_dict["index"], True


def kept_in_place(name):
    def change(sampler, value):
        sampler.state["at"][name][0] = value

    return property(lambda sampler: sampler.state["at"][name][0], change)


class FurtherInPlace(Further):
    """The same; its state is one object that changes as it goes on, and a load takes over the object that it is given."""

    epoch, index = kept_in_place("epoch"), kept_in_place("index")

    def __init__(self, count):
        self.state = {"at": {"epoch": [0], "index": [0]}}
        super().__init__(count)

    def state_dict(self):
        return self.state

    def load_state_dict(self, state_dict):
        self.state, self.is_loaded = state_dict, True


class RewindingInPlace(Rewinding):
    """One that rewinds, with such a state."""

    index = kept_in_place("index")

    def __init__(self, count):
        self.state = {"at": {"index": [0]}}
        super().__init__(count)

    def state_dict(self):
        return self.state

    def load_state_dict(self, state_dict):
        self.state = state_dict
        self.first = self.index


class FurtherAtOnce(Further):
    """The same, but it goes on when ``iter`` is called, and not with the first index."""

    def __iter__(self):
        if not self.is_loaded:
            self.epoch, self.index = self.epoch + 1, 0
        self.is_loaded = False
        return self.rest()

    def rest(self):
        while self.index < self.count:
            self.index += 1
            yield (self.index - 1 + self.epoch) % self.count


class CountingEpochs(Counted, Sampler):
    """Its state is the epoch alone: a load within one begins the next one."""

    def __init__(self, count):
        super().__init__(count)
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        return iter(torch.randperm(self.count, generator=torch.Generator().manual_seed(self.epoch)).tolist())

    def state_dict(self):
        return {"epoch": self.epoch}

    def load_state_dict(self, state_dict):
        self.epoch = state_dict["epoch"]


class Lengths(Counted, Dataset):
    """Numbers as long as they are large."""

    def __getitem__(self, index):
        return index

    def sort_key(self, index):
        return 1 + index % 7
