"""Datasets as users write them; spawned workers import this module too."""

from fkat_data import item_generators
from fkat_data.streaming import LocalDataset, StreamingDataset


def marked(sample):
    return {"number": sample["number"] + 1000, "draw": float(item_generators().numpy.random())}


class ByIndex(StreamingDataset):
    def __getitem__(self, index):
        return marked(super().__getitem__(index))


class ByItem(StreamingDataset):
    def get_item(self, sample_id, retry=7):
        return marked(super().get_item(sample_id, retry))


class Together(StreamingDataset):
    def __getitems__(self, indices):
        return [marked(sample) for sample in super().__getitems__(indices)]


class ByTransform(StreamingDataset):
    def __init__(self, **options):
        super().__init__(**options, transform=marked)


class Iterated(StreamingDataset):
    def __iter__(self):
        yield from map(marked, super().__iter__())


class Endless(StreamingDataset):
    def __iter__(self):
        while True:
            yield from map(marked, super().__iter__())


class Filtered(StreamingDataset):
    def __iter__(self):
        return (sample for sample in super().__iter__() if sample["number"] % 7)


class OwnOrder(StreamingDataset):
    def __iter__(self):
        for number in range(self.size):
            yield self[number]


class LocalByIndex(LocalDataset):
    def __getitem__(self, index):
        return marked(super().__getitem__(index))


class LocalByItem(LocalDataset):
    def get_item(self, sample_id, retry=7):
        return marked(super().get_item(sample_id, retry))


EXACT_ANYWHERE = (ByIndex, ByItem, ByTransform)
ONE_FOR_ONE = (*EXACT_ANYWHERE, Together, Iterated)
