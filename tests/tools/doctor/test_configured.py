"""What a loader would do is told without reading data, and what cannot work is named."""

import pytest

from fkat_data import DataLoader, DataLoaderFactory, ShardedDataLoader
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from fkat_data.tools.doctor.examine import configured_findings, memory_finding, worker_finding
from fkat_data.tools.doctor.findings import Level


def factory(shard):
    raise RuntimeError("the doctor reads no data")


factory.num_microbatches = len


def examined(make):
    return {finding.subject: finding for finding in configured_findings(make, 2)}


def test_a_loader_of_shards_is_described(tmp_path):
    paths = [str(tmp_path / name) for name in ("a", "b")]
    for path in paths:
        (tmp_path / path).write_bytes(bytes(1024))
    closed = []

    class Loader(ShardedDataLoader):
        def close(self):
            closed.append(self)
            super().close()

    found = examined(lambda: Loader(0, paths, factory, multiprocessing=False))
    assert {finding.level for finding in found.values()} <= {Level.OK}, found
    assert found["shards"].found == "2 on this rank in an epoch, 2 KiB of files"
    assert found["epoch"].found == f"{sum(map(len, paths)):,} microbatches on this rank"
    assert closed


def test_missing_shards_are_named(tmp_path):
    found = examined(lambda: ShardedDataLoader(0, [str(tmp_path / "none")], factory, multiprocessing=False))
    assert found["shards"].level is Level.WRONG
    assert str(tmp_path / "none") in found["shards"].found


def test_keys_of_the_users_own_are_no_missing_files():
    found = examined(lambda: ShardedDataLoader(0, ["train", "test"], factory, multiprocessing=False))
    assert found["shards"].found == "2 on this rank in an epoch"


def test_a_length_that_is_not_known_is_advice():
    found = examined(lambda: ShardedDataLoader(0, iter(["a"]), lambda shard: [shard], multiprocessing=False))
    assert found["epoch"].level is Level.ADVICE
    assert found["shards"].level is Level.OK


def test_a_shard_that_cannot_be_opened_is_wrong():
    opening = DataLoaderFactory(factory)
    found = examined(lambda: ShardedDataLoader(0, ["train"], opening, multiprocessing=False))
    assert found["epoch"].level is Level.WRONG
    assert found["epoch"].found == "a shard cannot be opened: the doctor reads no data"


def test_a_streaming_loader_is_described_with_its_cache(tmp_path):
    with MDSWriter(out=str(tmp_path / "data"), columns={"number": "int"}, size_limit=200) as writer:
        for number in range(50):
            writer.write({"number": number})

    def make():
        dataset = StreamingDataset(remote=str(tmp_path / "data"), local=str(tmp_path / "cache"), batch_size=5)
        return StreamingDataLoader(dataset, num_workers=1)

    found = examined(make)
    assert found["epoch"].found == "10 microbatches on this rank"
    assert found["dataset"].found.startswith("50 samples in")
    assert found["workers"].found == "1 on 2 cores"
    assert f"cache {tmp_path / 'cache'}" in found


def test_an_error_of_the_configuration_is_one_line():
    def make():
        raise ValueError("two\nlines")

    (finding,) = configured_findings(make, 2)
    assert finding.level is Level.WRONG
    assert "ValueError: two lines" in finding.found


@pytest.mark.parametrize(("num_workers", "level"), [(0, Level.OK), (8, Level.OK), (9, Level.ADVICE)])
def test_many_workers_on_few_cores_are_advice(num_workers, level):
    assert worker_finding(num_workers, 2).level is level


@pytest.mark.parametrize(
    ("limit_bytes", "level"), [(1 << 30, Level.OK), (3 << 30, Level.ADVICE), (5 << 30, Level.WRONG)]
)
def test_a_memory_limit_that_the_machine_cannot_meet_is_named(limit_bytes, level):
    finding = memory_finding(limit_bytes, 4 << 30)
    assert finding.level is level
    assert "4 GiB" in finding.found
    assert bool(finding.change) == (level is not Level.OK)


def test_the_memory_of_a_loader_without_shards_is_named_too():
    found = examined(lambda: DataLoader([1, 2], num_workers=1, memory_limit_bytes=1 << 50))
    assert found["memory"].level is Level.WRONG
    assert found["memory"].found.startswith("at most 1.02e+03 TiB")
