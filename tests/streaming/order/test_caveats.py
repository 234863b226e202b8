"""What is warned of when a dataset is made, as the reference does."""

import pytest

from fkat_data.streaming import MDSWriter, StreamingDataset


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    with MDSWriter(out=path, columns={"number": "int"}, size_limit=400) as writer:
        for number in range(100):
            writer.write({"number": number})
    return str(path)


LARGEST = 19
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
