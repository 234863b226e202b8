"""Parquet files as streams: the same samples in the same orders as MDS shards, from everywhere, in any world."""

import io
import logging
import os
import pkgutil
import shutil
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from file_streams import COUNT, OPTIONS
from parquet_examples import COLUMNS, table_of, write_both, write_parquet
from streaming_examples import numbers, same, write

from fkat_data.errors import ConfigurationError, DownloadError, ShardCorruptError, ShardNotFoundError
from fkat_data.streaming import LocalDataset, Stream, StreamingDataLoader, StreamingDataset
from fkat_data.streaming.formats import FileInfo, open_shard
from fkat_data.streaming.store import Origin, open_store

pytestmark = pytest.mark.usefixtures("own_caches")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return write_both(tmp_path_factory.mktemp("both"), COUNT)


def test_a_pattern_or_a_file_names_what_is_read(tmp_path):
    for number, name in enumerate(["a.parquet", "b.parquet", "deep/er/c.parquet", "_hidden.parquet", ".d.parquet"]):
        write_parquet(tmp_path / "data" / name, range(10 * number, 10 * number + 10), [10])
    (tmp_path / "data" / "README.md").write_text("not data")
    found = {
        "": [0, 10, 20],
        "/*.parquet": [0, 10],
        "/**/*.parquet": [0, 10, 20],
        "/deep/er/c.parquet": [20],
    }
    for text, firsts in found.items():
        for location in (f"{tmp_path}/data{text}", f"file://{tmp_path}/data{text}"):
            dataset = StreamingDataset(remote=location, **OPTIONS)
            assert [dataset[10 * shard]["number"] for shard in range(dataset.num_shards)] == firsts, text
    for text in ("/*.pq", "/deep/*.parquet", "/z.parquet"):
        with pytest.raises(ShardNotFoundError, match="no file matches"):
            StreamingDataset(remote=f"{tmp_path}/data{text}", **OPTIONS)
    with pytest.raises(ShardNotFoundError, match="no such directory"):
        StreamingDataset(local=str(tmp_path / "data/deep/none"), **OPTIONS)
    # What Spark writes is a directory with the suffix.
    (tmp_path / "data").rename(tmp_path / "table.parquet")
    assert StreamingDataset(local=str(tmp_path / "table.parquet"), **OPTIONS).num_samples == 30
    nested = Stream(remote=f"{tmp_path}/*.parquet", split="table.parquet/deep/er")
    assert StreamingDataset(streams=[nested], **OPTIONS).num_samples == 10


def test_an_index_wins(tmp_path, both):
    shutil.copytree(both[0], tmp_path / "data")
    write_parquet(tmp_path / "data" / "a.parquet", range(10), [10])
    assert StreamingDataset(local=str(tmp_path / "data"), **OPTIONS).num_samples == COUNT
    assert StreamingDataset(remote=str(tmp_path / "data"), local=str(tmp_path / "l"), **OPTIONS).num_samples == COUNT
    assert StreamingDataset(local=str(tmp_path / "data/*.parquet"), **OPTIONS).num_samples == 10


def test_columns_are_chosen_for_a_stream_or_for_all_and_of_mds_too(both, tmp_path):
    mds, parquet = both
    for path in both:
        assert list(LocalDataset(path, columns=["text", "number"])[3]) == ["number", "text"]
        with pytest.raises(ConfigurationError, match=r"'colour': expected columns of .*number, ragged, row, text"):
            LocalDataset(path, columns=["colour"])
    streams = [Stream(local=mds), Stream(local=parquet, columns=["text"])]
    dataset = StreamingDataset(streams=streams, columns=["row"], **OPTIONS)
    assert [list(dataset[0]), list(dataset[COUNT])] == [["row"], ["text"]]
    csv = tmp_path / "csv"
    from fkat_data.streaming import CSVWriter

    with CSVWriter(out=str(csv), columns={"a": "int", "b": "str"}) as writer:
        writer.write({"a": 1, "b": "c"})
    assert LocalDataset(csv, columns=["b"])[0] == {"b": "c"}
    for wrong in ("number", [], [1], ["a", "a"]):
        with pytest.raises(ConfigurationError, match="columns = "):
            Stream(local=parquet, columns=wrong)


def test_what_cannot_be_one_dataset_is_an_error_that_names_file_and_column(tmp_path):
    folder = tmp_path / "data"
    write_parquet(folder / "a.parquet", range(10), [10], ("number", "text"))
    write_parquet(folder / "b.parquet", range(10), [10], ("number",))
    with pytest.raises(ConfigurationError, match=r"'text': expected columns of b\.parquet: number; a\.parquet has it"):
        LocalDataset(folder)
    assert len(LocalDataset(folder, columns=["number"])) == 20
    (folder / "a.parquet").rename(folder / "c.parquet")
    with pytest.raises(
        ConfigurationError, match=r"'text'.*; c\.parquet has it, and b\.parquet has not: choose the columns"
    ):
        LocalDataset(folder)
    pq.write_table(pa.table({"number": ["1"]}), folder / "c.parquet")
    with pytest.raises(ConfigurationError, match=r"'number'.* is string in c\.parquet, and int64 in b\.parquet"):
        LocalDataset(folder)
    content = (folder / "b.parquet").read_bytes()
    wrong = {
        b"": "0 bytes, fewer than 12",
        content[:-100]: "torn",
        b"PAR1" + bytes(100) + b"PARE": "without encryption",
        content[:-8] + (1 << 30).to_bytes(4, "little") + b"PAR1": "size of the footer",
        content[:-50] + bytes(42) + content[-8:]: "the footer cannot be read",
    }
    for damaged, message in wrong.items():
        (folder / "c.parquet").write_bytes(damaged)
        with pytest.raises((ShardCorruptError, ConfigurationError), match=rf"c\.parquet.*{message}"):
            LocalDataset(folder)
    (folder / "c.parquet").write_bytes(content[:4] + bytes(40) + content[44:])
    pq.write_table(table_of([], ("number",)), folder / "d.parquet")  # no rows: no shards, and no error
    dataset = LocalDataset(folder)
    assert len(dataset) == 20
    assert dataset[0]["number"] == 0
    with pytest.raises(ShardCorruptError, match=r"c\.parquet\[0\].*cannot be decoded"):
        dataset[10]
    (folder / "e.parquet").mkdir()
    write(folder / "e.parquet" / "mds", 3)
    assert len(LocalDataset(folder)) == 20


def test_a_directory_of_which_nothing_can_be_kept_is_read(both, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.INFO, "fkat_data"):
        assert len(LocalDataset(both[1])) == COUNT
    assert "cannot be written" in caplog.text


def test_a_bucket_is_read_through_a_cache_of_row_groups(bucket, both, tmp_path):
    mds, parquet = both
    bucket.fill(parquet)
    options = {"shuffle": True, "columns": ["number", "text"]}
    expected = list(StreamingDataLoader(StreamingDataset(local=mds, **options, **OPTIONS)))
    for pattern, local in (("", "all"), ("/**/*.parquet", "pattern"), ("/", "slash")):
        found = list(StreamingDataLoader(bucket.stream(tmp_path / local, pattern, **options)))
        assert all(same(mine, other) for mine, other in zip(found, expected, strict=True))
    parts = {path.name.split("-")[1] for path in (tmp_path / "all").rglob("*.parts/*")}
    num_groups = sum(pq.ParquetFile(path).num_row_groups for path in Path(parquet).rglob("*.parquet"))
    assert len(parts) > 1
    assert sum("footer" not in path.name for path in (tmp_path / "all").rglob("*.parts/*")) == num_groups
    assert bucket.stream(tmp_path / "one", "/part-0.parquet")[3]["number"] == 3
    with pytest.raises(ShardNotFoundError, match="no file matches"):
        bucket.stream(tmp_path / "none", "/z*.parquet")
    # Two choices of columns share a cache, and a small limit evicts the parts of both.
    assert set(bucket.stream(tmp_path / "all")[COUNT - 1]) == set(COLUMNS)
    limited = bucket.stream(tmp_path / "all", cache_limit=40_000, **options)
    assert sum(map(len, numbers(StreamingDataLoader(limited)))) == COUNT
    assert limited.cache_usage <= 40_000


def test_other_stores_list_and_a_web_server_serves_a_file(both, tmp_path, processes):
    import fsspec
    from proxy import FaultServer

    options = {"shuffle": True, "columns": ["number"], **OPTIONS}
    expected = numbers(StreamingDataLoader(StreamingDataset(local=both[1], **options)))
    filesystem = fsspec.filesystem("memory")
    for path in Path(both[1]).rglob("*.parquet"):
        filesystem.pipe_file(f"/parquet-tests/{path.relative_to(both[1]).as_posix()}", path.read_bytes())
    for number, location in enumerate(("memory://parquet-tests", "memory://parquet-tests/**/*.parquet")):
        dataset = StreamingDataset(remote=location, local=str(tmp_path / str(number)), **options)
        assert numbers(StreamingDataLoader(dataset)) == expected
    with FaultServer(Path(both[1])) as server:
        dataset = StreamingDataset(remote=f"{server.url}/part-0.parquet", local=str(tmp_path / "web"), **OPTIONS)
        assert dataset[5]["text"] == "sample 5"
        for location in (server.url, f"{server.url}/*.parquet", f"{server.url}/none.parquet"):
            with pytest.raises(ShardNotFoundError):
                StreamingDataset(remote=location, local=str(tmp_path / "none"), **OPTIONS)


def test_only_what_is_new_or_changed_is_described_and_fetched_again(bucket, tmp_path, monkeypatch):
    for number, name in enumerate("abc"):
        write_parquet(tmp_path / "data" / f"{name}.parquet", range(10 * number, 10 * number + 10), [5, 5], ("number",))
    bucket.fill(tmp_path / "data")
    local = tmp_path / "local"
    described = counted_descriptions(monkeypatch)

    def read():
        described.clear()
        found = numbers(StreamingDataLoader(bucket.stream(local)))
        leave(local)
        return sorted(chain(*found)), sorted(described)

    everything = list(range(30))
    assert read() == (everything, ["a.parquet", "b.parquet", "c.parquet"])
    assert read() == (everything, [])
    kept = {path: path.stat().st_mtime_ns for path in local.rglob("a.parquet.parts/*")}
    write_parquet(tmp_path / "data" / "b.parquet", range(100, 110), [5, 5], ("number",))
    write_parquet(tmp_path / "data" / "d.parquet", range(200, 205), [5], ("number",))
    (tmp_path / "data" / "c.parquet").unlink()
    bucket.server.client().delete_object(Bucket="bucket", Key=f"{bucket.prefix}/c.parquet")
    bucket.fill(tmp_path / "data")
    # moto gives equal contents equal ETags, and the time of writing is new.
    changed, names = read()
    assert changed == [*range(10), *range(100, 110), *range(200, 205)]
    assert {"b.parquet", "d.parquet"} <= set(names) <= {"a.parquet", "b.parquet", "d.parquet"}
    assert not list(local.rglob("c.parquet.parts/*"))
    assert len(kept) == 3
    assert all(path in kept for path in local.rglob("a.parquet.parts/*")) or "a.parquet" in names
    for path in local.rglob("generated_index.json"):
        path.write_bytes(path.read_bytes()[:-30])
    assert read() == (changed, ["a.parquet", "b.parquet", "d.parquet"])


def counted_descriptions(monkeypatch):
    name = "fkat_data.files.parquet.describe"
    described, real = [], pkgutil.resolve_name(name)

    def noted(file):
        described.append(file.name)
        return real(file)

    monkeypatch.setattr(name, noted)
    return described


def leave(local):
    """Let a cache's directory be as if this process had ended: a copy takes its place, of which it holds no lock."""
    shutil.copytree(local, f"{local}.copy")
    shutil.rmtree(local)
    Path(f"{local}.copy").rename(local)


def test_a_file_that_is_replaced_during_a_job_is_an_error_and_never_a_mixture(bucket, tmp_path):
    write_parquet(tmp_path / "data" / "a.parquet", range(10), [5, 5], ("number",))
    bucket.fill(tmp_path / "data")
    dataset = bucket.stream(tmp_path / "local")
    assert dataset[0]["number"] == 0
    write_parquet(tmp_path / "data" / "a.parquet", range(100, 110), [5, 5], ("number",))
    bucket.fill(tmp_path / "data")
    with pytest.raises(DownloadError, match=r"replaced|412"):
        dataset[7]
    in_place = StreamingDataset(local=str(tmp_path / "data"), **OPTIONS)
    write_parquet(tmp_path / "data" / "a.parquet", range(100, 120), [10, 10], ("number",))
    with pytest.raises(ShardCorruptError, match=r"a\.parquet"):
        in_place[0]


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_file_of_equal_size_that_is_written_again_in_place_is_an_error_and_never_a_mixture(tmp_path, is_renamed):
    folder = tmp_path / "data"
    path, exact = folder / "a.parquet", {"compression": "none", "use_dictionary": False}
    write_parquet(path, range(10), [5, 5], ("number",), **exact)
    dataset = LocalDataset(folder)
    assert dataset[0]["number"] == 0
    num_bytes = path.stat().st_size
    other = tmp_path / "other" if is_renamed else path
    write_parquet(other, range(100, 110), [5, 5], ("number",), **exact)
    if is_renamed:
        other.rename(path)
    assert path.stat().st_size == num_bytes
    with pytest.raises(ShardCorruptError, match=r"a\.parquet\[1\].*written again"):
        dataset[7]
    assert LocalDataset(folder)[7]["number"] == 107
    # The same content under another inode, with its time, is the same file.
    shutil.copy2(path, tmp_path / "copy")
    (tmp_path / "copy").rename(path)
    assert LocalDataset(folder)[7]["number"] == 107


def test_a_mount_that_changes_inodes_has_the_same_files(tmp_path, monkeypatch):
    path = tmp_path / "data" / "a.parquet"
    write_parquet(path, range(40), [10] * 4, ("number",))
    dataset = StreamingDataset(remote=str(tmp_path / "data"), local=str(tmp_path / "local"))
    for number in (0, 15, 25, 35):
        shutil.copy2(path, tmp_path / "copy")
        (tmp_path / "copy").rename(path)
        assert dataset[number]["number"] == number


def test_a_column_beside_a_field_of_the_same_path_is_read_alone(tmp_path):
    rows = range(2000)
    table = pa.table({"a": [{"b": row, "c": "c" * 99} for row in rows], "z": ["z" * 99] * 2000, "a.b": list(rows)})
    (tmp_path / "data").mkdir()
    pq.write_table(
        table, tmp_path / "data" / "a.parquet", row_group_size=1000, compression="none", use_dictionary=False
    )
    for places in ({"local": "data"}, {"remote": "data", "local": "cache"}):
        for columns in (["a.b"], ["a"], ["z", "a.b"], ["a.b", "a"], None):
            given = {name: str(tmp_path / place) for name, place in places.items()}
            dataset = StreamingDataset(**given, columns=columns)
            expected = table.slice(1500, 1).to_pylist()[0]
            assert dataset[1500] == {name: expected[name] for name in expected if columns is None or name in columns}


@pytest.mark.long
@pytest.mark.parametrize("has_checksums", [False, True])
def test_a_flipped_bit_of_a_page_loses_no_row_in_silence(tmp_path, has_checksums):
    path = tmp_path / "a.parquet"
    table = pa.table({"number": list(range(12)), "text": [f"sample {number}" for number in range(12)]})
    pq.write_table(table, path, write_page_checksum=has_checksums, compression="none", use_dictionary=False)
    entries = StreamingDataset(local=str(tmp_path), batch_size=1).shards
    content, status = path.read_bytes(), path.stat()
    chunks = [pq.read_metadata(path).row_group(0).column(index) for index in range(2)]
    expected = table.to_pylist()
    num_errors = num_changed = 0
    for chunk in chunks:
        for bit in range(8 * chunk.data_page_offset, 8 * (chunk.data_page_offset + chunk.total_compressed_size), 11):
            damaged = bytearray(content)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            try:
                found = open_shard(tmp_path, entries[0]).samples(range(12))
            except ShardCorruptError as error:
                assert "a.parquet[0]" in str(error)  # noqa: PT017 - most flips are no error
                num_errors += 1
                continue
            assert len(found) == 12
            num_changed += found != expected
    assert num_errors > 20
    assert (num_changed == 0) is has_checksums


def test_a_job_starts_while_the_store_is_down_if_everything_is_kept(bucket, tmp_path, monkeypatch):
    write_parquet(tmp_path / "data" / "a.parquet", range(10), [5, 5], ("number",))
    bucket.fill(tmp_path / "data")
    local = tmp_path / "local"
    for pattern in ("", "/*.parquet"):
        assert sorted(chain(*numbers(StreamingDataLoader(bucket.stream(local, pattern))))) == list(range(10))
        leave(local)
        gone = {**bucket.server.options("http://127.0.0.1:9"), "skip_instance_cache": True}
        down = StreamingDataset(
            remote=f"s3://bucket/{bucket.prefix}{pattern}",
            local=str(local),
            storage_options=gone,
            download_retry=0,
            **OPTIONS,
        )
        assert sorted(chain(*numbers(StreamingDataLoader(down)))) == list(range(10))
        leave(local)


def test_memory_for_decoded_row_groups_is_bounded_and_thrashing_is_reported(tmp_path, caplog):
    write_parquet(tmp_path / "a.parquet", range(4000), [100] * 40, ("number",))
    options = {"batch_size": 20, "shuffle": True, "shuffle_algo": "naive"}
    whole = StreamingDataset(local=str(tmp_path), **options)
    expected = numbers(StreamingDataLoader(whole))
    small = StreamingDataset(local=str(tmp_path), decoded_limit=3000, **options)
    with caplog.at_level(logging.WARNING):
        assert numbers(StreamingDataLoader(small)) == expected
    assert caplog.text.count("decoded again and again") == 1


def test_nulls_are_none_and_the_default_collate_names_their_column(tmp_path):
    table = pa.table({"number": pa.array([*range(7), None, *range(8, 12)]), "text": ["a"] * 11 + [None]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    options = {"local": str(tmp_path), "batch_size": 3}
    assert [sample["number"] for sample in StreamingDataset(**options)] == table["number"].to_pylist()
    batches = iter(StreamingDataLoader(StreamingDataset(columns=["number"], **options)))
    assert [next(batches)["number"].tolist() for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(TypeError, match="column 'number' has nulls"):
        next(batches)
    batches = iter(StreamingDataLoader(StreamingDataset(columns=["text"], **options)))
    assert [batch["text"] for batch in batches] == [["a"] * 3] * 3 + [["a", "a", None]]  # torch takes texts as they are
    taken = StreamingDataLoader(StreamingDataset(**options), collate_fn=list)
    assert [sample["number"] for batch in taken for sample in batch] == table["number"].to_pylist()


def as_it_is(sample):
    return sample


@pytest.mark.parametrize(
    "options", [{}, {"transform": as_it_is}, {"arrays": "torch"}], ids=["arrays", "transform", "torch"]
)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_column_of_lists_of_different_lengths_is_named_with_what_pads_them(tmp_path, num_workers, options, processes):
    table = pa.table({"number": range(8), "ids": [[0, 1, 2], [3, 4, 5], *([*range(length)] for length in range(6))]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    dataset = StreamingDataset(local=str(tmp_path), batch_size=2, **options)
    batches = iter(StreamingDataLoader(dataset, num_workers=num_workers))
    assert next(batches)["ids"].tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(RuntimeError, match="equal size") as raised:
        next(batches)
    said = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    assert "entry ['ids'] of the samples: shapes (0,) and (1,)" in said
    assert "fkat_data.datasets.PaddingCollate(...) pads them" in said


def test_ranges_beyond_4_gib_are_read(tmp_path):
    """In a file with a hole: pyarrow writes none whose first byte is that far."""
    start, text = 5 << 30, b"the row group"
    with (tmp_path / "file").open("wb") as file:
        file.truncate(start)
        file.seek(start)
        file.write(text)
    info = FileInfo("file", start + len(text))
    store, target = open_store(tmp_path, storage_options=None, num_retries=0, timeout_s=5), io.BytesIO()
    store.download_part(Origin("file", info.bytes, "", ((start, start + 3), (start + 8, start + 13))), target)
    assert target.getvalue() == b"thegroup"
