import gc
import os
import pickle
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from parquet_examples import write_parquet
from streaming_examples import write
from tar_examples import write_tar

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.streaming import JSONWriter, MDSWriter, Stream, StreamingDataset
from fkat_data.streaming.cache import Cache, CacheBudget


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "data", 30, hashes=["sha256"])


@pytest.fixture
def compressed(tmp_path):
    return write(tmp_path / "zip", 30, hashes=["sha256"], compression="zstd")


def numbers(**options):
    return [sample["number"] for sample in StreamingDataset(batch_size=4, **options)]


def files(directory):
    return sorted(path.name for path in directory.iterdir() if path.name != ".fkat_data")


def damage(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 255
    path.write_bytes(bytes(content))


def test_shards_are_copied_when_they_are_needed_and_once(data, tmp_path):
    local = tmp_path / "local"
    dataset = StreamingDataset(remote=data, local=str(local), validate_hash="sha256")
    assert files(local) == ["index.json"]
    assert dataset[0]["number"] == 0
    assert files(local) == ["index.json", "shard.00000.mds"]
    shutil.rmtree(data)
    assert StreamingDataset(remote=data, local=str(local))[1]["number"] == 1
    with pytest.raises(ShardNotFoundError, match="shard"):
        StreamingDataset(remote=data, local=str(local))[29]
    assert files(local) == ["index.json", "shard.00000.mds"]


def test_what_is_damaged_on_its_way_gets_no_name(data, tmp_path):
    local = tmp_path / "local"
    damage(tmp_path / "data" / "shard.00001.mds")
    for _ in range(2):  # the second time as well
        dataset = StreamingDataset(remote=data, local=str(local), validate_hash="sha256")
        with pytest.raises(ShardCorruptError, match="sha256"):
            dataset[dataset.shards[0].samples]
        assert files(local) == ["index.json"]


def test_a_cut_copy_is_replaced_and_a_cut_original_refused(data, tmp_path):
    local = tmp_path / "local"
    assert numbers(remote=data, local=str(local)) == list(range(30))
    cut = local / "shard.00000.mds"
    cut.write_bytes(cut.read_bytes()[:-1])
    assert numbers(remote=data, local=str(local)) == list(range(30))
    original = tmp_path / "data" / "shard.00000.mds"
    original.write_bytes(original.read_bytes()[:-1])
    with pytest.raises(ShardCorruptError, match="size"):
        numbers(local=data)


@pytest.mark.parametrize("hashes", [None, ["sha256"]])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_directory_that_is_written_again_during_a_job_is_an_error_and_never_a_mixture(tmp_path, hashes, compression):
    folder = tmp_path / "data"
    options = {"columns": ("number",), "hashes": hashes, "compression": compression}
    write(folder, 30, **options)
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    dataset = StreamingDataset(local=str(folder))
    worker = pickle.loads(pickle.dumps(dataset))
    assert dataset[0]["number"] == 0
    write(folder, 30, first=100, exist_ok=True, **options)
    if not compression:
        assert sizes == {name: (folder / name).stat().st_size for name in sizes}
    for reader in (dataset, worker):
        with pytest.raises(ShardCorruptError, match="written again"):
            reader[29]
    assert dataset[0]["number"] == 0  # still mapped
    assert StreamingDataset(local=str(folder))[29]["number"] == 129


def test_an_equal_index_under_another_inode_ends_no_job_in_place(data):
    dataset = StreamingDataset(local=data)
    shutil.copy2(f"{data}/index.json", f"{data}/copy")
    Path(data, "copy").rename(f"{data}/index.json")
    assert dataset[29]["number"] == 29


@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("kind", ["mds", "json", "tar", "parquet"])
def test_a_file_that_is_cut_while_it_is_mapped_is_an_error_and_not_the_end_of_the_process(
    tmp_path, monkeypatch, kind, is_cached
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setattr("fkat_data.streaming.reading.open_shards._TOUCH_S", -1.0)
    data, local = tmp_path / "data", tmp_path / "local"
    if kind == "tar":
        write_tar(data / "a.tar", range(30))
    elif kind == "parquet":
        write_parquet(data / "a.parquet", range(30), [30], ("number",))
    else:
        with (MDSWriter if kind == "mds" else JSONWriter)(out=str(data), columns={"number": "int"}) as writer:
            for number in range(30):
                writer.write({"number": number})
    read = {"remote": str(data), "local": str(local)} if is_cached else {"local": str(data)}
    options = {"decode": {"number": "integer"}} if kind == "tar" else {}
    dataset = StreamingDataset(**read, **options, decoded_limit=1)
    assert dataset[3]["number"] == 3
    folder = local if is_cached else data
    (file,) = [path for path in folder.rglob("*") if path.suffix in (".mds", ".json", ".tar", ".parquet") or "-whole" in path.name or "-00000" in path.name if path.name not in ("index.json", "generated_index.json", "dataset_version.json")]  # fmt: skip
    os.truncate(file, 0)
    with pytest.raises(ShardCorruptError, match=r"changed while it was in use"):
        dataset[29]
    if is_cached:
        assert dataset[29]["number"] == 29


def test_a_shard_that_another_process_is_evicting_is_waited_for(data, tmp_path):
    local = tmp_path / "local"
    numbers(remote=data, local=str(local))
    dataset = StreamingDataset(remote=data, local=str(local))
    gc.collect()
    with ThreadPoolExecutor(1) as thread:
        inode = (local / "shard.00000.mds").stat().st_ino
        with Cache(local, CacheBudget([local], None)).mapped_files.claimed(inode) as is_claimed:
            assert is_claimed
            found = thread.submit(lambda: dataset[0]["number"])
            time.sleep(0.3)
            assert not found.done()
        assert found.result() == 0


def test_local_data_are_held_against_their_hash_if_that_is_asked(data, tmp_path):
    damage(tmp_path / "data" / "shard.00000.mds")
    with pytest.raises(ShardCorruptError, match="sha256"):
        StreamingDataset(local=data, validate_hash="sha256")[0]
    with pytest.raises(ConfigurationError, match="validate_hash"):
        StreamingDataset(local=data, validate_hash="md5")


def test_the_only_copy_is_never_deleted(compressed, tmp_path):
    before = files(tmp_path / "zip")
    for _ in range(2):
        assert numbers(local=compressed, keep_zip=False) == list(range(30))
    assert files(tmp_path / "zip") == before
    for path in (tmp_path / "zip").glob("*.zstd"):
        path.unlink()
    # What is decompressed is enough, and is the only copy now.
    dataset = StreamingDataset(local=compressed, cache_limit="1mb", batch_size=4)
    assert [dataset.evict_shard(shard) for shard in range(dataset.num_shards)] == [0] * dataset.num_shards
    assert dataset.evict_coldest_shard() == 0
    assert [sample["number"] for sample in dataset] == list(range(30))


def test_raw_files_beside_compressed_ones_are_read_only_where_nothing_else_is(tmp_path):
    zips = tmp_path / "zip"
    compressed = write(zips, 30, columns=("number",), compression="zstd")
    other = write(tmp_path / "other", 30, first=30, columns=("number",), compression="zstd")
    assert numbers(local=other) == list(range(30, 60))
    for path in (Path(other) / ".fkat_data" / "decompressed").glob("*/*.mds"):  # of the same sizes
        shutil.copy(path, zips)
    assert numbers(local=compressed) == list(range(30))
    for path in zips.glob("*.zstd"):
        path.unlink()
    shutil.rmtree(zips / ".fkat_data")
    assert numbers(local=compressed) == list(range(30, 60))


#: Ways to spell a directory: its path, a place for links, and what the caller passes.
SPELLINGS = {
    "link": lambda path, place: _link(place / "link", path),
    "relative": lambda path, place: os.path.relpath(path),
    "dots": lambda path, place: f"{path}/../{path.name}",
    "url": lambda path, place: f"file://{_link(place / 'link', path)}",
    "above": lambda path, place: f"{_link(place / 'link', path.parent)}/{path.name}",
}


def _link(link, target):
    link.symlink_to(target)
    return str(link)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("split", [None, "train"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_local_that_is_the_remote_is_read_in_place_whatever_its_spelling(tmp_path, spelling, split, compression):
    original = tmp_path / "data" / (split or "")
    write(original, 30, compression=compression)
    before = files(original)
    other = SPELLINGS[spelling](tmp_path / "data", tmp_path)
    for remote, local in ((str(tmp_path / "data"), other), (other, str(tmp_path / "data"))):
        dataset = StreamingDataset(remote=remote, local=local, split=split, batch_size=4, cache_limit="1mb")
        assert [sample["number"] for sample in dataset] == list(range(30))
        for shard in range(dataset.num_shards):
            dataset.evict_shard(shard)
        while dataset.evict_coldest_shard():
            pass
        assert files(original) == before
    write(original, 30, first=5, compression=compression, exist_ok=True)
    assert numbers(remote=str(tmp_path / "data"), local=other, split=split) == list(range(5, 35))
    assert files(original) == before


def test_a_split_that_is_a_link_to_the_original_is_read_in_place(tmp_path):
    write(tmp_path / "data" / "train", 30)
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "train").symlink_to(tmp_path / "data" / "train")
    dataset = StreamingDataset(remote=str(tmp_path / "data"), local=str(tmp_path / "local"), split="train")
    assert dataset.evict_shard(0) == 0
    assert [dataset[index]["number"] for index in range(30)] == list(range(30))


def test_streams_with_one_directory_under_two_spellings_share_it_or_are_refused(data, tmp_path):
    other = write(tmp_path / "other", 30, first=30)
    local = tmp_path / "local"
    local.mkdir()
    link = _link(tmp_path / "link", local)
    second = _link(tmp_path / "data-link", data)
    streams = [Stream(remote=data, local=str(local)), Stream(remote=second, local=link)]
    dataset = StreamingDataset(streams=streams, batch_size=4)
    assert sorted(sample["number"] for sample in dataset) == sorted([*range(30)] * 2)
    assert dataset.cache_usage == sum(path.stat().st_size for path in local.iterdir() if path.is_file())
    with pytest.raises(ConfigurationError, match="another directory for each remote"):
        StreamingDataset(streams=[streams[0], Stream(remote=other, local=link)])
    third = _link(tmp_path / "other-link", other)
    for original in (Stream(local=other), Stream(remote=other)):
        with pytest.raises(ConfigurationError, match="the original of its data"):
            StreamingDataset(streams=[original, Stream(remote=data, local=third)])
    assert numbers(local=other) == list(range(30, 60))


def test_a_stream_that_cannot_work_is_refused():
    for options, argument in (({"proportion": 1, "repeat": 2}, "Stream"), ({"proportion": -1}, "proportion")):
        with pytest.raises(ConfigurationError, match=argument):
            Stream(local="x", **options)
    with pytest.raises(ConfigurationError, match="streams"):
        StreamingDataset(streams=[Stream()])
