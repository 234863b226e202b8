"""What an epoch takes of each stream, as the reference says it."""

import json
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from streaming_examples import numbers
from torch.utils.data import DataLoader

from fkat_data.errors import ConfigurationError
from fkat_data.streaming import LocalDataset, MDSWriter, Stream, StreamingDataLoader, StreamingDataset

CASES = json.loads((Path(__file__).parents[1] / "golden" / "streaming" / "resampled_streams.json").read_text())["cases"]
SETTINGS = ("epoch_size", "shuffle_seed", "sampling_method", "sampling_granularity", "shuffle")


def streams_of(directory, case):
    """Streams of the case's shards; a sample holds its number."""
    streams, number = [], 0
    for position, (sizes, weight) in enumerate(zip(case["shard_sizes"], case["weights"], strict=True)):
        path = str(directory / str(position))
        with MDSWriter(columns={"number": "int"}, out=path) as writer:
            for size in sizes:
                for _ in range(size):
                    writer.write({"number": number})
                    number += 1
                writer.flush_shard()
        streams.append(Stream(local=path, **weight))
    return streams


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_an_epoch_takes_the_samples_that_the_reference_takes(case, tmp_path):
    settings = {name: case[name] for name in SETTINGS}
    dataset = StreamingDataset(streams=streams_of(tmp_path, case), batch_size=2, **settings)
    for found in case["resampled"]:
        given = {} if found["stream_id"] is None else {"stream_id": found["stream_id"]}
        shard_sizes, sample_ids = dataset.resample_streams(found["epoch"], **given)
        assert shard_sizes.tolist() == found["shard_sizes"]
        assert sample_ids.tolist() == found["sample_ids"]
        assert shard_sizes.dtype == sample_ids.dtype == np.int64
    assert [stream.choose for stream in dataset.streams] == case["choose"]
    assert [stream.repeat for stream in dataset.streams] == case["repeat"]
    assert [stream.proportion for stream in dataset.streams] == case["proportion"]
    assert dataset.epoch_size == case["total"]


@pytest.mark.parametrize("shuffle_algo", ["py1e", "naive", "block"])
@pytest.mark.parametrize("method", ["balanced", "fixed"])
@pytest.mark.parametrize("case", CASES[1:3], ids=["proportions", "repeats"])
def test_an_epoch_gives_what_resample_streams_says(case, method, shuffle_algo, tmp_path):
    dataset = StreamingDataset(
        streams=streams_of(tmp_path, case),
        batch_size=1,
        shuffle=True,
        shuffle_algo=shuffle_algo,
        sampling_method=method,
    )
    for epoch in range(3):
        shard_sizes, sample_ids = dataset.resample_streams(epoch)
        assert sorted(sample["number"] for sample in dataset) == sorted(sample_ids.tolist())
        assert shard_sizes.sum() == len(sample_ids) == dataset.epoch_size
        of_stream = [dataset.resample_streams(epoch, stream)[1] for stream in range(dataset.num_streams)]
        assert [len(ids) for ids in of_stream] == [stream.choose for stream in dataset.streams]
        units = np.split(sample_ids, np.cumsum(shard_sizes)[:-1])
        for unit in units:
            assert unit.tolist() == sorted(unit.tolist())
            assert len({dataset.spanner[number][0] for number in unit.tolist()}) == 1


def test_a_loaded_seed_decides_what_is_taken(tmp_path):
    streams = streams_of(tmp_path, CASES[1])
    options = {"streams": streams, "batch_size": 1, "shuffle": True, "epoch_size": 9}
    other = StreamingDataset(**options, shuffle_seed=5)
    dataset = StreamingDataset(**options)
    before = dataset.resample_streams(2)[1].tolist()
    assert before != other.resample_streams(2)[1].tolist()
    dataset.load_state_dict(other.state_dict(2, True))
    assert (dataset.shuffle_seed, dataset.num_canonical_nodes, dataset.initial_physical_nodes) == (5, 1, 1)
    assert dataset.resample_streams(2)[1].tolist() == other.resample_streams(2)[1].tolist() != before


def test_weights_that_change_within_an_epoch_change_what_is_taken(tmp_path):
    streams = [Stream(local=stream.local) for stream in streams_of(tmp_path, CASES[0])]
    schedule = [{"from_sample": 0, "weights": [1, 0]}, {"from_sample": 14, "weights": [0, 1]}]
    dataset = StreamingDataset(streams=streams, batch_size=1, weight_schedule=schedule, epoch_size=20)
    taken = dataset.resample_streams(0)[1].tolist()
    assert sorted(taken) == sorted(sample["number"] for sample in dataset)
    assert [number < 13 for number in taken] == [True] * 14 + [False] * 6


@pytest.mark.parametrize(
    ("arguments", "name"), [((-1,), "epoch"), ((0, 2), "stream_id"), ((0, -1), "stream_id"), (("0",), "epoch")]
)
def test_an_epoch_or_a_stream_that_is_not_there_is_refused(arguments, name, tmp_path):
    dataset = StreamingDataset(streams=streams_of(tmp_path, CASES[0]))
    with pytest.raises(ConfigurationError, match=f"^{name} = "):
        dataset.resample_streams(*arguments)


def test_a_stream_that_has_its_share_in_every_form_may_be_used_again(tmp_path):
    dataset = StreamingDataset(streams=streams_of(tmp_path, CASES[2]))
    again = StreamingDataset(streams=dataset.streams)
    assert [stream.choose for stream in again.streams] == [stream.choose for stream in dataset.streams]
    assert again.epoch_size == dataset.epoch_size


def ended(error=None):
    future = Future()
    future.set_exception(error) if error else future.set_result(3)
    return future


@pytest.mark.parametrize("read", [StreamingDataLoader, lambda dataset: DataLoader(dataset, batch_size=2)])
def test_the_error_of_a_call_in_the_background_ends_what_reads(read, data):
    dataset = StreamingDataset(local=data, batch_size=2)
    iterator = iter(read(dataset))
    assert dataset.on_exception(ended()) is None
    assert numbers([next(iterator)]) == [[0, 1]]
    with pytest.raises(ZeroDivisionError):
        dataset.on_exception(ended(ZeroDivisionError("of the background")))
    with pytest.raises(ZeroDivisionError, match="of the background"):
        list(iterator)
    with pytest.raises(ZeroDivisionError, match="of the background"):
        dataset[5]


def test_a_dataset_says_what_follows_from_its_settings(two):
    streams = [Stream(local=path) for path in two]
    dataset = StreamingDataset(streams=streams, batch_size=4, shuffle=True, sampling_method="fixed")
    assert not dataset.epoch_seed_change
    assert StreamingDataset(streams=streams, shuffle=True).epoch_seed_change
    assert (dataset.length, dataset.allow_unsafe_types) == (len(dataset), False)
    assert dataset.max_shard_size_across_all_streams == max(entry.raw_bytes for entry in dataset.shards)
    assert (dataset.num_canonical_nodes, dataset.shuffle_block_size, dataset.initial_physical_nodes) == (None,) * 3
    next(iter(dataset))
    assert (dataset.num_canonical_nodes, dataset.shuffle_block_size, dataset.initial_physical_nodes) == (
        1,
        4_000_000,
        1,
    )


def test_shards_and_their_columns_have_the_names_that_users_know(two):
    local = LocalDataset(two[0])
    streamed = StreamingDataset(local=two[0], batch_size=4)
    assert (local.num_samples, local.size, local.split, streamed.streams[0].split) == (60, 60, "", "")
    assert local.spanner[59] == streamed.spanner[59]
    assert sum(map(len, local.shards)) == sum(shard.size for shard in streamed.shards) == 60
    shard = local.shards[0]
    assert (shard.column_names, shard.column_encodings, shard.column_sizes) == (
        ["number", "text"],
        ["int", "str"],
        [8, None],
    )
