"""What a dataset's cache takes of the disk, and what its open shards take of the process."""

import os
import resource
from pathlib import Path

import numpy as np
import pytest
from forks import in_child
from streaming_examples import write

from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from fkat_data.streaming.reader import reader_of

NUM_SAMPLES = 120
ROW_BYTES = 20_000


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder, columns = tmp_path_factory.mktemp("large"), {"number": "int", "row": "ndarray"}
    with MDSWriter(out=folder, columns=columns, size_limit=5 * (ROW_BYTES + 50)) as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"number": number, "row": np.full(ROW_BYTES, number, np.uint8)})
    return folder


def unmapped_names(local):
    """The sizes of files that have no name and that this process still maps."""
    held = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith(str(local)) and fields[5].endswith("(deleted)"):
            start, end = (int(number, 16) for number in fields[0].split("-"))
            held[fields[4]] = end - start
    return held


def named_bytes(local):
    return sum(path.stat().st_size for path in local.glob("*") if path.is_file())


@pytest.mark.long
def test_a_limit_bounds_the_disk_whatever_the_caller_keeps(large, tmp_path):
    shard_bytes = max(path.stat().st_size for path in large.glob("*.mds"))
    limit_bytes = 6 * shard_bytes
    dataset = StreamingDataset(
        remote=str(large), local=str(tmp_path), cache_limit=limit_bytes, batch_size=4, shuffle=True
    )
    kept = []
    for sample in dataset:
        kept.append(sample)
        if sample["number"] % 10 == 0:
            assert unmapped_names(tmp_path) == {}
    for numbers in np.random.default_rng(1).integers(NUM_SAMPLES, size=(20, 16)).tolist():
        kept += dataset[numbers]
        assert unmapped_names(tmp_path) == {}
        assert named_bytes(tmp_path) <= limit_bytes
    assert all((sample["row"] == sample["number"]).all() for sample in kept)
    assert not kept[0]["row"].flags.writeable


def test_a_shard_that_was_evicted_by_name_takes_no_space_in_this_process(large, tmp_path):
    dataset = StreamingDataset(remote=str(large), local=str(tmp_path), batch_size=4)
    kept = [dataset[number] for number in range(NUM_SAMPLES)]
    for shard in range(dataset.shards_per_stream[0]):
        assert dataset.evict_shard(shard) > 0
    assert unmapped_names(tmp_path) == {}
    assert dataset[7]["row"].tolist() == kept[7]["row"].tolist()


def test_a_forked_child_keeps_no_map_of_its_parent(processes, large, tmp_path):
    dataset = StreamingDataset(remote=str(large), local=str(tmp_path), batch_size=4)
    assert dataset[7]["number"] == 7

    def is_mapped():
        return f"{tmp_path}/shard" in Path("/proc/self/maps").read_text()

    assert is_mapped()
    assert in_child(lambda: not is_mapped() and dataset[7]["number"] == 7 and is_mapped()) == 0
    assert is_mapped()
    assert dataset[7]["number"] == 7


FULL_DISK = """
import os, sys
from fkat_data.streaming import StreamingDataLoader, StreamingDataset
local, remote, num_samples = f"{sys.argv[1]}/cache", sys.argv[2], int(sys.argv[3])
for num_workers in (0, 2):
    dataset = StreamingDataset(remote=remote, local=local, batch_size=4, shuffle=True)
    found = []
    for _ in range(2):
        for batch in StreamingDataLoader(dataset, batch_size=4, num_workers=num_workers):
            assert (batch["row"] == batch["number"][:, None]).all()
            found += batch["number"].tolist()
    assert sorted(found) == sorted(2 * list(range(num_samples)))
    print("read", num_workers, os.statvfs(local).f_blocks, flush=True)
"""


def test_a_disk_that_is_smaller_than_the_dataset_is_enough(processes, large, run_on_small_disk):
    assert run_on_small_disk(FULL_DISK, large, NUM_SAMPLES, size="800k").count("read") == 2


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_small_limit_evicts_no_shard_before_it_is_read(tmp_path, monkeypatch, shuffle, is_loaded):
    data = write(tmp_path / "data", 200, per_shard=1)
    shards = list((tmp_path / "data").glob("*.mds"))
    limit = (tmp_path / "data" / "index.json").stat().st_size + 60 * max(path.stat().st_size for path in shards)
    dataset = StreamingDataset(
        remote=data, local=str(tmp_path / "cache"), batch_size=2, cache_limit=limit, shuffle=shuffle
    )
    made, rename = [], os.rename
    monkeypatch.setattr(os, "rename", lambda *paths, **options: (made.append(paths[1]), rename(*paths, **options)))
    samples = [*StreamingDataLoader(dataset)] if is_loaded else [*dataset]
    assert len(samples) * (2 if is_loaded else 1) == 200
    assert len([name for name in made if str(name).endswith(".mds")]) <= 1.05 * len(shards)


@pytest.fixture
def few_descriptors():
    """Leave 20 descriptors to what a test opens."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("most_maps", [0, 1 << 20])
def test_a_gather_of_many_shards_and_the_samples_that_it_gave_take_no_descriptors(
    tmp_path, is_cached, most_maps, monkeypatch, request
):
    monkeypatch.setattr("fkat_data.streaming.reading.open_shards._MOST_MAPS", most_maps)
    data = write(tmp_path / "data", 150, columns=("number", "row", "ragged"), per_shard=1)
    assert len(list((tmp_path / "data").glob("*.mds"))) > 40
    where = {"remote": data, "local": str(tmp_path / "cache")} if is_cached else {"local": data}
    dataset = StreamingDataset(**where, batch_size=50)
    request.getfixturevalue("few_descriptors")
    kept = [dataset[list(range(150))], list(dataset), [dataset[number] for number in range(150)]]
    for samples in kept:
        assert [sample["number"] for sample in samples] == list(range(150))
        assert [sample["ragged"].tolist() for sample in samples] == [
            [place + 1 for place in range(1 + number % 3)] for number in range(150)
        ]
    even = reader_of(dataset).collated([np.arange(0, 150, 3), np.arange(1, 150, 3)])
    assert [batch["ragged"].tolist() for batch in even] == [[[1]] * 50, [[1, 2]] * 50]
