"""Which files of a folder are data, and what a name means: the same for every way to read."""

import contextlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from token_writers import bare, datatrove, megatron
from typer.testing import CliRunner

from fkat_data.datasets import IterableParquetDataset, JsonDataset, ParquetDataset, TokenDocuments, TokenWindows
from fkat_data.errors import ConfigurationError, ShardNotFoundError
from fkat_data.samplers import FsShardSampler
from fkat_data.storage.file_identity import FileIdentity
from fkat_data.streaming import LocalDataset, MDSWriter, Stream, StreamingDataset
from fkat_data.tools import app, convert

pytestmark = pytest.mark.usefixtures("own_caches")

#: What is written beside data: by this library, by Spark, Hive and Hadoop, by desktops, and hidden files.
NO_DATA = [
    "a.parquet.lengths",
    "a.parquet.0123456789abcdef.tmp",
    "a.parquet.tmp",
    "c.parquet._COPYING_",
    "a.parquet.part",
    "a.9gWx.parquet.part",
    "a.parquet.1f2e3d4c.partial",
    "deep/a.parquet.crdownload",
    "Unconfirmed 123456.crdownload",
    "a.parquet.filepart",
    "a.parquet.aria2",
    "a.parquet.incomplete",
    "a.parquet.temp",
    "a.parquet.TMP",
    "a.parquet.download",
    "a.parquet_.gstmp",
    "part-0-0.inprogress",
    "part-0-0.inprogress.0d8f6a2e-1b2c",
    "part-0-0.parquet.in-progress",
    "part-0-0.parquet.pending",
    "a.parquet.idx",
    "gone.jsonl.gz.lines",
    "_SUCCESS",
    "_metadata",
    "_common_metadata",
    "_committed_123",
    "a.parquet.crc",
    ".a.parquet.crc",
    "deep_$folder$",
    "deep/year=2024_$folder$",
    ".hidden.parquet",
    ".DS_Store",
    "deep/._a.parquet",
    "Thumbs.db",
    "deep/desktop.ini",
    "_temporary/0.parquet",
    "_temporary/0/task_0/year=2024/0.parquet",
    ".hive-staging_hive_2024/0.parquet",
    ".spark-staging-1/year=2024/0.parquet",
    "__MACOSX/0.parquet",
    "deep/.git/0.parquet",
]
DATA = ["_col=1/a.parquet", "a.parquet", "b.parquet", "deep/c.parquet", "deep/year=2024/d.parquet"]
DATA += ["year=__HIVE_DEFAULT_PARTITION__/e.parquet"]


@pytest.fixture
def own_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "caches"))
    (tmp_path / "caches").mkdir()
    yield
    fsspec.filesystem("memory").store.clear()


def write(path, *values):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"value": list(values)}), path)


def remote(path):
    """Copy what is below a path to a store in memory."""
    files = [path] if path.is_file() else [found for found in path.rglob("*") if found.is_file()]
    for found in files:
        fsspec.filesystem("memory").pipe(f"memory://bucket{found}", found.read_bytes())
    return f"memory://bucket{path}"


def values(rows):
    return [int(row["value"]) for row in rows]


def by_sampler(place, _):
    return values(row for shard in FsShardSampler(place) for row in ParquetDataset(shard))


def by_sampler_in_order(place, _):
    return values(row for shard in FsShardSampler(f"file://{place}") for row in IterableParquetDataset(shard))


def by_stream(place, _):
    return values(LocalDataset(place))


def by_cached_stream(place, out):
    dataset = StreamingDataset(remote=str(place), local=str(out), batch_size=1)
    return values(dataset[index] for index in range(len(dataset)))


def by_convert(place, out):
    convert(place, out)
    return values(LocalDataset(out))


def by_sampler_in_a_store(place, _):
    return by_sampler(remote(place), _)


def by_stream_of_a_store(place, out):
    return by_cached_stream(remote(place), out)


#: Each takes a folder or a file, and a place for what it writes, and returns the values of the rows that it reads.
HERE = [by_sampler, by_sampler_in_order, by_stream, by_cached_stream, by_convert]
WAYS = [*HERE, by_sampler_in_a_store, by_stream_of_a_store]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_beside_data_and_what_is_hidden_is_never_data(tmp_path, way):
    data = tmp_path / "data"
    for name in NO_DATA:
        write(data / name, 99)
    for number, name in enumerate(DATA):
        write(data / name, number)
    assert way(data, tmp_path / "out") == [0, 1, 2, 3, 4, 5]


def tokens_by_sampler(place, _):
    return [int(window[0]) for shard in FsShardSampler(place) for window in TokenWindows(shard, 4, dtype="uint16")]


def tokens_by_stream(place, out):
    made = Stream(remote=str(place), local=str(out), tokens={"window_size": 4, "dtype": "uint16"})
    dataset = StreamingDataset(streams=[made], batch_size=1)
    return [int(dataset[index]["tokens"][0]) for index in range(len(dataset))]


def tokens_by_convert(place, out):
    convert(place, out)
    return [int.from_bytes(row["content"][:2], "little") for row in LocalDataset(out)]


@pytest.mark.parametrize("way", [tokens_by_sampler, tokens_by_stream, tokens_by_convert])
@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("write_tokens", [bare, megatron, datatrove])
def test_what_is_written_beside_tokens_is_never_data(tmp_path, way, is_remote, write_tokens):
    if is_remote and way is tokens_by_convert:
        pytest.skip("it reads files of this machine")
    (tmp_path / "data" / "deep").mkdir(parents=True)
    for number, name in enumerate(("a", "b", "deep/c")):
        tokens = np.full(4, number, np.uint16)
        path = write_tokens(tmp_path / "data" / name, tokens, [1, 3])
        if write_tokens is datatrove:
            tokens.tofile(path)  # of two bytes each
            for end in ("metadata", "loss"):
                path.with_name(f"{path.name}.{end}").write_bytes(b"\x63\0")
    for name in (".DS_Store", "Thumbs.db", "deep_$folder$", "a.bin.crc", "_SUCCESS", "deep/c.bin.tmp"):
        (tmp_path / "data" / name).write_bytes(b"\x63\0" * 4)
    place = remote(tmp_path / "data") if is_remote else tmp_path / "data"
    assert way(place, tmp_path / "out") == [0, 1, 2]


def test_an_index_of_tokens_that_is_named_or_alone_says_what_to_name(tmp_path):
    megatron(tmp_path / "a", np.arange(4, dtype=np.uint16), [1, 3])
    assert list(FsShardSampler(tmp_path, "*.idx")) == [f"{tmp_path}/a.idx"]
    assert list(FsShardSampler(tmp_path / "a.idx")) == [f"{tmp_path}/a.idx"]
    for _ in range(2):
        for read in (TokenWindows, TokenDocuments):
            with pytest.raises(ConfigurationError, match=r"a\.idx.*this is an index.*a\.bin: pass that"):
                read(f"{tmp_path}/a.idx", *([4] if read is TokenWindows else []))
        with pytest.raises(ConfigurationError, match=r"a\.idx.*this is an index: name the file"):
            tokens_by_stream(tmp_path / "a.idx", tmp_path / "out")
        (tmp_path / "a.bin").unlink(missing_ok=True)
    assert list(FsShardSampler(tmp_path)) == [f"{tmp_path}/a.idx"]
    with pytest.raises(ConfigurationError, match=r"a\.idx.*this is an index: name the file"):
        tokens_by_stream(tmp_path, tmp_path / "out")


@pytest.mark.parametrize("of", ["tar", "bin", "rec", "tfrecord"])
def test_an_index_is_no_shard_beside_what_it_is_of_and_one_without_it_is(tmp_path, of):
    for name in (f"a.{of}", "a.idx", "b.idx", "c/a.idx", "train-images.idx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    expected = [f"a.{of}", "b.idx", "c/a.idx", "train-images.idx"]
    assert [str(Path(shard).relative_to(tmp_path)) for shard in FsShardSampler(tmp_path)] == expected


@pytest.mark.parametrize("way", HERE)
def test_a_folder_that_is_linked_twice_is_read_twice_and_one_above_is_not(tmp_path, monkeypatch, way):
    data = tmp_path / "data"
    write(data / "one" / "a.parquet", 1)
    write(tmp_path / "elsewhere" / "b.parquet", 2)
    for name, target in {
        "two": "one",
        "one/up": "..",
        "one/self": ".",
        "three": "../elsewhere",
        "three.parquet": "../elsewhere/b.parquet",
    }.items():
        (data / name).symlink_to(target)
    (tmp_path / "elsewhere" / "data").symlink_to(data)
    scandir = os.scandir

    class Reversed(list):
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    expected = [1, 2, 2, 1]
    assert way(data, tmp_path / "out") == expected
    monkeypatch.setattr(os, "scandir", lambda path: Reversed(list(scandir(path))[::-1]))
    assert way(data, tmp_path / "other") == expected


@pytest.fixture
def subvolumes(tmp_path, monkeypatch):
    """A context in which all folders of ``data`` are as a file server shows the roots of Btrfs's subvolumes."""
    stat = Path.stat

    def of_subvolume(path, **options):
        found = stat(path, **options)
        is_inside = path.is_relative_to(tmp_path / "data") and stat(path).st_mode & 0o40000
        return os.stat_result((found[0], 256, 1, *found[3:])) if is_inside else found

    @contextlib.contextmanager
    def shown():
        with monkeypatch.context() as patch:
            patch.setattr(Path, "stat", of_subvolume)
            yield

    return shown


@pytest.mark.parametrize("way", HERE)
def test_folders_that_share_an_inode_are_all_read(tmp_path, subvolumes, way):
    for number in range(4):
        write(tmp_path / "data" / f"{number}/{number}/{number}.parquet", number)
    with subvolumes():
        assert way(tmp_path / "data", tmp_path / "out") == [0, 1, 2, 3]


def test_folders_that_share_an_inode_are_caches_and_locations_of_their_own(tmp_path, subvolumes):
    for number, name in enumerate("abc"):
        write(tmp_path / "data" / name / "deep" / "0.parquet", number)
    with subvolumes():
        places = [(str(tmp_path / "data" / name), str(tmp_path / "data" / f"cache of {name}")) for name in "abc"]
        streams = [Stream(remote=remote, local=local) for remote, local in places]
        dataset = StreamingDataset(streams=streams, batch_size=1)
        assert values(dataset[index] for index in range(3)) == [0, 1, 2]
        for _, local in places:
            assert list(Path(local).rglob("*-footer"))
        with MDSWriter(out=tuple(places[0][1] + end for end in ("x", "y")), columns={"value": "int"}) as writer:
            writer.write({"value": 1})
        same = StreamingDataset(remote=places[0][0], local=f"{places[0][0]}/../a", batch_size=1)
        assert values([same[0]]) == [0]
        assert not (tmp_path / "data" / "a" / ".fkat_data").exists()


BOUND = """
import subprocess, sys
from pathlib import Path
from fkat_data import ConfigurationError
from fkat_data.streaming import MDSWriter, StreamingDataset
folder = Path(sys.argv[1])
(folder / "bound").mkdir()
subprocess.run(["mount", "--bind", folder / "data", folder / "bound"], check=True)
dataset = StreamingDataset(remote=str(folder / "data"), local=str(folder / "bound"), batch_size=1)
print(int(dataset[0]["value"]), sorted(path.name for path in (folder / "bound").iterdir()))
try:
    MDSWriter(out=(str(folder / "data"), str(folder / "bound")), columns={"value": "int"}, exist_ok=True)
except ConfigurationError as error:
    print("two different directories" in str(error))
"""


def test_a_bind_mount_is_the_directory_that_is_mounted(tmp_path, processes):
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system lets no user mount")
    write(tmp_path / "data" / "a.parquet", 7)
    words = ["unshare", "-rm", sys.executable, "-c", BOUND, str(tmp_path)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["7 ['a.parquet']", "True"]


@pytest.mark.parametrize("way", HERE)
def test_a_link_that_leads_nowhere_is_left_out_and_named(tmp_path, caplog, way):
    write(tmp_path / "data" / "a.parquet", 1)
    for name, target in {"gone.parquet": "nowhere", "circle": "circle", ".lock": "nowhere"}.items():
        (tmp_path / "data" / name).symlink_to(target)
    assert way(tmp_path / "data", tmp_path / "out") == [1]
    said = {record.getMessage() for record in caplog.records if "leads nowhere" in record.getMessage()}
    assert said == {
        f"{tmp_path}/data/{name} is left out: the link leads nowhere" for name in ("circle", "gone.parquet")
    }


#: A name, and another file that it would mean as a pattern, or decoded.
NAMES = {
    "run[1]": "run1",
    "what?": "whatX",
    "a*b": "aXXb",
    "[!a]": "b",
    "a%20b": "a b",
    "50%": "50",
    "a::b": "a",
    "a#b": "a",
    "a+b": "a b",
    "a b": "a+b",
    "é": "e",
    "~": "x",
    "{a,b}": "a",
    "**": "x",
    "A": "a",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_what_exists_is_meant_as_it_is_written(tmp_path, name, way):
    for number, (folder, file) in enumerate(itertools.product((name, NAMES[name]), repeat=2)):
        write(tmp_path / "data" / folder / f"{file}.parquet", number)
    if way in (by_sampler_in_a_store, by_stream_of_a_store) and "::" in name:
        pytest.skip("a file system in memory has no folder of such a name")
    if way is by_stream:  # of a directory
        assert way(tmp_path / "data" / name, None) == [0, 1] if f"{name}." < f"{NAMES[name]}." else [1, 0]
        return
    assert way(tmp_path / "data" / name / f"{name}.parquet", tmp_path / "out") == [0]


@pytest.mark.parametrize("name", NAMES)
def test_a_pattern_comes_after_what_exists(tmp_path, name):
    for number, (folder, file) in enumerate(itertools.product((name, NAMES[name]), ("a", "b"))):
        write(tmp_path / "data" / folder / f"{file}.parquet", number)
    pattern = f"{tmp_path}/data/{name}/*.parquet"
    assert by_cached_stream(pattern, tmp_path / "one") == [0, 1]
    assert by_convert(pattern, tmp_path / "two") == [0, 1]
    chosen = FsShardSampler(tmp_path / "data", f"{name}/*.parquet")
    assert list(chosen) == [f"{tmp_path}/data/{name}/{file}.parquet" for file in "ab"]
    if "::" in name:
        return  # a file system in memory has no folder of such a name
    remote(tmp_path / "data")
    assert by_cached_stream(f"memory://bucket{pattern}", tmp_path / "three") == [0, 1]


@pytest.mark.parametrize("name", NAMES)
def test_lines_and_tokens_are_read_from_what_exists(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for number, file in enumerate((name, NAMES[name])):
        Path(f"{file}.jsonl").write_text(f'{{"value": {number}}}\n' * 2)
        np.save(f"{file}.npy", np.full(4, number, np.uint16))
    for place in (f"{name}.jsonl", f"file://{tmp_path}/{name}.jsonl", remote(tmp_path / f"{name}.jsonl")):
        assert values(JsonDataset(place)) == [0, 0]
    for place in (f"{name}.npy", f"file://{tmp_path}/{name}.npy", remote(tmp_path / f"{name}.npy")):
        assert [window.tolist() for window in TokenWindows(place, 4)] == [[0] * 4]
    done = CliRunner().invoke(app, ["convert", f"{name}.jsonl", "--out", "out"])
    assert done.exit_code == 0, done.output
    assert values(LocalDataset("out")) == [0, 0]


def test_a_percent_encoded_path_is_decoded_where_nothing_else_exists(tmp_path):
    write(tmp_path / "a b" / "c d.parquet", 1)
    uri = f"file://{tmp_path}/a%20b/c%20d.parquet"
    assert values(ParquetDataset(uri)) == [1]
    assert by_sampler(uri, None) == [1]
    assert by_cached_stream(uri, tmp_path / "out") == [1]
    assert by_convert(uri, tmp_path / "other") == [1]


def test_an_index_beside_data_changes_no_sampler_and_no_state(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / name).write_text('{"value": 1}\n')
    before = FsShardSampler(tmp_path / "data")
    for name in ("a.jsonl", "b.jsonl"):
        JsonDataset(tmp_path / "data" / name).save_index(FileIdentity.of_path(str(tmp_path / "data" / name)))
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        "a.jsonl",
        "a.jsonl.lines",
        "b.jsonl",
        "b.jsonl.lines",
    ]
    assert list(FsShardSampler(tmp_path / "data")) == list(before)
    assert by_convert(tmp_path / "data", tmp_path / "out") == [1, 1]
    assert by_convert(tmp_path / "data" / "*", tmp_path / "other") == [1, 1]


@pytest.mark.parametrize(
    "name",
    [
        "poem.lines",
        "waist.lengths",
        "$folder$",
        "a.tmp",
        "data.part",
        "part-0",
        "x.temp",
        "partial",
        "inprogress",
        "COPYING",
        "a.idx",
        "a.index",
        "x.loss",
        "a_b=c",
    ],
)
def test_a_name_that_only_looks_like_that_of_an_index_is_data(tmp_path, name):
    (tmp_path / name).write_text("x")
    assert list(FsShardSampler(tmp_path)) == [f"{tmp_path}/{name}"]


def test_a_pattern_that_writes_what_hides_a_file_shows_it(tmp_path):
    for name in ("a.jsonl", "a.jsonl.lines", "a.jsonl.crc", "_SUCCESS"):
        (tmp_path / name).write_text("x")
    for pattern in ("*.lines", "*.crc", "_*"):
        (found,) = FsShardSampler(tmp_path, pattern)
        assert Path(found).match(pattern)


def test_an_empty_object_that_stands_for_a_folder_is_no_file(tmp_path, processes):
    import servers

    write(tmp_path / "a.parquet", 1)
    content = (tmp_path / "a.parquet").read_bytes()
    files = {"x.parquet/a.parquet": content, "year/b.parquet": content, "run[1]?*/c.parquet": content}
    with servers.moto() as server:
        for name in (*files, "x.parquet", "year", "year/", "year_$folder$"):
            server.client().put_object(Bucket=servers.BUCKET, Key=f"data/{name}", Body=files.get(name, b""))
        server.client().put_object(Bucket=servers.BUCKET, Key="data", Body=b"")
        options = {"key": server.key, "secret": server.secret, "endpoint_url": server.endpoint_url}
        root = f"s3://{servers.BUCKET}/data"
        assert list(FsShardSampler(root, storage_options=options)) == sorted(f"{root}/{name}" for name in files)
        for place, count in {
            "": 3,
            "/x.parquet": 1,
            "/year/": 1,
            "/run[1]?*/*.parquet": 1,
            "/run[1]?*/c.parquet": 1,
        }.items():
            dataset = StreamingDataset(remote=root + place, storage_options=options, batch_size=1)
            assert values(dataset[index] for index in range(len(dataset))) == [1] * count
        for dataset in (ParquetDataset, JsonDataset, IterableParquetDataset):
            with pytest.raises(ConfigurationError, match="it is a folder"):
                list(dataset(f"{root}/x.parquet", storage_options=options))


@pytest.mark.parametrize("way", HERE)
def test_that_names_of_folders_are_no_columns_is_said_once(tmp_path, caplog, way):
    for month in (1, 2):
        write(tmp_path / "data" / "year=2024" / f"month={month}" / "a.parquet", month)
    assert way(tmp_path / "data", tmp_path / "out") == [1, 2]
    assert way(tmp_path / "data", tmp_path / "other") == [1, 2]
    said = [record.getMessage() for record in caplog.records if "partitioned" in record.getMessage()]
    assert len(said) == 1
    assert "samples have no year and no month" in said[0]


def test_convert_takes_the_tables_at_any_depth_and_samples_where_there_is_anything_else(tmp_path):
    for number, name in enumerate(["2/a.parquet", "10/a.parquet"]):
        write(tmp_path / "tables" / name, number)
    assert by_convert(tmp_path / "tables", tmp_path / "one") == [0, 1]
    (tmp_path / "tables" / "2" / "a.txt").write_text("x")
    (tmp_path / "tables" / "2" / "__init__.py").write_text("x")
    convert(tmp_path / "tables", tmp_path / "two")
    assert [row["path"] for row in LocalDataset(tmp_path / "two")] == [
        "10/a.parquet",
        "2/__init__.py",
        "2/a.parquet",
        "2/a.txt",
    ]
    convert(tmp_path / "tables", tmp_path / "three", kind="parquet")
    assert values(LocalDataset(tmp_path / "three")) == [0, 1]
    with pytest.raises(ShardNotFoundError, match="of the kind csv"):
        convert(tmp_path / "tables", tmp_path / "four", kind="csv")
    (tmp_path / "tables" / "own.csv").write_text("value\n7\n")
    assert by_convert(tmp_path / "tables", tmp_path / "five") == [7]


@pytest.mark.parametrize("name", ["a\nb.parquet", "a\\b.parquet"])
def test_a_name_that_a_stream_does_not_take_is_no_damage(tmp_path, name):
    write(tmp_path / "data" / name, 1)
    assert by_sampler(tmp_path / "data", None) == by_convert(tmp_path / "data", tmp_path / "out") == [1]
    with pytest.raises(ConfigurationError, match="rename"):
        LocalDataset(tmp_path / "data")


@pytest.mark.parametrize("way", HERE)
def test_a_name_that_is_no_text_is_read(tmp_path, way):
    write(tmp_path / "data" / "a.parquet", 1)
    name = tmp_path / "data" / os.fsdecode(b"\xff.parquet")
    try:
        (tmp_path / "data" / "a.parquet").rename(name)
    except OSError:
        pytest.skip("this file system takes names of UTF-8 alone")
    assert way(tmp_path / "data", tmp_path / "out") == way(name, tmp_path / "other") == [1]
