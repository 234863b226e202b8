import pytest
from streaming_examples import sample, write
from torch.utils.data import DataLoader

from fkat_data.errors import ConfigurationError
from fkat_data.streaming import LocalDataset


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "train", 23, columns=("number", "row"))


def test_samples_have_the_numbers_in_which_they_were_written(data):
    dataset = LocalDataset(data)
    assert len(dataset) == dataset.size == 23
    assert [dataset[index]["number"] for index in range(23)] == list(range(23))
    assert dataset[-1]["row"].tolist() == sample(22)["row"].tolist()
    assert [item["number"] for item in dataset[::-11]] == [22, 11, 0]


@pytest.mark.usefixtures("processes")
def test_a_torch_dataloader_with_workers_reads_it(data):
    loader = DataLoader(LocalDataset(data, arrays="torch"), batch_size=8, num_workers=1)
    assert [batch["number"].tolist() for batch in loader] == [list(range(8)), list(range(8, 16)), list(range(16, 23))]


@pytest.mark.parametrize("local", ["", 3])
def test_a_place_that_is_none_is_refused(local):
    with pytest.raises(ConfigurationError, match="local"):
        LocalDataset(local)
