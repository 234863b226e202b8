import pickle
from functools import partial

from dataset_examples import documents_of

from fkat_data.datasets import BufferSortedDataset, DatasetChain


def test_each_generator_gets_what_the_last_one_made():
    chain = DatasetChain([documents_of, partial(BufferSortedDataset, buffer_size=8, pack_size=2, init_seed=1)])
    expected = list(map(list, BufferSortedDataset(documents_of("3-20"), 8, 2, 1)))
    assert list(map(list, chain("3-20"))) == expected
    assert list(map(list, pickle.loads(pickle.dumps(chain))("3-20"))) == expected
