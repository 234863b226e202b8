"""Every public name of the systems that this library replaces is here, or the migration page says what is used instead."""

import inspect
import json
import re
import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, SequentialSampler

import fkat_data
from fkat_data import datasets, mixing, streaming
from fkat_data.mixing import RoundRobin
from fkat_data.streaming.formats import FileInfo
from fkat_data.streaming.order import Spanner

DOCS = Path(__file__).parents[2] / "docs" / "migration"
GOLDEN = Path(__file__).parents[1] / "golden" / "states"
OBJECTS = tomllib.loads(Path(__file__).with_name("names_of_other_systems.toml").read_text())["object"]
HERE = [entry for entry in OBJECTS if set(entry) - {"system", "name", "instead"}]
CASES = {case["file"]: case for case in json.loads((GOLDEN / "cases.json").read_text())["buffer_sorted"]}
MODULES = {"mosaicml": [streaming], "fkat": [fkat_data, datasets, mixing], "d9d": [datasets], "llm-pytorch": [datasets]}


class Keyed(Dataset):
    """Items with a length, and a state."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return index

    def sort_key(self, index):
        return index % 5

    def state_dict(self):
        return {"visits": 0}

    def load_state_dict(self, state_dict):
        pass


def written(path, writer=streaming.MDSWriter, **options):
    with writer(out=str(path), columns={"a": "int"}, **options) as made:
        for number in range(9):
            made.write({"a": number})
    return str(path)


def lines(path):
    path.write_text('{"a": 1}\n{"a": 2}\n')
    return str(path)


def table(path):
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    parquet.write_table(arrow.table({"a": [1, 2]}), path)
    return str(path)


def of_writer(path, **options):
    given = {"columns": {"a": "int"}, "out": str(path), "keep_local": False, "compression": "gz", "hashes": ["md5"]}
    return {**given, "size_limit": 99, "progress_bar": False, "max_workers": 1, "retry": 2, "exist_ok": True, **options}


def reader_of(path, writer, **options):
    return lambda **_: streaming.LocalDataset(written(path, writer, **options)).shards[0]


def streaming_arguments(path):
    given = {"streams": None, "remote": None, "local": written(path / "data"), "split": None, "download_retry": 2}
    given |= {"download_timeout": 60, "validate_hash": None, "keep_zip": False, "epoch_size": "9", "predownload": 4}
    given |= {"cache_limit": None, "sampling_method": "balanced", "sampling_granularity": 1, "batch_size": 2}
    given |= {"partition_algo": "relaxed", "num_canonical_nodes": 1, "shuffle": True, "shuffle_algo": "py1e"}
    given |= {"shuffle_seed": 3, "shuffle_block_size": 100, "batching_method": "random", "allow_unsafe_types": False}
    return given | {"replication": 1, "stream_name": "stream", "stream_config": {}}


def stream_arguments(path):
    given = {"remote": None, "local": written(path / "data"), "split": "", "proportion": 0.5, "repeat": None}
    given |= {"choose": None, "download_retry": 1, "download_timeout": 9.0, "validate_hash": None}
    return given | {"keep_zip": True}


def sharded_arguments():
    given = {"seed": 7, "shard_sampler": FILES, "dataloader_factory": fkat_data.DataLoaderFactory(range), "dp_rank": 0}
    given |= {"num_shard_prefetches": 0, "num_microbatch_prefetches": -1, "profiler": None, "device": None}
    return given | {"multiprocessing": False}


def factory_arguments():
    given = {"dataset_generator": range, "sampler_generator": SequentialSampler, "batch_sampler_generator": None}
    return given | {"dataloader_generator": None, "batch_size": 1}


def rank_arguments():
    return {"sampler": FILES, "dp_size": 2, "dp_rank": 1, "drop_last": True, "num_uri_merge": 0}


def listing_arguments(path):
    return {"uri": lines(path / "a.jsonl"), "glob": "*", "recursive": True, "num_uri_merge": 0}


def view_arguments():
    given = {"dataset": Keyed(), "total_shards": 2, "current_shard": 1, "indexing_mode": "chunked"}
    return given | {"pad_to_equal_size_across_shards": True}


def padding_arguments():
    left = datasets.PaddingSide1D.left
    return {"items": [torch.arange(3)], "pad_value": 0, "padding_side": left, "pad_to_multiple_of": 4}


def shards_arguments():
    given = {"dataset_type": list, "shard_params": {"a": ((range(4),), {})}, "rank": 0, "world_size": 1}
    return given | {"shuffle": False, "seed": 0}


def over(path):
    return streaming.StreamingDataset(local=written(path / "data"), batch_size=2)


def merge_in(path):
    written(path / "all" / "0")
    return lambda **given: streaming.merge_index(str(path / "all"), **given)


FILES = ["a", "b"]
MDS, JSON, XSV = streaming.MDSWriter, streaming.JSONWriter, streaming.XSVWriter
#: What makes an object of this library, and each argument that the other system has, with a value.
MADE = {
    "mosaicml StreamingDataset": lambda path: (streaming.StreamingDataset, streaming_arguments(path)),
    "mosaicml Stream": lambda path: (streaming.Stream, stream_arguments(path)),
    "mosaicml StreamingDataLoader": lambda path: (
        streaming.StreamingDataLoader,
        {"dataset": over(path), "batch_size": 2},
    ),
    "mosaicml LocalDataset": lambda path: (streaming.LocalDataset, {"local": written(path / "data"), "split": None}),
    "mosaicml MDSWriter": lambda path: (MDS, of_writer(path / "data")),
    "mosaicml JSONWriter": lambda path: (JSON, of_writer(path / "data", newline="\n")),
    "mosaicml XSVWriter": lambda path: (XSV, of_writer(path / "data", separator=":", newline="\n")),
    "mosaicml CSVWriter": lambda path: (streaming.CSVWriter, of_writer(path / "data", newline="\n")),
    "mosaicml TSVWriter": lambda path: (streaming.TSVWriter, of_writer(path / "data", newline="\n")),
    "mosaicml MDSReader": lambda path: (reader_of(path / "data", MDS), {}),
    "mosaicml JSONReader": lambda path: (reader_of(path / "data", JSON), {}),
    "mosaicml XSVReader": lambda path: (reader_of(path / "data", XSV, separator=":"), {}),
    "mosaicml FileInfo": lambda _: (FileInfo, {"basename": "a", "bytes": 3, "hashes": {}}),
    "mosaicml Spanner": lambda _: (Spanner, {"shard_sizes": np.array([3, 4])}),
    "mosaicml World": lambda _: (
        streaming.World,
        {"num_nodes": 2, "ranks_per_node": 2, "workers_per_rank": 2, "worker": 7},
    ),
    "mosaicml merge_index": lambda path: (merge_in(path), {"keep_local": True}),
    "fkat ShardedDataLoader": lambda _: (fkat_data.ShardedDataLoader, sharded_arguments()),
    "fkat DataLoaderFactory": lambda _: (fkat_data.DataLoaderFactory, factory_arguments()),
    "fkat ShardSampler": lambda _: (fkat_data.ShardSampler, {}),
    "fkat ShuffledShardSampler": lambda _: (fkat_data.ShuffledShardSampler, {"sampler": FILES}),
    "fkat DistributedDataParallelShardSampler": lambda _: (
        fkat_data.DistributedDataParallelShardSampler,
        rank_arguments(),
    ),
    "fkat FsShardSampler": lambda path: (fkat_data.FsShardSampler, listing_arguments(path)),
    "fkat ShmDataLoader": lambda _: (partial(fkat_data.DataLoader, range(4)), {"seed": 7, "device": None}),
    "fkat DictDataLoader": lambda _: (
        mixing.DictDataLoader,
        {"dataloaders": {"a": [{"b": 1}]}, "strategy": RoundRobin(["a"]), "key": "dataset"},
    ),
    "fkat DictBatchSampler": lambda _: (
        mixing.DictBatchSampler,
        {"strategy": RoundRobin(["a"]), "samplers": {"a": [[0]]}},
    ),
    "fkat Weighted": lambda _: (mixing.Weighted, {"weights": {"a": 0.25, "b": 0.75}}),
    "fkat RoundRobin": lambda _: (mixing.RoundRobin, {"names": FILES}),
    "fkat Frequency": lambda _: (mixing.Frequency, {"freq": [["a", 2], ["b", 1]]}),
    "fkat MapDataset": lambda _: (datasets.MapDataset, {"dataset": Keyed(), "fn": str}),
    "fkat IterableMapDataset": lambda path: (
        datasets.IterableMapDataset,
        {"dataset": datasets.IterableJsonDataset(lines(path / "a")), "fn": str},
    ),
    "fkat DictDataset": lambda _: (datasets.DictDataset, {"datasets": {"a": Keyed()}, "key": "dataset"}),
    "fkat JsonDataset": lambda path: (partial(datasets.JsonDataset, lines(path / "a")), {}),
    "fkat IterableJsonDataset": lambda path: (partial(datasets.IterableJsonDataset, lines(path / "a")), {}),
    "fkat ParquetDataset": lambda path: (partial(datasets.ParquetDataset, table(path / "a")), {"columns": ["a"]}),
    "fkat IterableParquetDataset": lambda path: (
        partial(datasets.IterableParquetDataset, table(path / "a")),
        {"columns": ["a"]},
    ),
    "fkat DataModule": lambda _: (pytest.importorskip("fkat_data.lightning").DataModule, {}),
    "d9d BufferSortedDataset": lambda _: (
        datasets.BufferSortedDataset,
        {"base_dataset": Keyed(), "buffer_size": 5, "pack_size": 2, "init_seed": 3},
    ),
    "d9d DatasetImplementingSortKeyProtocol": lambda _: (lambda: datasets.DatasetImplementingSortKeyProtocol, {}),
    "d9d ShardedDataset": lambda _: (datasets.ShardedDataset, view_arguments()),
    "d9d ShardIndexingMode": lambda _: (lambda: datasets.ShardIndexingMode, {}),
    "d9d PaddingSide1D": lambda _: (lambda: datasets.PaddingSide1D, {}),
    "d9d pad_stack_1d": lambda _: (datasets.pad_stack_1d, padding_arguments()),
    "d9d DataLoaderProtocol": lambda _: (partial(fkat_data.DataLoader, range(4)), {}),
    "llm-pytorch DistributedShardedDataset": lambda _: (datasets.DistributedShardedDataset, shards_arguments()),
    "llm-pytorch ResumableSequentialSampler": lambda _: (
        datasets.ResumableSequentialSampler,
        {"data_source": range(23), "start_index": 3},
    ),
}


def made(entry, path):
    make, given = MADE[f"{entry['system']} {entry['name']}"](path)
    return make(**given)


def long_where_lightning_is_imported(entries):
    marks = {"DataModule": [pytest.mark.long]}
    return [
        pytest.param(entry, marks=marks.get(entry["name"], []), id=f"{entry['system']}-{entry['name']}")
        for entry in entries
    ]


here = pytest.mark.parametrize("entry", long_where_lightning_is_imported(HERE))


@here
def test_an_object_takes_the_arguments_and_has_the_names_that_it_has_there(entry, tmp_path):
    make, given = MADE[f"{entry['system']} {entry['name']}"](tmp_path)
    assert sorted(given) == sorted(entry.get("argument", []))
    found = make(**given)
    for method in entry.get("method", []):
        assert callable(getattr(found, method)), method
    for attribute in entry.get("attribute", []):
        value = getattr(found, attribute)
        assert not inspect.ismethod(value), attribute
        if given.get(attribute) is not None and attribute not in ("epoch_size", "weights"):
            assert value == (tuple(given[attribute]) if isinstance(value, tuple) else given[attribute]), attribute
    for attribute in entry.get("settable", []):
        value = getattr(found, attribute)
        setattr(found, attribute, value)
        assert getattr(found, attribute) == value
    getattr(found, "close", lambda: None)()


@here
def test_a_name_that_is_said_not_to_be_here_is_not_here(entry, tmp_path):
    found = made(entry, tmp_path)
    listed = {*entry.get("method", []), *entry.get("attribute", []), *entry.get("argument", [])}
    for name in entry.get("instead", []):
        assert name not in listed
        if entry["name"] not in ("DataModule", "ShmDataLoader") and name not in ("shards", "columns"):
            assert not hasattr(found, name), name
    getattr(found, "close", lambda: None)()


@pytest.mark.parametrize("entry", OBJECTS, ids=lambda entry: f"{entry['system']}-{entry['name']}")
def test_the_migration_page_says_what_is_used_instead_of_a_name(entry):
    page = re.sub(r"^```.*?^```$", "", (DOCS / f"{entry['system']}.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`([^`]+)`", page)
    words = {word for span in spans for word in re.findall(r"\w+", span)}
    missing = [name for name in entry.get("instead", []) if name not in words]
    assert not missing, f"docs/migration/{entry['system']}.md lacks a line on {missing}"


@pytest.mark.parametrize("system", MODULES)
def test_a_class_of_the_same_name_is_imported_from_here(system):
    elsewhere = {"MDSReader", "JSONReader", "XSVReader", "FileInfo", "Spanner", "ShmDataLoader", "DataModule"}
    for entry in HERE:
        if entry["system"] == system and entry["name"] not in elsewhere | {"DataLoaderProtocol"}:
            assert any(entry["name"] in module.__all__ for module in MODULES[system]), entry["name"]


def test_attributes_follow_what_they_are_made_of(tmp_path):
    loader = made({"system": "fkat", "name": "ShardedDataLoader"}, tmp_path)
    loader.set_device("cpu")
    assert loader.device == "cpu"
    loader.close()
    assert mixing.Weighted({"a": 1, "b": 3}).weights == [1, 3]
    dataset = made({"system": "mosaicml", "name": "StreamingDataset"}, tmp_path)
    assert (dataset.epoch_size, dataset.length) == (9, 9)
    for name in ("shuffle", "shuffle_seed", "num_canonical_nodes", "length", "epoch_size"):
        with pytest.raises(AttributeError, match=name):
            setattr(dataset, name, getattr(dataset, name))


def keys_of(system, name):
    return next(entry["state_key"] for entry in OBJECTS if (entry["system"], entry["name"]) == (system, name))


@pytest.mark.parametrize("name", ["StreamingDataset", "StreamingDataLoader"])
def test_a_state_has_the_keys_of_mosaicmls_and_loads_with_them_alone(name, tmp_path):
    keys = keys_of("mosaicml", name)
    found = made({"system": "mosaicml", "name": name}, tmp_path)
    state = found.state_dict(4, True) if name == "StreamingDataset" else found.state_dict()
    assert [key for key in keys if key in state] == keys
    found.load_state_dict({key: state[key] for key in keys})
    for key in keys:
        changed = {other: state[other] for other in keys if other != key}
        if key == "initial_physical_nodes":  # older states there have none
            found.load_state_dict(changed)
        else:
            with pytest.raises(fkat_data.StateMismatchError, match=key):
                found.load_state_dict(changed)


def test_a_state_has_the_key_of_fkats_and_loads_with_it_alone():
    loader = made({"system": "fkat", "name": "ShardedDataLoader"}, None)
    (key,) = keys_of("fkat", "ShardedDataLoader")
    state = loader.state_dict()
    assert [index.item() for index in state[key]] == [-1]
    loader.load_state_dict({key: state[key]})
    loader.close()


@pytest.mark.parametrize(("name", "file"), [("BufferSortedDataset", "d9d_buffer_sorted.pt"), ("ShardedDataset", None)])
def test_a_state_with_the_keys_of_d9ds_loads(name, file, tmp_path):
    found = made({"system": "d9d", "name": name}, tmp_path)
    if file is not None:
        state = torch.load(GOLDEN / file, weights_only=False)
        assert CASES[file]["buffer_size"] == 5
        state = {**state, "base_dataset": Keyed().state_dict()}
    else:
        state = {"total_shards": 2, "current_shard": 1, "dataset": Keyed().state_dict()}
    assert sorted(state) == sorted(keys_of("d9d", name))
    found.load_state_dict(state)


def test_a_checkpoint_with_the_key_of_llm_pytorchs_loads():
    (key,) = keys_of("llm-pytorch", "ResumableSequentialSampler")
    checkpoint = torch.load(GOLDEN / "llm_pytorch_checkpoint.pt", weights_only=True)
    sampler = made({"system": "llm-pytorch", "name": "ResumableSequentialSampler"}, None)
    sampler.load_state_dict(checkpoint)
    assert sampler.index == checkpoint[key]
