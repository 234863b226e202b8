"""Streams under torch's face and the reference's, which one engine feeds."""

import pytest
import torch
from streaming_examples import numbers, write

from fkat_data import ConfigurationError, DataLoader, StateMismatchError
from fkat_data.errors import ShardCorruptError
from fkat_data.streaming import StreamingDataLoader, StreamingDataset, World

NUM_SAMPLES = 97
WORKERS = [0, pytest.param(1, marks=pytest.mark.with_processes), pytest.param(2, marks=pytest.mark.with_processes)]
FACES = [DataLoader, StreamingDataLoader]


def make(data, face=DataLoader, rank=0, num_ranks=1, dataset_options=None, **options):
    world = World(1, num_ranks, 1, rank)
    given = {"shuffle": True, "shuffle_algo": "py1e", "batch_size": 12 // num_ranks, "num_canonical_nodes": 2}
    dataset = StreamingDataset(local=data, world=world, **given | (dataset_options or {}))
    return face(dataset, batch_size=dataset.batch_size, **options)


@pytest.mark.parametrize("method", ["random", "stratified", "device_stratified", "per_stream", "device_per_stream"])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_what_torchs_own_loader_reads_is_what_both_faces_deliver(data, method, num_ranks):
    options = {"batching_method": method, "shuffle_algo": "block"}
    for rank in range(num_ranks):
        dataset = make(data, rank=rank, num_ranks=num_ranks, dataset_options=options).dataset
        expected = numbers(torch.utils.data.DataLoader(dataset, batch_size=dataset.batch_size))
        for face in FACES:
            with make(data, face, rank, num_ranks, options) as loader:
                assert numbers(loader) == expected


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("num_workers", WORKERS)
def test_of_batches_that_are_read_together_those_before_a_faulty_one_come_first(tmp_path, num_workers):
    path = write(tmp_path / "numbers", NUM_SAMPLES, columns=("number",))
    with make(path, dataset_options={"shuffle": False}) as loader:
        states = [loader.state_dict()["place"][0]["stream"]]
        whole = []
        for batch in loader:
            whole.append(batch["number"].tolist())
            states.append(loader.state_dict()["place"][0]["stream"])
    shards = sorted((tmp_path / "numbers").glob("shard.*"))
    damaged = shards[-1]
    damaged.write_bytes(damaged.read_bytes()[:-40])
    with make(path, dataset_options={"shuffle": False}, num_workers=num_workers) as loader:
        for first in (0, 2):
            loader.load_state_dict({**loader.state_dict()["place"][0], "stream": states[first]})
            found = []
            iterator = iter(loader)
            with pytest.raises(ShardCorruptError):
                found.extend(batch["number"].tolist() for batch in iterator)
            assert 0 < len(found) < len(whole) - first
            assert found == whole[first : first + len(found)]
            assert loader.step == first + len(found)
            with pytest.raises(ShardCorruptError):
                next(iterator)


def test_what_does_not_fit_a_stream_is_refused_by_name(data):
    with pytest.raises(ConfigurationError, match="batch_size"):
        DataLoader(make(data).dataset, batch_size=5)
    with make(data) as loader, DataLoader(range(9)) as other:
        with pytest.raises(StateMismatchError, match="stream"):
            other.load_state_dict(loader.state_dict())
        with pytest.raises(StateMismatchError):
            loader.load_state_dict(other.state_dict())
