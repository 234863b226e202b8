"""What is warned of when a dataset is made, as the reference does."""

import pytest
from streaming_examples import write

from fkat_data.streaming import StreamingDataset


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data"), 100, columns=("number",), per_shard=8)


LARGEST = 18
CASES = [
    ({"shuffle": True, "shuffle_block_size": LARGEST - 1}, ["py1e does not spread the shards of stream 0"]),
    ({"shuffle": True, "shuffle_block_size": LARGEST}, []),
    ({"shuffle": True, "shuffle_block_size": 2, "shuffle_algo": "py1br"}, []),
    ({"shuffle": True, "shuffle_block_size": 2, "shuffle_algo": "block"}, []),
    ({"shuffle_block_size": 2}, []),
    ({"shuffle": True}, []),
    ({"num_canonical_nodes": 101}, ["an epoch repeats samples: 100 samples are fewer than the 101 canonical nodes"]),
    ({"num_canonical_nodes": 100}, []),
    ({"predownload": 3}, ["predownload = 3 is less than batch_size = 4"]),
    ({"predownload": 4}, []),
]


@pytest.mark.parametrize(("options", "texts"), CASES, ids=str)
def test_settings_that_are_rarely_meant_are_warned_of(data, caplog, options, texts):
    dataset = StreamingDataset(local=data, batch_size=4, **options)
    assert max(dataset.samples_per_shard) == LARGEST
    assert [record.levelname for record in caplog.records] == ["WARNING"] * len(texts)
    for text, message in zip(texts, caplog.messages, strict=True):
        assert message.startswith(text)
