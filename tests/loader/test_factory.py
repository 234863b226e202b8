import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from fkat_data import ConfigurationError, DataLoaderFactory


class Squares:
    def __init__(self, shard):
        self.shard = shard

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return index * index


class Stream(IterableDataset):
    def __init__(self, shard):
        self.shard = shard

    def __iter__(self):
        return iter(range(5))


def lists(factory):
    return [microbatch.tolist() for microbatch in factory("shard")]


def test_by_default_each_sample_is_a_microbatch():
    assert lists(DataLoaderFactory(Squares)) == [[0], [1], [4], [9], [16]]


def test_a_batch_size_makes_batches():
    assert lists(DataLoaderFactory(Squares, batch_size=2)) == [[0, 1], [4, 9], [16]]


def test_a_sampler_decides_on_the_order():
    factory = DataLoaderFactory(Squares, sampler_generator=lambda dataset: [4, 0], batch_size=2)
    assert lists(factory) == [[16, 0]]


def test_a_sampler_without_a_batch_size_leaves_samples_as_they_are():
    factory = DataLoaderFactory(Squares, sampler_generator=SequentialSampler, batch_size=None)
    assert list(factory("shard")) == [0, 1, 4, 9, 16]


def test_a_batch_sampler_is_made_of_the_dataset_or_of_the_sampler():
    of_dataset = DataLoaderFactory(Squares, batch_sampler_generator=lambda dataset: [[len(dataset) - 1, 0]])
    assert lists(of_dataset) == [[16, 0]]
    of_sampler = DataLoaderFactory(
        Squares,
        sampler_generator=SequentialSampler,
        batch_sampler_generator=lambda sampler: BatchSampler(sampler, 3, drop_last=True),
        batch_size=7,
    )
    assert lists(of_sampler) == [[0, 1, 4]]


def test_a_stream_is_batched():
    assert lists(DataLoaderFactory(Stream, batch_size=4)) == [[0, 1, 2, 3], [4]]


def test_the_dataset_is_made_of_the_shard():
    seen = []

    def generator(shard):
        seen.append(shard)
        return Squares(shard)

    DataLoaderFactory(generator)(["a", "b"])
    assert seen == [["a", "b"]]


def test_a_users_dataloader_is_called_as_documented():
    calls = []

    def generate(dataset, *, batch_size, shuffle, sampler, batch_sampler):
        calls.append((type(dataset), batch_size, shuffle, type(sampler), type(batch_sampler)))
        return []

    DataLoaderFactory(Squares, RandomSampler, None, generate, 3)("s")
    DataLoaderFactory(Squares, RandomSampler, lambda sampler: [[0]], generate, 3)("s")
    assert calls == [
        (Squares, 3, None, RandomSampler, type(None)),
        (Squares, 1, None, type(None), list),
    ]


def test_the_default_is_torchs_dataloader():
    assert type(DataLoaderFactory(Squares)("s")) is DataLoader


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"dataset_generator": None}, "dataset_generator"),
        ({"sampler_generator": 5}, "sampler_generator"),
        ({"batch_sampler_generator": []}, "batch_sampler_generator"),
        ({"dataloader_generator": "torch"}, "dataloader_generator"),
        ({"batch_size": -1}, "batch_size"),
        ({"batch_size": 1.5}, "batch_size"),
        ({"batch_size": True}, "batch_size"),
        ({"batch_size": None}, "batch_size"),  # and no sampler either: nothing says how to batch
        ({"batch_size": 0}, "batch_size"),
    ],
    ids=str,
)
def test_arguments_are_checked_by_name(arguments, argument):
    with pytest.raises(ConfigurationError, match=f"^{argument} = "):
        DataLoaderFactory(**{"dataset_generator": Squares, **arguments})


def test_a_factory_is_the_same_each_time():
    factory = DataLoaderFactory(Squares, RandomSampler, batch_size=2)
    torch.manual_seed(0)
    first = lists(factory)
    torch.manual_seed(0)
    assert lists(factory) == first
