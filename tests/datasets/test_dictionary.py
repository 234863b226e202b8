import pickle

import pytest
from dataset_examples import Together

from fkat_data.datasets import DictDataset


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


def test_samples_are_asked_for_together_where_the_dataset_can():
    base = Together(rows("a", 3))
    DictDataset({"a": base}).__getitems__(("a", [1, 2]))
    assert base.asked == ([1, 2],)


def test_over_makes_the_datasets_of_a_shard():
    generate = pickle.loads(pickle.dumps(DictDataset.over({"a": list, "b": sorted}, key="of")))
    dataset = generate([{"row": 1}])
    assert dataset["b", 0] == {"row": 1, "of": "b"}


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
