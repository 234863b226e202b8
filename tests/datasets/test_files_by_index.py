"""What the datasets of files have in common: rows by index, from any store, in copies and in forks."""

import copy
import gzip
import os
import pickle
import time
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from archive_examples import archive
from fsspec.implementations.memory import MemoryFileSystem
from interpreters import run_python
from written_files import FORMATS, NUM_SAMPLES, write_lines

from fkat_data import ShardedDataLoader
from fkat_data.datasets import IterableJsonDataset, IterableParquetDataset, JsonDataset, ParquetDataset, TarDataset
from fkat_data.errors import ConfigurationError, ShardNotFoundError

IN_ORDER = {JsonDataset: IterableJsonDataset, ParquetDataset: IterableParquetDataset}


def lines_by(compress):
    def write(path, word):
        write_lines(path, word)
        path.write_bytes(compress(path.read_bytes()))

    return write


@pytest.fixture(params=[*FORMATS, (JsonDataset, lines_by(gzip.compress)), (JsonDataset, lines_by(zstandard.compress))])
def dataset(request, tmp_path):
    kind, write = request.param
    write(tmp_path / "file", "word")
    return kind(str(tmp_path / "file"))


def numbers(rows):
    return [row["n"] if "n" in row else int(row["__key__"]) for row in rows]


@pytest.mark.parametrize("index", [1.5, "1", slice(0, 2), None])
def test_an_index_is_an_integer(dataset, index):
    with pytest.raises(TypeError, match="integers"):
        dataset[index]


def test_copies_and_pickles_are_small_and_read_alike(dataset):
    dataset[0]
    blob = pickle.dumps(dataset)
    assert len(blob) < 2000
    for twin in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(blob), dataset):
        assert numbers(twin) == list(range(NUM_SAMPLES))


def test_a_forked_process_reads_beside_its_parent(processes, dataset):
    dataset[0]
    child = os.fork()
    if child == 0:
        try:
            os._exit(numbers(dataset) != list(range(NUM_SAMPLES)))
        finally:  # an exception must not make a second pytest of the child
            os._exit(2)
    assert numbers(dataset) == list(range(NUM_SAMPLES))
    assert os.waitpid(child, 0)[1] == 0


def test_any_file_system_of_fsspec_is_read(dataset, tmp_path):
    with fsspec.open("memory://rows/file", "wb") as file:
        file.write((tmp_path / "file").read_bytes())
    for uri in ("memory://rows/file", f"file://{tmp_path}/file"):
        assert numbers(type(dataset)(uri).__getitems__([11, 1])) == [11, 1]
        if type(dataset) in IN_ORDER:
            assert numbers(IN_ORDER[type(dataset)](uri)) == list(range(NUM_SAMPLES))


@pytest.mark.parametrize("missing", ["{folder}/nothing", "file://{folder}/nothing", "memory://nothing"])
def test_a_missing_file_is_named(dataset, tmp_path, missing):
    missing = missing.format(folder=tmp_path)
    for kind in {type(dataset), IN_ORDER.get(type(dataset), type(dataset))}:
        with pytest.raises(ShardNotFoundError, match=missing):
            list(kind(missing))


@pytest.mark.parametrize(
    ("package", "extra", "kind", "name"),
    [
        ("pyarrow", "parquet", "datasets import ParquetDataset", "a.parquet"),
        ("pyarrow", "parquet", "streaming import LocalDataset", "a.parquet"),
        ("zstandard", "json", "datasets import JsonDataset", "lines.zst"),
    ],
)
def test_without_its_package_a_dataset_says_what_to_install(processes, tmp_path, package, extra, kind, name):
    (tmp_path / name).write_bytes(b"PAR1" if extra == "parquet" else zstandard.compress(b"1\n"))
    program = f"""
import sys
sys.modules[{package!r}] = None
try:
    from fkat_data.{kind} as Dataset
    Dataset({str(tmp_path / name)!r})
except Exception as error:
    print(type(error).__name__, error)
"""
    assert run_python("-c", program).stdout.startswith(
        f"ConfigurationError {package} = <not installed>: expected pip install 'fkat_data[{extra}]'"
    )


READ_S = 0.02
reads = []


class SlowFileSystem(MemoryFileSystem):
    """Files in memory, each read of which takes its time."""

    protocol = "slowly"

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("slowly://").lstrip("/")

    def open(self, path, mode="rb", **keywords):
        file = super().open(path, mode, **keywords)
        read = file.read

        def slow_read(size=-1):
            time.sleep(READ_S)
            reads.append(path)
            return read(size)

        file.read = slow_read
        return file


@pytest.fixture
def store(monkeypatch):
    fsspec.register_implementation("slowly", SlowFileSystem, clobber=True)
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    return SlowFileSystem()


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_waiting_for_a_store_is_told_from_the_datasets_own_work(kind, store):
    if kind == "parquet":
        with store.open("/data", "wb") as file:
            pq.write_table(pa.table({"x": list(range(100))}), file)
        dataset = ParquetDataset
    else:
        store.pipe("/data", b'{"x": 1}\n' * 100)
        dataset = IterableJsonDataset
    reads.clear()

    def factory(shard):
        opened = dataset(shard)
        return [opened[index] for index in range(5)] if kind == "parquet" else list(opened)

    loader = ShardedDataLoader(0, ["slowly://data"], factory, multiprocessing=False)
    assert len(list(loader)) == (5 if kind == "parquet" else 100)
    statistics = loader.statistics()
    assert len(reads) >= 2
    assert statistics.store_s >= len(reads) * READ_S


@pytest.mark.parametrize("kind", [ParquetDataset, IterableParquetDataset, JsonDataset, IterableJsonDataset, TarDataset])
def test_files_are_found_after_chdir_and_in_the_home_directory(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    if "Parquet" in kind.__name__:
        pq.write_table(pa.table({"x": [1]}), tmp_path / "a b")
    elif kind is TarDataset:
        (tmp_path / "a b").write_bytes(archive([("0.x.cls", b"1")]))
    else:
        (tmp_path / "a b").write_text('{"x": 1}\n')
    monkeypatch.chdir(tmp_path)
    made = [kind(path) for path in ("a b", [Path("~/a b")], f"file://{tmp_path}/a%20b")]
    monkeypatch.chdir(tmp_path / "elsewhere")
    name = "x.cls" if kind is TarDataset else "x"
    assert [next(iter(pickle.loads(pickle.dumps(each))))[name] for each in made] == [1, 1, 1]
    with pytest.raises(ConfigurationError, match=r"paths = 'dbfs:/Volumes/a'"):
        kind("dbfs:/Volumes/a")
    with pytest.raises(ConfigurationError, match="distinct"):
        kind(["~/a b", str(tmp_path / "a b")])


@pytest.mark.parametrize("kind", [JsonDataset, ParquetDataset, TarDataset])
def test_a_pattern_says_that_it_is_not_expanded(kind, tmp_path):
    with pytest.raises(ShardNotFoundError, match=r"no such file, and patterns are not expanded here: pass the list"):
        kind(str(tmp_path / "part-*.json"))
