import pytest
import torch
from drop_in_examples import Strand
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from fkat_data import ConfigurationError, DataLoaderFactory


def squares(shard):
    return [index * index for index in range(5)]


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ({}, [[0], [1], [4], [9], [16]]),
        ({"batch_size": 2}, [[0, 1], [4, 9], [16]]),
        ({"sampler_generator": lambda dataset: [4, 0], "batch_size": 2}, [[16, 0]]),
        ({"sampler_generator": SequentialSampler, "batch_size": None}, [0, 1, 4, 9, 16]),
        ({"batch_sampler_generator": lambda dataset: [[len(dataset) - 1, 0]]}, [[16, 0]]),
        (
            {
                "sampler_generator": SequentialSampler,
                "batch_sampler_generator": lambda sampler: BatchSampler(sampler, 3, drop_last=True),
                "batch_size": 7,
            },
            [[0, 1, 4]],
        ),
        ({"dataset_generator": lambda shard: Strand(range(5)), "batch_size": 4}, [[0, 1, 2, 3], [4]]),
    ],
    ids=["default", "size", "sampler", "samples as they are", "batches of the dataset", "of the sampler", "stream"],
)
def test_samples_are_batched_as_the_arguments_say(options, made):
    product = DataLoaderFactory(**{"dataset_generator": squares, **options})("shard")
    assert type(product) is DataLoader
    assert [torch.as_tensor(microbatch).tolist() for microbatch in product] == made


def test_a_users_dataloader_is_called_as_documented():
    calls = []

    def generate(dataset, *, batch_size, shuffle, sampler, batch_sampler):
        calls.append((type(dataset), batch_size, shuffle, type(sampler), type(batch_sampler)))
        return []

    DataLoaderFactory(squares, RandomSampler, None, generate, 3)("s")
    DataLoaderFactory(squares, RandomSampler, lambda sampler: [[0]], generate, 3)("s")
    assert calls == [
        (list, 3, None, RandomSampler, type(None)),
        (list, 1, None, type(None), list),
    ]


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"dataset_generator": None}, "dataset_generator"),
        ({"sampler_generator": 5}, "sampler_generator"),
        ({"batch_sampler_generator": []}, "batch_sampler_generator"),
        ({"dataloader_generator": "torch"}, "dataloader_generator"),
        ({"batch_size": -1}, "batch_size"),
        ({"batch_size": None}, "batch_size"),  # and no sampler either: nothing says how to batch
        ({"batch_size": 0}, "batch_size"),
    ],
    ids=str,
)
def test_arguments_are_checked_by_name(arguments, argument):
    with pytest.raises(ConfigurationError, match=f"^{argument} = "):
        DataLoaderFactory(**{"dataset_generator": squares, **arguments})
