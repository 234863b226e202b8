import time

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from fkat_data import ShardedDataLoader
from fkat_data.datasets import IterableJsonDataset, ParquetDataset

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
