import operator
import pickle

import pytest
from dataset_examples import Together
from torch.utils.data import DataLoader

from fkat_data import DataLoaderFactory
from fkat_data.datasets import IterableMapDataset, MapDataset
from fkat_data.errors import ConfigurationError


def test_each_sample_is_put_through_the_function():
    dataset = MapDataset([3, 1, 2], operator.neg)
    assert len(dataset) == 3
    assert [dataset[index] for index in range(3)] == [-3, -1, -2]
    assert dataset.__getitems__([2, 0]) == [-2, -3]


def test_samples_are_asked_for_together_where_the_dataset_can():
    base = Together([5, 6, 7])
    assert MapDataset(base, str).__getitems__([1, 2]) == ["6", "7"]
    assert base.asked == ([1, 2],)


def test_the_function_is_called_once_a_sample_and_when_it_is_asked_for():
    calls = []
    dataset = MapDataset(range(10), calls.append)
    assert calls == []
    dataset.__getitems__([4, 2])
    assert calls == [4, 2]
    samples = iter(IterableMapDataset(range(10), calls.append))
    next(samples)
    assert calls == [4, 2, 0]


def test_an_iterable_dataset_is_mapped_again_and_again():
    dataset = IterableMapDataset(range(3), str)
    assert list(dataset) == list(dataset) == ["0", "1", "2"]


@pytest.mark.parametrize("kind", [MapDataset, IterableMapDataset])
def test_over_makes_the_dataset_of_a_shard(kind):
    generate = pickle.loads(pickle.dumps(kind.over(len, abs)))
    with pytest.raises(ConfigurationError, match="dataset"):
        generate("abc")  # its length has neither indices nor items
    factory = DataLoaderFactory(kind.over(sorted, ord), dataloader_generator=DataLoader, batch_size=2)
    if kind is MapDataset:
        assert [microbatch.tolist() for microbatch in factory("cab")] == [[97, 98], [99]]
    assert list(kind.over(sorted, ord)("cab")) == [97, 98, 99]
