"""Every source of microbatches keeps one contract, whatever it was found in."""

import random
from collections import Counter

import numpy as np
import pytest
import torch
from drop_in_examples import Counting, Drawing
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, default_collate

from fkat_data.datasets import TokenWindows
from fkat_data.loaders.computed_plan import SampleOrder
from fkat_data.loaders.factory import DataLoaderFactory
from fkat_data.loaders.loader_plan import NumberedBatches
from fkat_data.seeding import ShardRng, seed_generators
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from fkat_data.streaming.loader_plan import StreamPlan
from fkat_data.streaming.reader import reader_of
from fkat_data.streaming.user_iterator import UserIteratorPlan
from fkat_data.worker.adoption import OwnIterationSource, source_of
from fkat_data.worker.collate import FreshCollate
from fkat_data.worker.epoch_factory import EpochFactory, EpochSpec, Strand
from fkat_data.worker.messages import content_of
from fkat_data.worker.microbatch_source import BulkSource, IndexedSource, Opening, SamplerSource, SequentialSource
from fkat_data.worker.windows import Window

RNG = ShardRng.of(1, 0, 0, 0)
COUNT = 10
BATCHES = [[3, 1, 4], [5, 9], [2, 6, 0], [8]]


class Dataset(Drawing):
    """Counts what is read of it."""

    def __init__(self):
        super().__init__(COUNT)
        self.num_read = Counter()

    def __getitem__(self, index):
        self.num_read[index] += 1
        return super().__getitem__(index)


class OwnIteration(DataLoader):
    """More than torch's own DataLoader."""

    def _get_iterator(self):
        return super()._get_iterator()


class Asked:
    """A user's random access."""

    num_microbatches = 4

    def microbatch(self, index):
        return index, random.random()


class AskedOrSkipping(Asked):
    """Both ways at once: one worker alone takes the second."""

    def __iter__(self):
        return self.skip(0)

    def skip(self, count):
        for index in range(count, self.num_microbatches):
            yield index, random.random()


class OwnIter(StreamingDataset):
    def __iter__(self):
        yield from super().__iter__()


def rows(samples):
    return [(sample, random.random()) for sample in samples for _ in range(2)]


def spec(**changed):
    known = dict.fromkeys(("num_workers", "snapshot_every_n_steps", "seed", "dp_rank"), 0)
    flags = dict.fromkeys(("drop_last", "is_batched", "keeps_dataset", "keeps_workers", "skips_samples"), False)
    rest = {"collate_fn": list, "worker_init_fn": None, "batch_size": 3, "window_fn": (), "window_size": 4}
    return EpochSpec(**known | flags | rest | changed)


def of_epoch(dataset, task, **changed):
    return EpochFactory(dataset, spec(**changed))(task)


def drawn(sampler):
    return DataLoader(Dataset(), batch_sampler=BatchSampler(sampler, 3, False), collate_fn=list)


def tokens(folder):
    np.arange(60, dtype=np.uint16).tofile(folder / "tokens.bin")
    dataset = TokenWindows([str(folder / "tokens.bin")], 5, dtype="uint16")
    order = SampleOrder(len(dataset), 3, drop_last=False, shuffle=(1, 0), reads_into_batch=True)
    return of_epoch(dataset, order, is_batched=True, collate_fn=default_collate)


def stored(folder, kind=StreamingDataset):
    if not folder.joinpath("data").exists():
        with MDSWriter(out=str(folder / "data"), columns={"x": "int"}) as writer:
            for number in range(COUNT):
                writer.write({"x": number})
    return kind(local=str(folder / "data"), batch_size=3, shuffle=True)


def batch_range(folder, collate_fn):
    dataset, options = stored(folder), {"drop_last": False, "leaves_empty_rest": False}
    plan = StreamPlan(reader_of(dataset), 0, is_read_here=True, collate_fn=collate_fn, **options)
    plan.begin(plan.first())
    return of_epoch(dataset, plan.payload(0, 0), collate_fn=collate_fn)


def own_iteration(folder):
    dataset = stored(folder, OwnIter)
    plan = UserIteratorPlan(reader_of(dataset), 0, num_workers=0, drop_last=False, leaves_empty_rest=False)
    plan.begin(plan.first())
    return of_epoch(dataset, plan.payload(0, 0))


WINDOWS = {"window_fn": rows, "window_size": 4, "batch_size": 3}

#: A product, the kind of its source in one worker alone, and what several workers have of it, where that differs.
PRODUCTS = {
    "a DataLoader": (lambda _: drawn(range(COUNT)), SamplerSource),
    "a shuffled DataLoader": (lambda _: drawn(RandomSampler(range(COUNT))), SamplerSource),
    "a DataLoader of single samples": (lambda _: DataLoader(Dataset(), batch_size=None), SamplerSource),
    "a DataLoader of a class of its own": (lambda _: OwnIteration(Dataset(), 3, shuffle=True), OwnIterationSource),
    "a DataLoader of an iterable dataset": (lambda _: DataLoader(Counting(COUNT), 3), SequentialSource),
    "a list": (lambda _: ["a", "b", "c"], SequentialSource),
    "an empty list": (lambda _: [], SequentialSource),
    "a generator": (lambda _: (random.random() for _ in range(3)), SequentialSource),
    "a random access": (lambda _: Asked(), IndexedSource),
    "a random access that can skip": (lambda _: AskedOrSkipping(), SequentialSource, IndexedSource),
    "numbered batches": (
        lambda _: of_epoch(Dataset(), SampleOrder(COUNT, 3, drop_last=False, shuffle=(1, 0)), is_batched=True),
        IndexedSource,
    ),
    "drawn batches": (lambda _: of_epoch(Dataset(), NumberedBatches(0, BATCHES), is_batched=True), IndexedSource),
    "stacked batches": (tokens, IndexedSource),
    "a strand": (lambda _: of_epoch(Counting(COUNT), Strand(0, 0, 1, None)), SequentialSource),
    "a strand with windows": (
        lambda _: of_epoch(Counting(COUNT), Strand(0, 0, 1, None), window_fn=(rows,)),
        SequentialSource,
    ),
    "a window": (
        lambda _: of_epoch(Dataset(), Window(0, 0, list(range(4)), 0, is_last=False), window_fn=(rows,)),
        SequentialSource,
    ),
    "a shard's windows": (lambda _: DataLoaderFactory(lambda _: Dataset(), **WINDOWS)("a"), SequentialSource),
    "a range of a stream": (lambda folder: batch_range(folder, default_collate), BulkSource),
    "a range of a stream with user code": (lambda folder: batch_range(folder, list), BulkSource),
    "a stream with its own iteration": (own_iteration, SequentialSource),
    "a StreamingDataLoader": (
        lambda folder: StreamingDataLoader(stored(folder)),
        SequentialSource,
        IndexedSource,
    ),
    "a StreamingDataLoader of a stream with its own iteration": (
        lambda folder: StreamingDataLoader(stored(folder, OwnIter)),
        SequentialSource,
    ),
}


pytestmark = pytest.mark.usefixtures("generators_as_they_were")


def opened(name, folder, *, is_shared=False):
    make, *kinds = PRODUCTS[name]
    seed_generators(RNG.seed_of(99))
    product = make(folder)
    dataset = getattr(product, "dataset", None)
    source = source_of(product, Opening(RNG, FreshCollate(), is_shared, False, bytes, len))
    assert type(source) is kinds[-1 if is_shared else 0]
    assert not getattr(dataset, "num_read", None)  # nothing is made yet
    return source


def made_from(source, first):
    """Microbatches from one on as plain values, and what was said of which is the last."""
    index = source.iterate(first) if isinstance(source, SequentialSource) else first
    assert index <= first
    found, lasts = [], []
    while True:
        made = source.make(index)
        if made is None:
            break
        found.append(plain(made[0]))
        lasts.append(made[1])
        index += 1
        if made[1]:
            break
    source.close()
    source.close()
    return found[max(0, first - index + len(found)) :], lasts


def plain(value):
    value = content_of(value)
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "shared"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_microbatches_are_the_same_from_any_number_on(name, is_shared, tmp_path):
    whole, lasts = made_from(opened(name, tmp_path, is_shared=is_shared), 0)
    assert opened(name, tmp_path, is_shared=is_shared).count in (None, len(whole))
    assert not any(lasts[:-1])  # what is called the last is
    for first in range(len(whole) + 1):
        found, _ = made_from(opened(name, tmp_path, is_shared=is_shared), first)
        assert found == whole[first:]


@pytest.mark.parametrize(
    "name", [name for name, (*_, kind) in PRODUCTS.items() if not issubclass(kind, SequentialSource)]
)
def test_with_random_access_each_is_made_alone_by_its_spec_too(name, tmp_path):
    whole, _ = made_from(opened(name, tmp_path, is_shared=True), 0)
    for index, expected in enumerate(whole):
        source = opened(name, tmp_path, is_shared=True)
        assert source.draw_summary(index).num_known >= index + 1
        assert source.has(index)
        assert (source.prefetch(index) > 0) <= source.prefetches
        found = source.spec(index)
        assert found.is_last == (index + 1 == len(whole))
        if found.seed is not None:
            seed_generators(found.seed)
        assert plain(found.make(found.argument)) == expected
    source = opened(name, tmp_path, is_shared=True)
    assert source.draw_summary(len(whole)).is_whole
    assert not source.has(len(whole))
    assert source.spec(len(whole)) is source.make(len(whole)) is None


@pytest.mark.parametrize("name", [name for name, (_, kind, *_) in PRODUCTS.items() if kind is BulkSource])
def test_in_bulk_the_rest_is_made_at_once(name, tmp_path):
    whole, _ = made_from(opened(name, tmp_path), 0)
    for first in range(len(whole)):
        assert len([*opened(name, tmp_path).iterate(first)]) == len(whole) - first
    if name == "a range of a stream":  # nothing is drawn
        assert [plain(each) for each in opened(name, tmp_path).iterate(1)] == whole[1:]
