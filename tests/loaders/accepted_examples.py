"""Datasets and window functions of the tests of what a load may accept."""

from collections.abc import Mapping

from torch.utils.data import Dataset, IterableDataset


class Numbers(Dataset):
    """Numbers from a file of which it says what it is."""

    def __init__(self, count, offset=0, digest=1):
        self.count, self.offset, self.digest = count, offset, digest
        self.paths = ["numbers"]

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.offset + index

    def file_digests(self):
        return [self.digest]


class Counted(IterableDataset):
    """The same, iterated."""

    def __init__(self, count, offset=0, digest=1):
        self.count, self.offset, self.digest = count, offset, digest
        self.paths = ["numbers"]

    def __iter__(self):
        return iter(range(self.offset, self.offset + self.count))

    def file_digests(self):
        return [self.digest]


def kept(window):
    """Return a row for each sample."""
    return list(window)


def renamed(window):
    """Return the same as ``kept``."""
    return list(window)


def halves(window):
    """Return every other sample."""
    return list(window)[::2]


def items(microbatches):
    return [int(item) for batch in microbatches for item in batch]


def fields_of(state):
    """Return what a state says was accepted, however deep it lies: field, epoch, step."""
    if isinstance(state, Mapping):
        own = [(each["field"], each["epoch"], each["step"]) for each in state.get("accepted", ())]
        return own + [found for value in state.values() for found in fields_of(value)]
    if isinstance(state, (list, tuple)):
        return [found for value in state for found in fields_of(value)]
    return []
