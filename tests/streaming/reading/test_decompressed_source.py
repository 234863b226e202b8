import itertools
import shutil
from pathlib import Path

import pytest
from forks import in_child
from passed_lines import passes, watch
from streaming_examples import write

from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.streaming import LocalDataset, Stream, StreamingDataset

COUNT = 30


@pytest.fixture(autouse=True)
def _own_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()


def written(directory, first, **options):
    return Path(write(directory, COUNT, first=first, columns=("number",), compression="zstd", **options))


def numbers(**options):
    return [sample["number"] for sample in StreamingDataset(batch_size=4, **options)]


def is_of(first):
    return list(range(first, first + COUNT))


def decompressed(tmp_path):
    return sorted(path for path in tmp_path.rglob("*.mds") if path.is_file())


def twins(folder, **options):
    """Two datasets with indices of the same bytes and other data."""
    seen = {}
    for first in itertools.count(100, 100):
        content = (written(folder / str(first), first, **options) / "index.json").read_bytes()
        before = seen.setdefault(content, first)
        if before != first:
            break
    return before, first


def replace(directory, source):
    """Write files over others, as a copy does, with other times."""
    for path in source.iterdir():
        if path.is_file():
            shutil.copyfile(path, directory / path.name)


WAYS = ("remote", "local")


@pytest.mark.parametrize("validate_hash", [None, "sha256"])
@pytest.mark.parametrize("way", WAYS)
def test_decompressed_shards_follow_a_dataset_that_is_written_again_with_equal_sizes(tmp_path, way, validate_hash):
    options = {way: str(tmp_path / "data"), "validate_hash": validate_hash}
    for first in (100, 200, 300):
        written(tmp_path / "data", first, hashes=["sha256"], exist_ok=True)
        for _ in range(2):
            assert numbers(**options) == is_of(first)
    # This process has used all versions.
    assert len(decompressed(tmp_path)) == 3 * len(list((tmp_path / "data").glob("*.zstd")))


@pytest.mark.parametrize("way", WAYS)
def test_decompressed_shards_follow_their_dataset_even_if_the_index_has_the_same_bytes(tmp_path, way):
    before, after = twins(tmp_path / "twins")
    data = shutil.copytree(tmp_path / "twins" / str(before), tmp_path / "data")
    assert numbers(**{way: str(data)}) == is_of(before)
    replace(data, tmp_path / "twins" / str(after))
    assert numbers(**{way: str(data)}) == is_of(after)


@pytest.mark.parametrize("way", WAYS)
def test_a_decompressed_shard_that_is_damaged_is_made_again(tmp_path, way):
    data = written(tmp_path / "data", 100, hashes=["sha256"])
    numbers(**{way: str(data)})
    for path in decompressed(tmp_path):
        path.write_bytes(path.read_bytes()[:-3] + b"???")
    assert numbers(**{way: str(data)}) != is_of(100)
    assert numbers(**{way: str(data)}, validate_hash="sha256") == is_of(100)
    assert numbers(**{way: str(data)}) == is_of(100)


def test_a_compressed_shard_that_is_damaged_is_an_error_and_leaves_nothing(tmp_path):
    data = written(tmp_path / "data", 100, hashes=["sha256"])
    path = next(data.glob("*.zstd"))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    for _ in range(2):
        with pytest.raises(ShardCorruptError, match="sha256"):
            numbers(local=str(data), validate_hash="sha256")
    assert path.name.removesuffix(".zstd") not in [found.name for found in decompressed(tmp_path)]


def test_two_versions_are_read_side_by_side_and_the_older_one_goes_when_nobody_reads_it(processes, tmp_path):
    data = written(tmp_path / "data", 100, per_shard=10)
    before = StreamingDataset(local=str(data), batch_size=4)
    assert before[0]["number"] == 100
    (first,) = {path.parent for path in decompressed(tmp_path)}
    written(data, 200, per_shard=10, exist_ok=True)
    assert numbers(local=str(data)) == is_of(200)
    assert first.is_dir()
    assert before[0]["number"] == 100
    with pytest.raises(ShardCorruptError, match="written again"):
        before[COUNT - 1]
    assert in_child(lambda: numbers(local=str(data)) == is_of(200)) == 0
    assert first.is_dir()
    other = written(tmp_path / "other", 100, per_shard=10)
    assert in_child(lambda: numbers(local=str(other)) == is_of(100)) == 0
    (old,) = {path.parent for path in decompressed(other)}
    written(other, 200, per_shard=10, exist_ok=True)
    assert numbers(local=str(other)) == is_of(200)
    assert not old.exists()


@pytest.mark.parametrize("way", WAYS)
def test_a_limit_holds_for_decompressed_shards(tmp_path, way):
    data = write(tmp_path / "data", 400, columns=("number",), per_shard=10, compression="zstd")
    largest = max(entry.raw_bytes for entry in StreamingDataset(**{way: data}, batch_size=4).shards)
    assert StreamingDataset(**{way: data}, batch_size=4).cache_usage == 0
    with pytest.raises(ConfigurationError, match=rf"cache_limit.*at least {4 * largest}:"):
        StreamingDataset(**{way: data}, batch_size=4, cache_limit=4 * largest - 1)
    dataset = StreamingDataset(**{way: data}, batch_size=4, cache_limit=6 * largest, predownload=10)
    seen = []
    for sample in dataset:
        seen.append(sample["number"])
        # Files that threads are making come on top.
        assert dataset.cache_usage <= (6 + 8) * largest
    assert seen == list(range(400))
    assert 0 < len(decompressed(tmp_path)) <= 6
    assert dataset.cache_usage == sum(path.stat().st_size for path in decompressed(tmp_path))
    assert len(list((tmp_path / "data").glob("*.zstd"))) == dataset.num_shards > 10


def test_a_limit_is_shared_with_caches_and_shards_are_evicted_by_number(tmp_path):
    data = written(tmp_path / "data", 100)
    plain = write(tmp_path / "plain", COUNT, columns=("number",))
    streams = [Stream(local=str(data)), Stream(remote=plain, local=str(tmp_path / "cache")), Stream(local=plain)]
    dataset = StreamingDataset(streams=streams, batch_size=4, cache_limit="1mb")
    assert sorted(sample["number"] for sample in dataset) == sorted(is_of(100) + 2 * is_of(0))
    evicted = [dataset.evict_shard(shard) for shard in range(dataset.num_shards)]
    per_stream = dataset.num_shards // 3
    assert all(evicted[: 2 * per_stream])
    assert not any(evicted[2 * per_stream :])
    assert sorted(sample["number"] for sample in dataset) == sorted(is_of(100) + 2 * is_of(0))


def test_where_decompressed_shards_go(tmp_path):
    beside = written(tmp_path / "beside", 100)
    assert LocalDataset(str(beside))[0]["number"] == 100
    assert len(list((beside / ".fkat_data" / "decompressed").glob("*/shard.00000.mds"))) == 1
    # A link would lead the removal of old files elsewhere; a file in its place, or another's folder, is no place.
    for name in ("link", "file"):
        data = written(tmp_path / name, 100)
        (data / ".fkat_data").mkdir()
        if name == "file":
            (data / ".fkat_data" / "decompressed").write_text("")
        else:
            (tmp_path / "precious").mkdir()
            (data / ".fkat_data" / "decompressed").symlink_to(tmp_path / "precious")
        assert LocalDataset(str(data))[0]["number"] == 100
    assert list((tmp_path / "precious").iterdir()) == []
    assert len(list((tmp_path / "tmp").glob("fkat_data-*/*/*/shard.00000.mds"))) == 2


def life(data, first, folder, *armed):
    """Read a dataset in a process that ends at an armed line; return how it ends."""
    folder.mkdir()

    def work():
        watch(folder, armed)
        return numbers(remote=str(data), validate_hash="sha256") == is_of(first)

    return in_child(work)


def lines_of_this_protocol(folder):
    files = ("decompressed_source", "dataset_version", "dataset_index", "cache/cache.py", "temporary")
    return [place for place in passes(folder) if any(name in place for name in files) and not place.endswith("()")]


def check_deaths(tmp_path, every):
    data = written(tmp_path / "data", 100, hashes=["sha256"])
    assert life(data, 100, tmp_path / "first") == 0
    old = shutil.copytree(tmp_path / "tmp", tmp_path / "old")
    written(data, 200, hashes=["sha256"], exist_ok=True)
    assert life(data, 200, tmp_path / "lines") == 0
    num_died = 0
    for number, place in enumerate(lines_of_this_protocol(tmp_path / "lines")[::every]):
        shutil.rmtree(tmp_path / "tmp")
        shutil.copytree(old, tmp_path / "tmp")
        num_died += life(data, 200, tmp_path / f"lines-{number}", (place, 1, "kill")) == -9
        assert in_child(lambda: numbers(remote=str(data)) == is_of(200)) == 0, place
        assert len(decompressed(tmp_path / "tmp")) == len(list(data.glob("*.zstd"))), place
    return num_died


def test_a_process_that_dies_while_it_replaces_old_shards_leaves_what_the_next_one_repairs(processes, tmp_path):
    assert check_deaths(tmp_path, every=20) >= 5


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a process for each line
def test_every_line_may_be_the_last_of_a_process_that_replaces_old_shards(processes, tmp_path):
    assert check_deaths(tmp_path, every=1) > 100
