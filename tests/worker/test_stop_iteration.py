"""A StopIteration of a user's function is an error that names the function, in its place, and no end of the samples."""

import pytest
from torch.utils.data import BatchSampler, Dataset, IterableDataset
from torch.utils.data import DataLoader as TorchDataLoader

from fkat_data import DataLoader, DataLoaderFactory, ShardedDataLoader, WorkerError
from fkat_data.datasets import DictDataset, Filter, IterableMapDataset
from fkat_data.mixing import DictBatchSampler, DictDataLoader, RoundRobin, SamplerStrategy
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset

BAD = 5


def stop_at(number):
    if number == BAD:
        raise StopIteration("mine")


class Numbers(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return index


class BadNumbers(Numbers):
    def __getitem__(self, index):
        stop_at(index)
        return index


class Named(Numbers):
    def __getitem__(self, index):
        return {"number": index}


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(12)


class Saved(Stream):
    """Has a state, which cannot be taken behind some sample."""

    number = 0

    def __iter__(self):
        for self.number in range(12):
            yield self.number

    def state_dict(self):
        stop_at(self.number)
        return {}

    def load_state_dict(self, state_dict):
        pass


def kept(rows):
    for row in rows:
        stop_at(row)
    return rows


def kept_named(rows):
    return kept([row["number"] for row in rows])


def of_named(sample):
    stop_at(sample["number"])
    return sample


def is_kept(row):
    stop_at(row)
    return True


class Together(StreamingDataset):
    def __getitems__(self, indices):
        return [of_named(sample) for sample in super().__getitems__(indices)]


class Iterated(StreamingDataset):
    def __iter__(self):
        yield from super().__iter__()


class Turns(SamplerStrategy):
    """Draws in turn, up to some draw."""

    names = ("a", "b")

    def source(self, epoch, draw, among):
        stop_at(draw)
        return self.names[draw % 2]


class OfOnePass:
    """Can be iterated once."""

    def __init__(self):
        self.num_passes = 0

    def __iter__(self):
        self.num_passes += 1
        stop_at(BAD if self.num_passes > 1 else 0)
        return iter([1, 2])


class BadSampler:
    def __init__(self, method):
        self.method = method

    def set_epoch(self, epoch):
        stop_at(BAD if self.method == "set_epoch" else 0)

    def __iter__(self):
        stop_at(BAD if self.method == "__iter__" else 0)
        return iter(["a"])


def windowed(shard):
    return DataLoader(Numbers(), 2, window_fn=kept, window_size=3)


def as_samples(shard):
    return Numbers()


def dict_batches(folder):
    samplers = {name: BatchSampler(range(12), 2, drop_last=False) for name in "ab"}
    batches = DictBatchSampler(Turns(), samplers)
    return DataLoader(DictDataset({"a": Named(), "b": Named()}), batch_sampler=batches, collate_fn=list)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("data") / "numbers"
    with MDSWriter(out=str(found), columns={"number": "int"}) as writer:
        for number in range(12):
            writer.write({"number": number})
    return str(found)


def windows(dataset, **options):
    return DataLoader(dataset, 2, **{"window_fn": list, "window_size": 3, **options})


def stream(folder, kind=StreamingDataset, loader_type=StreamingDataLoader, transform=None, **options):
    return loader_type(kind(local=folder, batch_size=2, transform=transform), 2, **options)


def shards(factory, sampler=("a",)):
    return ShardedDataLoader(7, sampler, factory, multiprocessing=False)


#: What is named, how many microbatches come before, and the loader.
CASES = {
    "a window function": ("window_fn", 1, lambda _: windows(Numbers(), window_fn=kept)),
    "the second of two": ("window_fn", 1, lambda _: windows(Numbers(), window_fn=[list, kept])),
    "rows one by one": ("window_fn", 3, lambda _: DataLoader(Numbers(), None, window_fn=kept, window_size=3)),
    "windows of an iterable": ("window_fn", 1, lambda _: windows(Stream(), window_fn=kept)),
    "beside bad samples": ("window_fn", 1, lambda _: windows(Numbers(), window_fn=kept, on_sample_error="skip")),
    "a predicate": ("window_fn", 1, lambda _: windows(Numbers(), window_fn=Filter(is_kept))),
    "windows of a stream": ("window_fn", 1, lambda folder: stream(folder, window_fn=kept_named, window_size=3)),
    "windows of a shard": ("window_fn", 1, lambda _: shards(windowed)),
    "the samples of a window": ("the dataset", 1, lambda _: windows(BadNumbers())),
    "a collate_fn": ("collate_fn", 2, lambda _: DataLoader(Numbers(), 2, collate_fn=kept)),
    "a collate_fn of a shard": (
        "collate_fn",
        2,
        lambda _: shards(lambda _: TorchDataLoader(Numbers(), 2, collate_fn=kept)),
    ),
    "a collate_fn of windows": ("collate_fn", 2, lambda _: windows(Numbers(), collate_fn=kept)),
    "a transform": ("the dataset", 2, lambda folder: stream(folder, transform=of_named)),
    "a transform of windows": (
        "the dataset",
        1,
        lambda folder: stream(folder, transform=of_named, window_fn=list, window_size=3),
    ),
    "a DataLoader's stream": (
        "the dataset",
        2,
        lambda folder: stream(folder, loader_type=DataLoader, transform=of_named),
    ),
    "samples together": ("the dataset", 2, lambda folder: stream(folder, Together)),
    "a collate_fn of a stream": ("collate_fn", 2, lambda folder: stream(folder, collate_fn=kept_named)),
    "a collate_fn of an __iter__": ("collate_fn", 2, lambda folder: stream(folder, Iterated, collate_fn=kept_named)),
    "a stream in a shard": ("the dataset", 2, lambda folder: shards(lambda _: stream(folder, transform=of_named))),
    "a function of an iterable": ("fn", 2, lambda _: DataLoader(IterableMapDataset(Stream(), is_kept), 2)),
    "a dataset's state": ("state_dict()", 2, lambda _: DataLoader(Saved(), 2)),
    "a sampler's iteration": (
        "the sampler",
        0,
        lambda _: shards(DataLoaderFactory(as_samples), BadSampler("__iter__")),
    ),
    "a sampler's epoch": ("the sampler", 0, lambda _: shards(DataLoaderFactory(as_samples), BadSampler("set_epoch"))),
    "a strategy": ("strategy", 5, lambda _: DictDataLoader({"a": [{}] * 9, "b": [{}] * 9}, Turns())),
    "a strategy of batches": ("strategy", 5, dict_batches),
    "a source": (
        "iter() of source 'a'",
        4,
        lambda _: DictDataLoader(
            {"a": OfOnePass(), "b": [3] * 9}, RoundRobin(["a", "b"]), key=None, on_exhausted="restart"
        ),
    ),
}


def check(case, folder):
    name, num_before, make = CASES[case]
    with make(folder) as loader:
        iterator = iter(loader)
        for _ in range(num_before):
            next(iterator)
        with pytest.raises(WorkerError) as caught:
            next(iterator)
    assert str(caught.value).startswith(f"{name} raised StopIteration, which would end the ")
    return caught.value


@pytest.mark.parametrize("case", CASES)
def test_a_stop_iteration_of_a_users_function_is_named_in_its_place(case, folder):
    assert check(case, folder).__cause__.args == ("mine",)


def test_the_note_names_the_window(folder):
    (note,) = [note for note in check("a window function", folder).__notes__ if "window_fn" in note]
    assert note.startswith("in window_fn, kept, of window 1 (samples 3, 4, 5)")


def test_it_is_so_with_workers(folder, processes):
    CASES["with workers"] = "window_fn", 1, lambda _: windows(Numbers(), window_fn=kept, num_workers=2)
    check("with workers", folder)


def test_a_stop_iteration_of_a_worker_init_fn_is_named(processes):
    loader = DataLoader(Numbers(), 2, num_workers=1, worker_init_fn=lambda _: stop_at(BAD))
    with pytest.raises(WorkerError, match=r"^worker_init_fn raised StopIteration"):
        next(iter(loader))
