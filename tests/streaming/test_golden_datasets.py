"""Datasets that the reference wrote, in every format and compression, read in an order of its."""

import json
import shutil

import pytest
from streaming_examples import shards_directory

from fkat_data.errors import ConfigurationError, ShardNotFoundError
from fkat_data.streaming import LocalDataset, Stream, StreamingDataLoader, StreamingDataset

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


EMPTY = str(shards_directory() / "mds-no-samples" / "data")


@pytest.mark.parametrize("algorithm", ["block", "naive", "py1b", "py1br", "py1e", "py1s", "py2s"])
def test_a_dataset_without_samples_has_empty_epochs_and_says_so(algorithm, caplog):
    dataset = StreamingDataset(local=EMPTY, batch_size=2, shuffle=True, shuffle_algo=algorithm)
    assert "an epoch is empty" in caplog.text
    assert len(dataset) == len(LocalDataset(EMPTY)) == 0
    assert dataset.coverage().is_each_once
    loader = StreamingDataLoader(dataset)
    assert [list(loader), list(loader)] == [[], []]
    loader.load_state_dict(loader.state_dict())
    assert list(loader) == []


@pytest.mark.parametrize("method", ["random", "stratified", "device_stratified", "per_stream", "device_per_stream"])
def test_a_stream_without_samples_adds_none_to_those_of_others(method):
    full = str(shards_directory() / next(case for case in CASES if case.startswith("mds")) / "data")
    options = {"batch_size": 1, "shuffle": True, "batching_method": method, "allow_unsafe_types": True}
    alone = StreamingDataset(local=full, **options)
    for streams in ([Stream(local=EMPTY), Stream(local=full)], [Stream(local=full), Stream(local=EMPTY)]):
        dataset = StreamingDataset(streams=streams, **options)
        assert len(list(dataset)) == dataset.num_samples == alone.num_samples
        assert dataset.coverage().is_each_once == alone.coverage().is_each_once
        assert len(list(StreamingDataLoader(dataset, collate_fn=list))) == alone.num_samples


@pytest.mark.parametrize("weights", [{"proportion": 0.5}, {"choose": 2}])
def test_samples_of_a_stream_that_has_none_are_refused(weights):
    full = str(shards_directory() / CASES[0] / "data")
    streams = [Stream(local=full, **weights), Stream(local=EMPTY, **weights)]
    with pytest.raises(ConfigurationError, match=r"streams = .*stream 1.*which has none"):
        StreamingDataset(streams=streams, batch_size=1, allow_unsafe_types=True)
    with pytest.raises(ConfigurationError, match=r"epoch_size = 10.*no samples"):
        StreamingDataset(local=EMPTY, epoch_size=10, batch_size=1)


def test_an_empty_folder_is_no_dataset(tmp_path):
    with pytest.raises(ShardNotFoundError, match=r"index\.json.*no such file"):
        StreamingDataset(local=str(tmp_path), batch_size=1)
