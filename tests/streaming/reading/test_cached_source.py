import json
import os
import shutil
from pathlib import Path

import pytest
from forks import in_child
from parquet_examples import write_parquet
from read_only import WAYS_TO_WRITE_NOTHING
from streaming_examples import write

from fkat_data.errors import ConfigurationError, DownloadError, ShardNotFoundError
from fkat_data.streaming import Stream, StreamingDataset, merge_index

COUNT = 30


def written(directory, first=0, **options):
    return Path(write(directory, COUNT, first=first, columns=("number",), **options))


def opened(remote, local, **options):
    return StreamingDataset(remote=str(remote), local=str(local), batch_size=4, **options)


def numbers(remote, local, **options):
    return [sample["number"] for sample in opened(remote, local, **options)]


def is_of(first):
    return list(range(first, first + COUNT))


def contents(directory):
    paths = (path for path in sorted(directory.rglob("*")) if path.is_file() and ".fkat_data" not in path.parts)
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def evict_all(dataset):
    freed_bytes = sum(dataset.evict_shard(shard) for shard in range(dataset.num_shards))
    while size_bytes := dataset.evict_coldest_shard():
        freed_bytes += size_bytes
    return freed_bytes


def test_a_copy_that_no_record_knows_is_not_read_for_a_store_that_is_down(tmp_path):
    other = written(tmp_path / "other")
    before = contents(other)
    with pytest.raises(ConfigurationError, match=r"pass local without remote"):
        opened("http://127.0.0.1:9/data", other, download_retry=0)
    assert contents(other) == before


# What did not come from the remote.


def test_a_copy_of_another_remote_is_not_read_for_one_that_is_wrong(tmp_path):
    remote, local = written(tmp_path / "remote"), tmp_path / "local"
    assert numbers(remote, local) == is_of(0)
    for wrong in (tmp_path / "remtoe", "http://127.0.0.1:9/data"):
        with pytest.raises((ShardNotFoundError, DownloadError), match=r"no such file, and|download failed"):
            opened(wrong, local, download_retry=0)
    remote.rename(tmp_path / "gone")
    assert numbers(remote, local) == is_of(0)  # the same one, which is down


def test_a_directory_with_another_dataset_is_refused_and_stays_as_it_is(tmp_path):
    remote, other = written(tmp_path / "remote"), written(tmp_path / "other", 5, per_shard=7)
    before = contents(other)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"index\.json was not fetched from there.*the only copy"):
            opened(remote, other)
        assert contents(other) == before
    # Even if the remote has become that dataset's twin, or is gone, since.
    numbers(remote, tmp_path / "cache")
    shutil.copytree(other, tmp_path / "cache", dirs_exist_ok=True)
    with pytest.raises(ConfigurationError, match="not fetched"):
        opened(remote, tmp_path / "cache")
    shutil.rmtree(remote)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="not fetched"):
            opened(remote, tmp_path / "cache")
        remote.mkdir(exist_ok=True)  # a mistyped one, which has none
    assert contents(tmp_path / "cache").items() >= before.items()
    with pytest.raises(ConfigurationError, match=r"index\.json was not fetched from there"):
        opened(remote, other)
    assert contents(other) == before


def test_files_without_an_index_do_not_take_a_directory_with_another_dataset(tmp_path):
    remote, other = tmp_path / "remote", written(tmp_path / "other")
    before = contents(other)
    for numbers_written, pattern in ((range(10), ""), (range(20), "*.parquet")):
        write_parquet(remote / "a.parquet", numbers_written, [len(numbers_written)], ("number",))
        with pytest.raises(ConfigurationError, match=r"index\.json was not fetched from there.*the only copy"):
            opened(remote / pattern, other)
        assert contents(other) == before
    # A cache of the remote's own earlier index is no other dataset.
    shutil.copytree(other, tmp_path / "both")
    assert numbers(tmp_path / "both", tmp_path / "cache") == is_of(0)
    write_parquet(tmp_path / "both" / "a.parquet", range(10), [10], ("number",))
    assert numbers(tmp_path / "both" / "*.parquet", tmp_path / "cache") == list(range(10))
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {".fkat_data", "a.parquet.parts"}


def test_a_copy_that_another_program_has_made_is_used_and_replaced_like_any_cache(tmp_path):
    remote = written(tmp_path / "remote")
    local = shutil.copytree(remote, tmp_path / "local")
    inodes = {path.name: path.stat().st_ino for path in local.glob("*.mds")}
    assert numbers(remote, local) == is_of(0)
    assert {path.name: path.stat().st_ino for path in local.glob("*.mds")} == inodes
    written(remote, 100, exist_ok=True)
    assert numbers(remote, local) == is_of(100)


def test_a_cache_in_the_remote_is_refused_where_files_would_meet(tmp_path):
    data = tmp_path / "data"
    for name in ("a", "b"):
        written(data / name)
    merge_index(str(data))
    before = contents(data)
    (tmp_path / "link").symlink_to(data / "a")
    for local in (data / "a", tmp_path / "link", data / "b" / ".." / "a"):
        with pytest.raises(ConfigurationError, match=r"index\.json was not fetched"):
            opened(data, local)
        assert contents(data) == before
    # Folders that have nothing of it are as good as any.
    (data / "a" / "index.json").unlink()
    before.pop("a/index.json")
    for local in (data / "a", data / "cache"):
        dataset = opened(data, local)
        assert sorted(sample["number"] for sample in dataset) == sorted(2 * is_of(0))
        assert evict_all(dataset) > 0
        assert contents(data).items() >= before.items()


def test_a_remote_in_the_cache_is_refused_where_files_would_meet(tmp_path):
    cache, remote = tmp_path / "cache", tmp_path / "cache" / "data"
    written(remote)
    assert numbers(remote, cache) == is_of(0)
    shutil.rmtree(remote)
    written(remote / "data")
    content = json.loads((remote / "data" / "index.json").read_text())
    (remote / "data" / "index.json").unlink()
    shard = next((remote / "data").glob("*.mds"))
    shutil.copy(shard, remote)  # the cache's copy of data/shard would be the original of shard
    for place in ("", "data/"):
        content["shards"].append(json.loads(json.dumps(content["shards"][0])))
        content["shards"][-1]["raw_data"]["basename"] = place + shard.name
    (remote / "index.json").write_text(json.dumps({"version": 2, "shards": content["shards"][-2:]}))
    shutil.rmtree(cache / ".fkat_data")
    (cache / "index.json").unlink()
    before = contents(remote)
    with pytest.raises(ConfigurationError, match=r"data/shard\.00000\.mds"):
        opened(remote, cache)
    assert contents(remote) == before


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_files_of_the_cache_that_the_remote_leads_to_are_the_only_copies_and_stay(tmp_path, compression):
    remote = written(tmp_path / "remote", compression=compression)
    cache = tmp_path / "cache"
    cache.mkdir()
    name = min(path.name for path in remote.glob("shard*"))
    (remote / name).rename(cache / name)
    (remote / name).symlink_to(cache / name)
    before = (cache / name).read_bytes()
    dataset = opened(remote, cache, cache_limit="1mb")
    assert [sample["number"] for sample in dataset] == is_of(0)
    evict_all(dataset)
    assert (cache / name).read_bytes() == before
    (remote / "index.json").touch()
    assert numbers(remote, cache) == is_of(0)
    assert (cache / name).read_bytes() == before
    (tmp_path / "view").mkdir()
    for path in remote.iterdir():
        (tmp_path / "view" / path.name).symlink_to(path)
    with pytest.raises(ConfigurationError, match="maybe the only copy"):
        opened(tmp_path / "view", remote)


def test_hard_links_are_copies(tmp_path):
    remote = written(tmp_path / "remote")
    cache = shutil.copytree(remote, tmp_path / "cache", copy_function=os.link)
    before = contents(remote)
    assert evict_all(opened(remote, cache)) > 0
    assert contents(remote) == before
    written(remote, 100, exist_ok=True)
    assert numbers(remote, cache) == is_of(100)
    assert contents(remote) == contents(cache)


def test_caches_in_one_another_are_refused_where_files_would_meet(tmp_path):
    merged = tmp_path / "merged"
    written(merged / "b")
    merge_index(str(merged))
    other = written(tmp_path / "other", 100)
    streams = [
        Stream(remote=str(merged), local=str(tmp_path / "cache")),
        Stream(remote=str(other), local=str(tmp_path / "cache" / "b")),
    ]
    for order in (streams, streams[::-1]):
        with pytest.raises(ConfigurationError, match=r"local.*b/shard\.00000\.mds"):
            StreamingDataset(streams=order)
    inner = Stream(remote=str(merged), local=str(tmp_path / "cache"), split="b")
    dataset = StreamingDataset(streams=[streams[0], inner], batch_size=4)
    assert sorted(sample["number"] for sample in dataset) == sorted(2 * is_of(0))


# An index that is the same.


@pytest.fixture
def checks_at_once(monkeypatch):
    monkeypatch.setattr("fkat_data.streaming.reading.dataset_index._CHECK_INTERVAL_S", 0.0)


def copied_over(path):
    """Replace a file with a copy of the same time, which has another inode."""
    shutil.copy2(path, f"{path}.copy")
    os.rename(f"{path}.copy", path)  # noqa: PTH104 - as mv does


def test_an_index_that_is_copied_over_itself_ends_no_job_and_empties_no_cache(checks_at_once, tmp_path):
    remote, cache = written(tmp_path / "remote"), tmp_path / "cache"
    dataset = opened(remote, cache)
    assert dataset[0]["number"] == 0
    inode = (cache / "shard.00000.mds").stat().st_ino
    copied_over(remote / "index.json")
    assert dataset[COUNT - 1]["number"] == COUNT - 1
    copied_over(remote / "index.json")
    assert numbers(remote, cache) == is_of(0)
    assert (cache / "shard.00000.mds").stat().st_ino == inode


def test_hashes_tell_that_an_index_that_is_written_again_is_of_the_same_data(checks_at_once, tmp_path):
    for name, hashes in (("hashed", ["xxh64"]), ("plain", [])):
        remote, cache = written(tmp_path / name, hashes=hashes), tmp_path / f"{name}-cache"
        dataset = opened(remote, cache)
        assert dataset[0]["number"] == 0
        (remote / "index.json").touch()
        if hashes:
            assert dataset[COUNT - 1]["number"] == COUNT - 1
        else:
            with pytest.raises(Exception, match="written again"):
                dataset[COUNT - 1]
        inode = (cache / "shard.00000.mds").stat().st_ino
        assert numbers(remote, cache) == is_of(0)
        assert ((cache / "shard.00000.mds").stat().st_ino == inode) == bool(hashes)


# A cache that cannot be written to.


def is_read(remote, cache, **options):
    assert numbers(remote, cache, **options) == is_of(0)
    assert evict_all(opened(remote, cache)) == 0
    return True


def written_as(kind, directory):
    if kind == "parquet":
        write_parquet(directory / "a.parquet", range(COUNT), [COUNT // 2] * 2, ("number",))
        return directory
    return written(directory, compression=kind)


@pytest.mark.parametrize(
    ("kind", "is_of_others"), [(None, False), (None, True), ("zstd", False), ("zstd", True), ("parquet", False)]
)
@pytest.mark.parametrize("way", WAYS_TO_WRITE_NOTHING)
def test_a_cache_that_cannot_be_written_to_serves_what_it_has(processes, folder_for_all, way, kind, is_of_others):
    remote, cache = written_as(kind, folder_for_all / "remote"), folder_for_all / "cache"
    # Another user may not be able to import what this reads with.
    assert numbers(remote, folder_for_all / "another") == is_of(0)
    assert in_child(lambda: numbers(remote, cache, keep_zip=True) == is_of(0)) == 0
    if is_of_others:
        shutil.rmtree(cache / ".fkat_data")
    before = contents(cache)
    with WAYS_TO_WRITE_NOTHING[way](cache) as prepared:
        assert in_child(lambda: is_read(remote, cache, cache_limit="1mb"), prepared) == 0
    assert contents(cache) == before


@pytest.mark.parametrize("way", WAYS_TO_WRITE_NOTHING)
def test_a_cache_that_cannot_be_written_to_says_what_it_lacks(processes, folder_for_all, way):
    remote, cache = written(folder_for_all / "remote"), folder_for_all / "cache"
    assert in_child(lambda: numbers(remote, cache) == is_of(0)) == 0
    (cache / "shard.00001.mds").unlink(missing_ok=True)

    def is_missing():
        dataset = opened(remote, cache)
        assert dataset[0]["number"] == 0
        with pytest.raises(OSError, match=r"\.fkat_data"):
            [dataset[index] for index in range(COUNT)]
        return True

    def is_refused():
        with pytest.raises(ConfigurationError, match=r"may write to|was not fetched"):
            opened(remote, cache)
        return True

    with WAYS_TO_WRITE_NOTHING[way](cache) as prepared:
        assert in_child(is_missing, prepared) == 0
        written(remote, 100, exist_ok=True, per_shard=7)
        before = contents(cache)
        assert in_child(is_refused, prepared) == 0
        assert contents(cache) == before
