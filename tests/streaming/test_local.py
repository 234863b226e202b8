import pickle

import numpy as np
import pytest
from streaming_examples import sample, write
from torch.utils.data import DataLoader

from fkat_data.errors import ConfigurationError, ShardNotFoundError
from fkat_data.streaming import LocalDataset, MDSWriter


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "train", 23, columns=("number", "row"))


def test_samples_have_the_numbers_in_which_they_were_written(data):
    dataset = LocalDataset(data)
    assert len(dataset) == dataset.size == 23
    assert [dataset[index]["number"] for index in range(23)] == list(range(23))
    assert dataset[-1]["row"].tolist() == sample(22)["row"].tolist()
    assert [item["number"] for item in dataset[::-11]] == [22, 11, 0]
    assert [item["number"] for item in dataset.__getitems__([5, 5, 0])] == [5, 5, 0]
    with pytest.raises(IndexError):
        dataset[23]


@pytest.mark.parametrize("compression", [None, "gz", "zstd:3"])
def test_compressed_shards_are_read_as_others(tmp_path, compression):
    directory = write(tmp_path / "data" / "train", 23, compression=compression)
    dataset = LocalDataset(str(tmp_path / "data"), split="train")
    assert [item["number"] for item in dataset[:]] == list(range(23))
    assert directory


@pytest.mark.usefixtures("processes")
def test_a_torch_dataloader_with_workers_reads_it(data):
    loader = DataLoader(LocalDataset(data, arrays="torch"), batch_size=8, num_workers=1)
    assert [batch["number"].tolist() for batch in loader] == [list(range(8)), list(range(8, 16)), list(range(16, 23))]


def test_a_copy_opens_the_shards_anew(data):
    dataset = LocalDataset(data)
    dataset[0]
    assert pickle.loads(pickle.dumps(dataset))[7]["number"] == 7


def test_arrays_are_views_or_belong_to_the_caller(data):
    assert not LocalDataset(data)[0]["row"].flags.writeable
    own = LocalDataset(data, writable=True)[0]["row"]
    own[:] = 9
    assert np.array_equal(LocalDataset(data)[0]["row"], sample(0)["row"])


def test_pickles_are_refused_unless_they_are_allowed(tmp_path):
    with MDSWriter(out=str(tmp_path / "data"), columns={"item": "pkl"}) as writer:
        writer.write({"item": {1, 2}})
    with pytest.raises(ConfigurationError, match="allow_unsafe_types"):
        LocalDataset(str(tmp_path / "data"))
    assert LocalDataset(str(tmp_path / "data"), allow_unsafe_types=True)[0] == {"item": {1, 2}}


@pytest.mark.parametrize(("local", "error"), [("", ConfigurationError), (3, ConfigurationError)])
def test_a_place_that_is_none_is_refused(local, error):
    with pytest.raises(error, match="local"):
        LocalDataset(local)


def test_a_directory_without_an_index_is_named(tmp_path):
    with pytest.raises(ShardNotFoundError, match=str(tmp_path)):
        LocalDataset(tmp_path)
