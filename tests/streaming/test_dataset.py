import numpy as np
import pytest
import torch
from own_datasets import Iterated
from streaming_examples import global_batches, numbers, sample, world, worlds, write
from torch.utils.data import DataLoader
from walks import begun

from fkat_data.errors import ConfigurationError, StaleIteratorError, StateMismatchError
from fkat_data.streaming import LocalDataset, Stream, StreamingDataLoader, StreamingDataset
from fkat_data.streaming.order import BATCHING_METHODS


def test_the_epoch_after_a_resumed_one_is_the_one_that_would_have_followed(data):
    options = {"local": data, "batch_size": 4, "shuffle": True, "shuffle_seed": 5, "num_canonical_nodes": 2}
    plain = StreamingDataLoader(StreamingDataset(**options))
    iterator = begun(plain, 1)
    state = plain.state_dict()
    list(iterator)
    following = numbers(plain)
    # The other dataset would have chosen another seed and other canonical nodes.
    other = StreamingDataLoader(StreamingDataset(**options | {"shuffle_seed": 6, "num_canonical_nodes": None}))
    other.load_state_dict(state)
    list(other)
    assert numbers(other) == following


def test_replicated_ranks_read_the_same(data):
    read = [
        numbers(StreamingDataLoader(StreamingDataset(local=data, batch_size=5, replication=2, world=world(1, 4, rank))))
        for rank in range(4)
    ]
    assert read[0] == read[1] != read[2] == read[3]


@pytest.mark.parametrize(("nodes", "ranks", "batch_size"), [(1, 1, 24), (2, 2, 6), (1, 8, 3), (3, 1, 8)])
def test_stratified_by_device_has_the_same_global_batches_and_every_rank_each_streams_share(
    two, nodes, ranks, batch_size
):
    options = {"streams": [Stream(local=path) for path in two], "shuffle": True, "num_canonical_nodes": 6}
    options |= {"batch_size": batch_size, "shuffle_algo": "block"}
    plain = global_batches(nodes, ranks, batching_method="stratified", **options)
    assert global_batches(nodes, ranks, batching_method="device_stratified", **options) == plain
    exact = batch_size * 9 / 24  # of 24 samples, 9 are of the second stream
    for one in worlds(nodes, ranks):
        dataset = StreamingDataset(world=one, batching_method="device_stratified", **options)
        for batch in numbers(StreamingDataLoader(dataset)):
            assert abs(sum(number >= 1000 for number in batch) - exact) < 1


def test_a_stream_of_weight_nothing_gives_nothing(two):
    streams = [Stream(local=two[0], proportion=1), Stream(local=two[1], proportion=0)]
    for method in BATCHING_METHODS:
        dataset = StreamingDataset(streams=streams, batch_size=4, epoch_size=60, shuffle=True, batching_method=method)
        found = [sample["number"] for sample in dataset]
        assert found
        assert max(found) < 1000


def test_a_stream_may_be_used_again(two):
    stream = Stream(local=two[0], repeat=0.5)
    assert [StreamingDataset(streams=[stream], batch_size=2).epoch_size for _ in range(2)] == [30, 30]


def test_the_length_is_what_is_read(two):
    for method in BATCHING_METHODS:
        dataset = StreamingDataset(
            streams=[Stream(local=path) for path in two], batch_size=4, batching_method=method, shuffle=True
        )
        loader = StreamingDataLoader(dataset)
        assert len(dataset) == len(list(dataset))
        assert len(loader) == len(list(loader))


def test_what_it_knows_has_the_names_that_users_know(two):
    dataset = StreamingDataset(streams=[Stream(local=path) for path in two], batch_size=4, shuffle_seed=3)
    assert (dataset.num_streams, dataset.num_samples, dataset.size, dataset.epoch_size) == (2, 97, 97, 97)
    assert dataset.samples_per_stream.tolist() == [60, 37]
    assert dataset.sample_offset_per_stream.tolist() == [0, 60]
    assert dataset.shards_per_stream.sum() == dataset.num_shards == len(dataset.shards)
    assert dataset.shard_offset_per_stream.tolist() == [0, dataset.shards_per_stream[0]]
    assert dataset.samples_per_shard.sum() == 97
    assert dataset.stream_per_shard.tolist() == sorted(dataset.stream_per_shard.tolist())
    assert dataset.spanner[60] == (dataset.shards_per_stream[0], 0)
    assert dataset.sample_offset_per_shard[dataset.spanner[60][0]] == 60
    assert (dataset.shuffle, dataset.shuffle_algo, dataset.shuffle_seed) == (False, "py1e", 3)
    assert (dataset.shuffle_block_size, dataset.num_canonical_nodes, dataset.replication) == (None, None, None)
    assert (dataset.sampling_method, dataset.sampling_granularity) == ("balanced", 1)
    assert (dataset.partition_algo, dataset.batching_method) == ("relaxed", "random")


def test_samples_are_had_by_any_index(data):
    dataset = StreamingDataset(local=data)
    assert dataset[3] == dataset[np.int64(-94)] == {"number": 3, "text": "sample 3"}
    assert [item["number"] for item in dataset[::-40]] == [96, 56, 16]
    assert [[item["number"] for item in row] for row in dataset[np.array([[1, 2], [3, 96]])]] == [[1, 2], [3, 96]]
    assert [item["number"] for item in dataset.__getitems__([5, 5, 0])] == [5, 5, 0]
    assert dataset[[]] == []
    for index in (97, -98, [0, 97]):
        with pytest.raises(IndexError):
            dataset[index]
    for index in ("a", 1.0, None, True):
        with pytest.raises(ConfigurationError, match="index"):
            dataset[index]


def test_arrays_come_as_they_are_asked_for(tmp_path):
    path = write(tmp_path / "data", 5, columns=("number", "row", "ragged"))
    first = StreamingDataset(local=path)[2]
    assert first["row"].tolist() == sample(2)["row"].tolist()
    assert not first["row"].flags.writeable
    assert StreamingDataset(local=path, writable=True)[2]["row"].flags.writeable
    assert torch.equal(StreamingDataset(local=path, arrays="torch")[2]["row"], torch.from_numpy(sample(2)["row"]))


def test_an_older_iterator_says_that_it_is_replaced(data):
    datasets = [kind(local=data, batch_size=4) for kind in (StreamingDataset, StreamingDataset, Iterated)]
    for iterable in (datasets[0], *map(StreamingDataLoader, datasets[1:])):
        older = begun(iterable, 1)
        newer = iter(iterable)
        with pytest.raises(StaleIteratorError):
            next(older)
        assert next(newer)
    assert not hasattr(iterable, "num_microbatches")


def test_an_epoch_and_a_state_have_numbers_that_fit(data):
    dataset = StreamingDataset(local=data, batch_size=4)
    with pytest.raises(ConfigurationError, match="next_epoch"):
        dataset.next_epoch = 2**24
    with pytest.raises(StateMismatchError, match="epoch"):
        dataset.load_state_dict(dataset.state_dict(0, False) | {"epoch": 2**70})
    seeded = StreamingDataset(local=data, batch_size=4, shuffle=True, shuffle_seed=2**63 - 2)
    seeded.load_state_dict(seeded.state_dict(4, True))
    assert len(list(seeded)) == len(seeded) - 4


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"local": None}, "streams"),
        ({"streams": [Stream(local="x")]}, "streams"),
        ({"streams": [Stream(local="x")], "local": None, "stream_config": {}}, "streams"),
        ({"stream_name": "x"}, "stream_name"),
        ({"shuffle_algo": "best"}, "shuffle_algo"),
        ({"epoch_size": 2**70}, "epoch_size"),
        ({"stream_config": {"repeat": 1e30}}, "streams"),
        ({"shuffle_seed": 2**63}, "shuffle_seed"),
        ({"num_canonical_nodes": 3, "world": world(2)}, "num_canonical_nodes"),
        ({"shuffle": True, "num_canonical_nodes": 98}, "num_canonical_nodes"),
        ({"replication": 2}, "replication"),
        ({"batching_method": "per_stream", "batch_size": 98}, "batch_size"),
    ],
)
def test_what_cannot_work_is_an_error_of_the_constructor(data, options, argument):
    with pytest.raises(ConfigurationError, match=argument):
        StreamingDataset(**{"local": data, "batch_size": 4} | options)


def test_a_stream_config_adds_to_the_datasets_own_arguments(data, tmp_path):
    config = {"repeat": 2, "split": "none", "local": "nowhere", "download_retry": 7, "keep_zip": True}
    parent, _, split = data.rpartition("/")
    dataset = StreamingDataset(local=parent, split=split, batch_size=4, stream_config=config, download_timeout=9)
    (stream,) = dataset.streams
    assert (stream.local, stream.split, stream.repeat) == (parent, split, 2)
    assert (stream.download_retry, stream.download_timeout, stream.keep_zip) == (7, 9, True)
    assert len(dataset) == 2 * 97
    assert config["local"] == "nowhere"
    copied = StreamingDataset(remote=data, batch_size=4, stream_config={"local": str(tmp_path / "copy")})
    assert len(list(copied)) == 97
    assert (tmp_path / "copy" / "index.json").is_file()


def test_a_stream_of_a_users_class_stays_one(data):
    class Licensed(Stream):
        def __init__(self, *, licence, **options):
            super().__init__(**options)
            self.licence = licence

    given = Licensed(local=data, licence="MIT", split="")
    dataset = StreamingDataset(streams=[given], batch_size=4, keep_zip=True)
    (stream,) = dataset.streams
    assert type(stream) is Licensed
    assert (stream.licence, stream.keep_zip, stream.local) == ("MIT", True, data)
    assert given.keep_zip is None
    assert len(list(dataset)) == 97
    with pytest.raises(ConfigurationError, match="columns"):
        given.filled(columns="text")


def test_a_torch_dataloader_with_workers_reads_a_local_dataset(processes, data):
    loader = DataLoader(LocalDataset(data, columns=["number"]), batch_size=40, num_workers=1)
    assert [batch["number"].tolist() for batch in loader] == [[*range(40)], [*range(40, 80)], [*range(80, 97)]]


def test_an_epoch_without_a_batch_size_is_an_error_that_says_so(data):
    with pytest.raises(ConfigurationError, match="batch_size"):
        iter(StreamingDataset(local=data))
