"""Datasets that the reference wrote, in every format and compression, read in an order of its."""

import json
import shutil

import pytest
from streaming_examples import shards_directory

from fkat_data.errors import ConfigurationError
from fkat_data.streaming import StreamingDataLoader, StreamingDataset

CASES = sorted(path.name for path in shards_directory().iterdir() if (path / "data" / "index.json").is_file())
CASES.remove("mds-no-samples")


@pytest.mark.parametrize("case", CASES)
def test_every_sample_is_read_once(case, tmp_path):
    source = shards_directory() / case
    expected = json.loads((source / "expected.json").read_text())
    count = sum(expected["samples_per_shard"])
    path = shutil.copytree(source / "data", tmp_path / "data")
    dataset = StreamingDataset(
        local=str(path), batch_size=3, shuffle=True, shuffle_algo="block", allow_unsafe_types=True
    )
    loader = StreamingDataLoader(dataset, collate_fn=list)
    samples = [sample for batch in loader for sample in batch]
    assert len(samples) == count == dataset.num_samples
    assert dataset.coverage().is_each_once


def test_a_dataset_without_samples_is_refused():
    with pytest.raises(ConfigurationError, match="no samples"):
        StreamingDataset(local=str(shards_directory() / "mds-no-samples" / "data"), batch_size=1)
