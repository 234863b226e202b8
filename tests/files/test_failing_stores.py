"""Whatever a store raises, at any of its calls, arrives as an error of this library that names the file."""

import gzip
import io
import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import fsspec
import numpy as np
import pytest
import zstandard
from archive_examples import archive
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from small_files import json_lines, npy, parquet, rows

from fkat_data.datasets import (
    IterableJsonDataset,
    IterableParquetDataset,
    JsonDataset,
    ParquetDataset,
    TarDataset,
    TokenDocuments,
    TokenWindows,
)
from fkat_data.errors import ConfigurationError, DownloadError, FkatDataError, ShardNotFoundError
from fkat_data.samplers import FsShardSampler
from fkat_data.storage import store_errors
from fkat_data.streaming import Stream, StreamingDataset
from fkat_data.streaming.writing import MDSWriter, merge_index, write_parallel
from fkat_data.tools import convert
from fkat_data.tools.dataset_cli import index_file

ROWS = rows(40)
LINES = json_lines(ROWS)


class Plan:
    """Which call of the store fails, and how."""

    failing_call = 0
    error = None
    num_calls = 0

    @classmethod
    def set(cls, failing_call, error):
        cls.failing_call, cls.error, cls.num_calls = failing_call, error, 0

    @classmethod
    def step(cls):
        cls.num_calls += 1
        if cls.num_calls == cls.failing_call:
            raise cls.error()


class FailingFile(AbstractBufferedFile):
    def _fetch_range(self, start, end):
        Plan.step()
        return self.fs.contents[self.path][start:end]


class Written(io.BytesIO):
    """A file that a store has once it is closed."""

    def __init__(self, contents, path):
        super().__init__()
        self._contents, self._path = contents, path

    def write(self, content):
        Plan.step()
        return super().write(content)

    def close(self):
        if not self.closed:
            Plan.step()
            self._contents[self._path] = self.getvalue()
        super().close()


class FailingStore(AbstractFileSystem):
    """A store of bytes, each of whose calls may fail."""

    protocol = "failing"
    contents = {}  # noqa: RUF012 - of all stores: a store is made by each opening

    def info(self, path, **_):
        Plan.step()
        path = self._strip_protocol(path)
        if path not in self.contents:
            if any(name.startswith(f"{path}/") for name in self.contents):
                return {"name": path, "size": 0, "type": "directory"}
            raise FileNotFoundError(path)
        return {"name": path, "size": len(self.contents[path]), "type": "file", "ETag": f"e{len(self.contents[path])}"}

    def ls(self, path, detail=True, **_):
        Plan.step()
        root = f"{self._strip_protocol(path).strip('/')}/"
        found = {}
        for name, content in self.contents.items():
            first, slash, _ = name.removeprefix(root).partition("/")
            if name.startswith(root):
                kind = "directory" if slash else "file"
                found[root + first] = {"name": root + first, "size": 0 if slash else len(content), "type": kind}
        return list(found.values()) if detail else list(found)

    def cat_file(self, path, start=None, end=None, **_):
        Plan.step()
        path = self._strip_protocol(path)
        if path not in self.contents:
            raise FileNotFoundError(path)
        return self.contents[path][start:end]

    def rm_file(self, path):
        Plan.step()
        if self.contents.pop(self._strip_protocol(path), None) is None:
            raise FileNotFoundError(path)

    def _open(self, path, mode="rb", block_size=None, **settings):
        Plan.step()
        if mode == "wb":
            return Written(self.contents, path)
        settings = {name: settings[name] for name in ("cache_type", "cache_options") if name in settings}
        return FailingFile(self, path, mode, block_size or 1 << 20, **settings)


def megatron():
    tokens = np.arange(100, dtype=np.uint16)
    header = (
        b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + b"\x08" + (2).to_bytes(8, "little") + (3).to_bytes(8, "little")
    )
    arrays = [np.array([40, 60], "<i4"), np.array([0, 80], "<i8"), np.array([0, 1, 2], "<i8")]
    return tokens.tobytes(), header + b"".join(array.tobytes() for array in arrays)


TOKENS, INDEX = megatron()
CONTENTS = {
    "bucket/rows.jsonl": LINES,
    "bucket/rows.jsonl.gz": gzip.compress(LINES),
    "bucket/rows.jsonl.zst": zstandard.compress(LINES),
    "bucket/rows.parquet": parquet(ROWS, row_group_size=20),
    "bucket/rows.tar": archive([(f"{number}.txt", b"hello") for number in range(5)]),
    "bucket/tokens.bin": TOKENS,
    "bucket/tokens.idx": INDEX,
    "bucket/tokens.npy": npy(np.arange(100, dtype=np.uint16)),
}


@pytest.fixture(autouse=True)
def store(monkeypatch):
    monkeypatch.setattr(store_errors, "NUM_RETRIES", 0)
    fsspec.register_implementation("failing", FailingStore, clobber=True)
    FailingStore.contents = dict(CONTENTS)
    yield
    Plan.set(0, None)


def by_index(kind, *arguments):
    def read(url, _):
        dataset = kind(url, *arguments)
        return [str(dataset[index]) for index in (len(dataset) - 1, 0, 1)]

    return read


def in_order(kind):
    return lambda url, _: [str(sample) for sample in kind(url)]


def stream(**settings):
    def read(url, folder):
        made = Stream(remote=url, local=str(folder), download_retry=0, **settings)
        dataset = StreamingDataset(streams=[made], batch_size=1)
        return [str(dataset[index]) for index in (0, len(dataset) - 1)]

    return read


READERS = {
    "lines by index": (by_index(JsonDataset), "rows.jsonl"),
    "lines of gzip by index": (by_index(JsonDataset), "rows.jsonl.gz"),
    "lines in order": (in_order(IterableJsonDataset), "rows.jsonl"),
    "lines of zstd in order": (in_order(IterableJsonDataset), "rows.jsonl.zst"),
    "Parquet by index": (by_index(ParquetDataset), "rows.parquet"),
    "Parquet in order": (in_order(IterableParquetDataset), "rows.parquet"),
    "tar": (by_index(TarDataset), "rows.tar"),
    "windows": (by_index(TokenWindows, 10), "tokens.npy"),
    "windows with an index": (by_index(TokenWindows, 10), "tokens.bin"),
    "documents": (by_index(TokenDocuments), "tokens.bin"),
    "stream of Parquet": (stream(), "rows.parquet"),
    "stream of tar": (stream(), "rows.tar"),
    "stream of tokens": (stream(tokens={"window_size": 10}), "tokens.npy"),
}


class StrangeError(Exception):
    """What no library of ours knows."""


ERRORS = {
    "broken connection": lambda: OSError(104, "Connection reset by peer"),
    "words alone": lambda: OSError("the store said no"),  # gcsfs
    "time": TimeoutError,
    "permission": lambda: PermissionError("Forbidden"),
    "value": lambda: ValueError("strange answer"),
    "key": lambda: KeyError("Contents"),
    "another": lambda: StrangeError("of the client"),
    "no words": RuntimeError,
}


def outcome(read, name, folder, call, error):
    """Return what a reader gives where a call of the store fails, or the error of this library that it raises."""
    Plan.set(call, error)
    try:
        return read(f"failing://bucket/{name}", folder)
    except FkatDataError as caught:
        return caught


#: Each reader with an error of each kind of handling, and some readers with all.
CASES = [
    (reader, error)
    for reader in READERS
    for error in ERRORS
    if error in ("words alone", "another") or reader in ("lines in order", "Parquet by index")
]


@pytest.mark.parametrize(("reader", "error"), CASES)
def test_each_call_of_a_store_that_fails_is_an_error_with_the_file_or_does_no_harm(tmp_path, reader, error):
    read, name = READERS[reader]
    Plan.set(0, None)
    expected = read(f"failing://bucket/{name}", tmp_path / "first")
    num_errors = 0
    for call in itertools.count(1):
        found = outcome(read, name, tmp_path / str(call), call, ERRORS[error])
        if isinstance(found, FkatDataError):
            num_errors += 1
            assert isinstance(found, DownloadError), found
            assert name.partition(".")[0] in str(found), found
            continue
        assert found == expected
        if Plan.num_calls < call:
            break
    assert num_errors > 0


@pytest.mark.parametrize("reader", [reader for reader in READERS if "stream" not in reader])
@pytest.mark.parametrize("error", ["broken connection", "time", "another"])
def test_a_call_that_fails_once_is_made_again(tmp_path, monkeypatch, reader, error):
    monkeypatch.setattr(store_errors, "NUM_RETRIES", 1)
    monkeypatch.setattr(random.SystemRandom, "uniform", lambda *_: 0.0)
    read, name = READERS[reader]
    Plan.set(0, None)
    expected = read(f"failing://bucket/{name}", tmp_path)
    for call in itertools.count(1):
        assert outcome(read, name, tmp_path, call, ERRORS[error]) == expected
        if Plan.num_calls < call:
            break


@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_vanishes_between_two_calls_is_named(tmp_path, reader):
    read, name = READERS[reader]
    for call in itertools.count(1):
        found = outcome(read, name, tmp_path / str(call), call, FileNotFoundError)
        if Plan.num_calls < call:
            break
        if isinstance(found, FkatDataError):
            # Without its index, a file of tokens is another one.
            assert isinstance(found, ShardNotFoundError) or name == "tokens.bin", found
            assert name.partition(".")[0] in str(found), found


def test_an_error_keeps_what_the_store_has_raised_and_no_secret_of_the_url():
    Plan.set(1, lambda: PermissionError("403 for failing://user:secret@bucket/rows.jsonl?sig=secret"))
    with pytest.raises(DownloadError, match=r"(?s)failing://bucket/rows\.jsonl.*PermissionError: 403") as caught:
        list(IterableJsonDataset("failing://user:secret@bucket/rows.jsonl?sig=secret"))
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, PermissionError)
    assert caught.value.is_refused


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("options", [{}, {"recursive": False}])
def test_a_listing_is_whole_or_an_error_with_the_folder(options, error):
    FailingStore.contents = {f"bucket/{folder}{name}.jsonl": LINES for folder in ("", "a/", "b/") for name in "12"}
    Plan.set(0, None)
    expected = list(FsShardSampler("failing://bucket", **options))
    assert len(expected) == (2 if options else 6)
    num_errors = 0
    for call in itertools.count(1):
        Plan.set(call, ERRORS[error])
        try:
            found = list(FsShardSampler("failing://bucket", **options))
        except DownloadError as caught:
            num_errors += 1
            found = caught
        if isinstance(found, DownloadError):
            assert "failing://bucket" in str(found)
            assert found.__notes__ == [
                "fkat_data: while listing 'failing://bucket'; storage_options takes credentials and endpoints"
            ]
            continue
        assert found == expected
        if Plan.num_calls < call:
            break
    assert num_errors > 0


def test_a_folder_that_the_store_does_not_say_anything_of_is_not_called_missing():
    for call in (1, 2, 3, 4):
        Plan.set(call, ERRORS["permission"])
        with pytest.raises((DownloadError, ConfigurationError)) as caught:
            FsShardSampler("failing://nothing")
        assert isinstance(caught.value, DownloadError) == (Plan.num_calls == call)


def test_a_file_system_that_cannot_be_made_is_an_error_with_the_uri_and_no_secret(monkeypatch):
    def fail(self, *_, **__):
        raise Plan.error()

    monkeypatch.setattr(FailingStore, "__init__", fail)
    for error, expected in (("value", ConfigurationError), ("permission", DownloadError), ("another", DownloadError)):
        Plan.set(1, ERRORS[error])
        for read in (FsShardSampler, JsonDataset, ParquetDataset):
            with pytest.raises(expected, match="failing://bucket/a") as caught:
                read("failing://user:secret@bucket/a?sig=secret", storage_options={"own": error})
            assert "secret" not in str(caught.value)


@pytest.mark.parametrize("error", ["permission", "another"])
def test_an_index_that_cannot_be_written_beside_a_file_is_an_error_with_the_file(error):
    sidecar = "bucket/rows.jsonl.lines"
    for call in itertools.count(1):
        FailingStore.contents.pop(sidecar, None)
        Plan.set(call, ERRORS[error])
        try:
            assert index_file("failing://bucket/rows.jsonl", None) == len(ROWS)
        except FkatDataError as caught:
            found = caught
        else:
            assert sidecar in FailingStore.contents
            if Plan.num_calls < call:
                break
            continue
        assert "failing://bucket/rows.jsonl" in str(found), found
    assert call > 5


def write(place, **settings):
    with MDSWriter(out=f"failing://bucket/{place}", columns={"number": "int"}, retry=1, **settings) as writer:
        writer.write({"number": 1})


def write_parts(_):
    def make_writer(**settings):
        return MDSWriter(columns={"number": "int"}, retry=1, **settings)

    with ThreadPoolExecutor(1) as executor:
        samples = partial(map, lambda number: {"number": number})
        write_parallel(make_writer, samples, [[1], [2]], out="failing://bucket/parts", executor=executor)


def converted(folder):
    (folder / "rows.jsonl").write_bytes(LINES)
    convert(folder / "rows.jsonl", "failing://bucket/converted", retry=1)


WRITERS = {
    "a new dataset": lambda _: write("new"),
    "over another": lambda _: write("one", exist_ok=True),
    "in parts": write_parts,
    "an index of all below": lambda _: merge_index("failing://bucket"),
    "an index of some": lambda _: merge_index(["failing://bucket/two", "failing://bucket/one"], "failing://bucket"),
    "of other files": converted,
}


def indices():
    return [name for name in sorted(FailingStore.contents) if name.endswith("index.json") and "attempt" not in name]


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("error", ["permission", "another", "key"])
def test_each_call_of_a_store_that_is_written_to_is_an_error_with_the_location_or_does_no_harm(tmp_path, writer, error):
    Plan.set(0, None)
    write("one")
    write("two")
    before = dict(FailingStore.contents)
    WRITERS[writer](tmp_path)
    expected = indices()
    num_errors = 0
    for call in itertools.count(1):
        FailingStore.contents = dict(before)
        Plan.set(call, ERRORS[error])
        found = None
        try:
            WRITERS[writer](tmp_path)
        except (FkatDataError, PermissionError, StrangeError, KeyError) as caught:
            found = caught
        if found is not None:
            num_errors += 1
            assert "failing://bucket" in "\n".join([str(found), *getattr(found, "__notes__", ())])
            continue
        assert indices() == expected
        if Plan.num_calls < call:
            break
    assert num_errors > 0
