import pickle
from functools import partial

import pytest
from dataset_examples import documents_of

from fkat_data.datasets import BufferSortedDataset, DatasetChain
from fkat_data.errors import ConfigurationError


def test_each_generator_gets_what_the_last_one_made():
    chain = DatasetChain([documents_of, partial(BufferSortedDataset, buffer_size=8, pack_size=2, init_seed=1)])
    expected = list(map(list, BufferSortedDataset(documents_of("3-20"), 8, 2, 1)))
    assert list(map(list, chain("3-20"))) == expected
    assert list(map(list, pickle.loads(pickle.dumps(chain))("3-20"))) == expected


@pytest.mark.parametrize(
    ("argument", "generators"), [("generators", []), ("generators", 5), (r"generators\[1\]", [list, "list"])]
)
def test_generators_that_cannot_work_are_named(argument, generators):
    with pytest.raises(ConfigurationError, match=f"^{argument} = "):
        DatasetChain(generators)
