import pickle
import time

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archive_examples import archive
from fsspec.implementations.memory import MemoryFileSystem

from fkat_data import ShardedDataLoader
from fkat_data.datasets import IterableJsonDataset, IterableParquetDataset, JsonDataset, ParquetDataset, TarDataset
from fkat_data.errors import ConfigurationError, ShardNotFoundError

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


@pytest.mark.parametrize(
    "dataset", [ParquetDataset, IterableParquetDataset, JsonDataset, IterableJsonDataset, TarDataset]
)
def test_files_are_found_after_chdir_and_in_the_home_directory(dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    if "Parquet" in dataset.__name__:
        pq.write_table(pa.table({"x": [1]}), tmp_path / "a b")
    elif dataset is TarDataset:
        (tmp_path / "a b").write_bytes(archive([("0.x.cls", b"1")]))
    else:
        (tmp_path / "a b").write_text('{"x": 1}\n')
    monkeypatch.chdir(tmp_path)
    made = [dataset(path) for path in ("a b", "~/a b", f"file://{tmp_path}/a%20b")]
    monkeypatch.chdir(tmp_path / "elsewhere")
    name = "x.cls" if dataset is TarDataset else "x"
    assert [next(iter(pickle.loads(pickle.dumps(each))))[name] for each in made] == [1, 1, 1]
    with pytest.raises(ConfigurationError, match=r"paths = 'dbfs:/Volumes/a'"):
        dataset("dbfs:/Volumes/a")
    with pytest.raises(ConfigurationError, match="distinct"):
        dataset(["~/a b", str(tmp_path / "a b")])


@pytest.mark.parametrize("kind", [JsonDataset, ParquetDataset, TarDataset])
def test_a_pattern_says_that_it_is_not_expanded(kind, tmp_path):
    with pytest.raises(ShardNotFoundError, match=r"no such file, and patterns are not expanded here: pass the list"):
        kind(str(tmp_path / "part-*.json"))
