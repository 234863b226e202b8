"""What is registered serves by its name, in this process and in every process that reads the user's data."""

import json
import pickle
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path

import pytest
from extension_examples import Backwards, Floats, Nothing, Reversed, Twice
from torch.utils.data import DataLoader

from fkat_data import ConfigurationError, DataLoaderFactory, SampleError, ShardCorruptError, ShardedDataLoader
from fkat_data.extensions import register_encoding, register_mover, register_shuffle, register_store, registered
from fkat_data.runtime import registry
from fkat_data.samplers import SequenceShardSampler
from fkat_data.streaming import LocalDataset, MDSWriter, StreamingDataset, write_parallel
from fkat_data.streaming.store import open_store

TEXTS = [f"text {number}" for number in range(12)]
columns = {"text": "reversed"}


@pytest.fixture
def data(tmp_path):
    register_encoding("reversed", Reversed)
    with MDSWriter(out=str(tmp_path / "data"), columns=columns) as writer:
        for text in TEXTS:
            writer.write({"text": text})
    return str(tmp_path / "data")


def shuffled(path, name="backwards"):
    return StreamingDataset(local=path, batch_size=4, shuffle=True, shuffle_algo=name)


def sharded(path, **options):
    factory = DataLoaderFactory(LocalDataset, batch_size=4)
    return ShardedDataLoader(1, SequenceShardSampler([path]), factory, num_shard_prefetches=1, **options)


def forget():
    for named in registry._entries.values():
        named.clear()


def test_a_column_has_an_encoding_of_its_own(data):
    assert [sample["text"] for sample in LocalDataset(data)] == TEXTS
    index = json.loads(Path(data, "index.json").read_text())
    assert index["shards"][0]["column_encodings"] == ["reversed"]
    with MDSWriter(out=f"{data}-2", columns=columns) as writer, pytest.raises(SampleError, match="expected text"):
        writer.write({"text": 3})


def test_an_encoding_that_is_not_registered_here_is_named(data):
    register_encoding("another", Reversed)
    registry._entries["encoding"].pop("reversed")
    with pytest.raises(ShardCorruptError, match=r"pkl, another or ndarray.*register_encoding"):
        LocalDataset(data)
    with pytest.raises(ConfigurationError, match="another"):
        MDSWriter(out=f"{data}-2", columns=columns)


def test_an_order_has_a_name_of_its_own(data):
    register_shuffle("backwards", Backwards)
    assert [sample["text"] for sample in shuffled(data)] == TEXTS[::-1]
    with pytest.raises(ConfigurationError, match=r"shuffle_algo = 'sideways'.*'py2s', 'backwards'"):
        shuffled(data, "sideways")


@pytest.mark.parametrize(("make", "expected"), [(Twice, "numbers of samples from 0 to 11"), (Floats, "not float64")])
def test_an_order_that_is_none_is_an_error_before_a_sample_is_read(data, make, expected):
    register_shuffle("wrong", make)
    with pytest.raises(ConfigurationError, match=expected):
        next(iter(shuffled(data, "wrong")))


def test_a_scheme_has_a_client_of_its_own():
    register_store("nothing", Nothing)
    store = open_store("nothing://at/all", storage_options={"key": "k"}, num_retries=0, timeout_s=1.0)
    assert store.listing() == []
    assert (store.client().url, store.client().options) == ("nothing://at/all", {"key": "k"})
    with pytest.raises(ConfigurationError, match=r"fsspec knows or register_store has registered \(nothing\)"):
        open_store("nonsense://at/all", storage_options=None, num_retries=0, timeout_s=1.0)


def test_what_is_registered_is_listed():
    register_shuffle("backwards", Backwards)
    register_store("nothing", Nothing)
    assert registered() == {"encoding": (), "mover": (), "shuffle": ("backwards",), "store": ("nothing",)}


@pytest.mark.parametrize(
    ("register", "name", "make", "expected"),
    [
        (register_encoding, "int", Reversed, "no encoding of this package"),
        (register_encoding, "ndarray", Reversed, "no encoding of this package"),
        (register_encoding, "my:own", Reversed, "a letter, then letters"),
        (register_encoding, "x", Nothing(None, None), "Encoding"),
        (register_encoding, "x", dict, "Encoding"),
        (register_shuffle, "block", Backwards, "no shuffle of this package"),
        (register_shuffle, "", Backwards, "a letter"),
        (register_shuffle, "x", "backwards", "a class, or a function"),
        (register_store, "file", Nothing, "no store of this package"),
        (register_store, "S4", Nothing, "lower case"),
        (register_mover, "hpu", None, "a class, or a function"),
        (register_mover, 7.5, Nothing, "a type of device"),
    ],
)
def test_what_cannot_be_registered_is_refused(register, name, make, expected):
    with pytest.raises(ConfigurationError, match=expected):
        register(name, make)


def test_a_name_belongs_to_one_definition_which_may_be_made_again():
    register_shuffle("backwards", Backwards)
    register_shuffle("backwards", type("Backwards", (Backwards,), {"__module__": Backwards.__module__}))
    with pytest.raises(ConfigurationError, match=r"no other shuffle has; .*Backwards"):
        register_shuffle("backwards", Twice)


def test_a_dataset_that_was_pickled_brings_what_it_needs(data):
    register_shuffle("backwards", Backwards)
    pickles = [pickle.dumps(dataset) for dataset in (shuffled(data), LocalDataset(data))]
    for content, expected in zip(pickles, (TEXTS[::-1], TEXTS), strict=True):
        forget()
        assert [sample["text"] for sample in pickle.loads(content)] == expected


class ElsewhereExecutor(Executor):
    """Runs each call as a process of a pool would that has registered nothing."""

    def submit(self, function, /, *arguments):
        content, future = pickle.dumps((function, arguments)), Future()
        forget()
        function, arguments = pickle.loads(content)
        future.set_result(function(*arguments))
        return future


def samples_of(number):
    return [{"text": f"{number}"}]


def test_what_writes_in_parallel_knows_the_encoding(tmp_path):
    register_encoding("reversed", Reversed)
    make_writer = partial(MDSWriter, columns=columns)
    write_parallel(make_writer, samples_of, range(3), out=str(tmp_path / "out"), executor=ElsewhereExecutor())
    assert [sample["text"] for sample in LocalDataset(tmp_path / "out")] == ["0", "1", "2"]


@pytest.mark.parametrize("start_method", ["template", "spawn"])
def test_a_worker_opens_shards_of_the_encoding(processes, data, start_method):
    with sharded(data, start_method=start_method) as loader:
        assert [text for microbatch in loader for text in microbatch["text"]] == TEXTS


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_torch_know_the_order_and_the_encoding(processes, data, context):
    register_shuffle("backwards", Backwards)
    loader = DataLoader(shuffled(data), batch_size=4, num_workers=1, multiprocessing_context=context)
    assert [text for microbatch in loader for text in microbatch["text"]] == TEXTS[::-1]


def test_what_cannot_be_sent_to_a_worker_is_named(processes, data):
    import threading

    lock = threading.Lock()
    register_shuffle("locked", lambda *numbers: lock and Backwards(*numbers))
    with pytest.raises(ConfigurationError, match=r"registered\['shuffle'\]\['locked'\]"):
        sharded(data)
