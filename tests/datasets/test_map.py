"""Datasets made of others: mapped, named, or one generator after another."""

import pickle
from functools import partial

import pytest
from dataset_examples import Together, documents_of
from torch.utils.data import DataLoader

from fkat_data import DataLoaderFactory
from fkat_data.datasets import (
    BufferSortedDataset,
    DatasetChain,
    DictDataset,
    IterableMapDataset,
    MapDataset,
    PackedDataset,
    ShardedDataset,
)
from fkat_data.errors import ConfigurationError


def test_samples_are_asked_for_together_where_the_dataset_can():
    base, named = Together([5, 6, 7]), Together(rows("a", 3))
    assert MapDataset(base, str).__getitems__([1, 2]) == ["6", "7"]
    DictDataset({"a": named}).__getitems__(("a", [1, 2]))
    assert base.asked == named.asked == ([1, 2],)


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


def rows(name, count):
    return [{"row": f"{name}{index}"} for index in range(count)]


def test_a_sample_is_labelled_with_the_name_of_its_dataset():
    dataset = DictDataset({"a": rows("a", 2), "b": rows("b", 3)}, key="source")
    assert len(dataset) == 5
    assert dataset["b", 2] == {"row": "b2", "source": "b"}
    assert dataset.datasets["b"][2] == {"row": "b2"}, "the dataset's own sample is not changed"


def test_a_name_and_indices_or_pairs_of_both_give_a_microbatch():
    dataset = DictDataset({"a": rows("a", 2), "b": rows("b", 3)})
    assert dataset.__getitems__(("b", [2, 0])) == [dataset["b", 2], dataset["b", 0]]
    assert dataset.__getitems__([("b", 2), ("a", 0)]) == [dataset["b", 2], dataset["a", 0]]
    assert dataset.__getitems__([]) == []


def test_over_makes_the_named_datasets_of_a_shard():
    generate = pickle.loads(pickle.dumps(DictDataset.over({"a": list, "b": sorted}, key="of")))
    assert generate([{"row": 1}])["b", 0] == {"row": 1, "of": "b"}


def test_a_missing_dataset_is_named_beside_those_that_exist():
    dataset = DictDataset({"a": rows("a", 1), "b": rows("b", 1)})
    with pytest.raises(KeyError, match="no dataset 'c'; the datasets are a, b"):
        dataset["c", 0]
    with pytest.raises(KeyError, match="no dataset 'c'"):
        dataset.__getitems__(("c", [0]))
    with pytest.raises(IndexError):
        dataset["a", 1]


def test_a_sample_that_cannot_be_labelled_is_named():
    with pytest.raises(TypeError, match="dataset 'a' must be a mapping"):
        DictDataset({"a": [1]})["a", 0]
    with pytest.raises(ValueError, match="already has a field 'row'"):
        DictDataset({"a": rows("a", 1)}, key="row")["a", 0]


def test_each_generator_gets_what_the_last_one_made():
    chain = DatasetChain([documents_of, partial(BufferSortedDataset, buffer_size=8, pack_size=2, init_seed=1)])
    expected = list(map(list, BufferSortedDataset(documents_of("3-20"), 8, 2, 1)))
    assert list(map(list, chain("3-20"))) == expected
    assert list(map(list, pickle.loads(pickle.dumps(chain))("3-20"))) == expected


VIEWS = {
    "mapped": MapDataset,
    "of an iterable": IterableMapDataset,
    "of a rank": lambda *given: ShardedDataset(MapDataset(*given), 1, 0, "sequential", False),
    "packed": lambda *given: PackedDataset(MapDataset(*given), 4, lengths=[1, 2, 3]),
}


@pytest.mark.parametrize("kind", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("error", [IndexError, StopIteration])
def test_an_error_of_the_function_ends_no_samples_in_silence(kind, error):
    def refuse(_sample):
        raise error

    with pytest.raises((IndexError, RuntimeError)):
        list(kind([1, 2, 3], refuse))
