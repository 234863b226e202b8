"""Whatever pyarrow and zstandard raise, at any of their calls, arrives as an error of this library that names the file."""

import errno
import itertools
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_files
import zstandard
from small_files import json_lines, rows

from fkat_data.datasets import IterableJsonDataset, IterableParquetDataset, JsonDataset, ParquetDataset
from fkat_data.errors import FkatDataError, ShardCorruptError, ShardError
from fkat_data.files.verification import first_samples, verify_dataset
from fkat_data.streaming import StreamingDataset
from fkat_data.tools import convert
from fkat_data.tools.dataset_cli import stored_datasets

ROWS = rows(40)


class Plan:
    """Which call of the library fails, and how."""

    def __init__(self):
        self.failing_call, self.num_calls, self.error = 0, 0, None

    def set(self, failing_call, error):
        self.failing_call, self.num_calls, self.error = failing_call, 0, error

    def step(self):
        self.num_calls += 1
        if self.num_calls == self.failing_call:
            raise self.error()


class Calls:
    """An object of a library, each of whose calls may fail."""

    def __init__(self, inner, plan):
        self._inner, self._plan = inner, plan

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*arguments, **options):
            self._plan.step()
            result = found(*arguments, **options)
            return map(self._next, result) if hasattr(result, "__next__") else result

        return call

    def _next(self, item):
        self._plan.step()
        return item

    def __enter__(self):
        return Calls(self._inner.__enter__(), self._plan)

    def __exit__(self, *error):
        return self._inner.__exit__(*error)


@pytest.fixture
def plan(monkeypatch):
    plan = Plan()

    class File(pq.ParquetFile):
        def __init__(self, *arguments, **options):
            plan.step()
            super().__init__(*arguments, **options)
            self.reader = Calls(self.reader, plan)

    def failing(function):
        def call(*arguments, **options):
            plan.step()
            return function(*arguments, **options)

        return call

    class Decompressor:
        def __init__(self, **options):
            self._made = zstandard.backend_c.ZstdDecompressor(**options)

        def decompressobj(self):
            plan.step()
            return Calls(self._made.decompressobj(), plan)

        def stream_reader(self, *arguments, **options):
            plan.step()
            return Calls(self._made.stream_reader(*arguments, **options), plan)

    monkeypatch.setattr(pq, "ParquetFile", File)
    monkeypatch.setattr(pq, "read_metadata", failing(pq.read_metadata))
    monkeypatch.setattr(pa, "memory_map", failing(pa.memory_map))
    monkeypatch.setattr(zstandard, "ZstdDecompressor", Decompressor)
    return plan


def by_index(kind):
    def read(path, _):
        dataset = kind(path)
        return [dataset[index] for index in (len(dataset) - 1, 0, 1)]

    return read


def in_order(kind):
    return lambda path, _: list(kind(path))


def stream(path, _):
    dataset = StreamingDataset(local=path, batch_size=1)
    return [dict(dataset[index]) for index in (0, len(dataset) - 1)]


def shown(path, _):
    ((folder, entries),) = stored_datasets(Path(path))
    return first_samples(folder, 3, entries=entries)


def verified(path, _):
    ((folder, entries),) = stored_datasets(Path(path))
    report = verify_dataset(folder, entries=entries)
    for problem in (*report.problems, *report.unread):
        raise problem
    return report.num_samples


def converted(path, folder):
    return convert(path, str(folder))


def parquet(folder):
    (folder / "rows.parquet").write_bytes(small_files.parquet(ROWS, row_group_size=20))
    return "rows.parquet"


def lines(folder):
    (folder / "rows.jsonl.zst").write_bytes(zstandard.compress(json_lines(ROWS)))
    return "rows.jsonl.zst"


def shards(folder):
    (folder / "source.jsonl").write_bytes(json_lines(ROWS))
    convert(folder / "source.jsonl", str(folder / "shards"), compression="zstd")
    return "shards"


READERS = {
    "Parquet by index": (by_index(ParquetDataset), parquet),
    "Parquet in order": (in_order(IterableParquetDataset), parquet),
    "stream of Parquet": (stream, parquet),
    "convert of Parquet": (converted, parquet),
    "inspect of Parquet": (shown, parquet),
    "verify of Parquet": (verified, parquet),
    "inspect of shards": (shown, shards),
    "verify of shards": (verified, shards),
    "lines by index": (by_index(JsonDataset), lines),
    "lines in order": (in_order(IterableJsonDataset), lines),
    "convert of lines": (converted, lines),
}
DAMAGE = {
    "invalid": lambda: pa.ArrowInvalid("Couldn't deserialize thrift"),
    "words alone": lambda: OSError("Corrupt snappy compressed data"),
}
OTHERS = {
    "not implemented": lambda: pa.ArrowNotImplementedError("a type"),
    "memory": lambda: pa.ArrowMemoryError("malloc of size 1 failed"),
    "disk": lambda: OSError(errno.EIO, "Input/output error"),
}
OF_ZSTANDARD = {
    "zstandard": lambda: zstandard.ZstdError("Data corruption detected"),
    "memory of zstandard": lambda: zstandard.ZstdError("Allocation error : not enough memory"),
}


def outcome(read, path, folder):
    try:
        return read(str(path), folder)
    except FkatDataError as caught:
        return caught


@pytest.mark.parametrize("error", [*DAMAGE, *OTHERS, *OF_ZSTANDARD])
@pytest.mark.parametrize("reader", READERS)
def test_each_call_of_a_library_that_fails_is_an_error_with_the_file(tmp_path, reader, error, plan):
    read, make = READERS[reader]
    if (make in (lines, shards)) != (error in OF_ZSTANDARD):
        return
    make_error = (DAMAGE | OTHERS | OF_ZSTANDARD)[error]
    path = tmp_path / make(tmp_path)
    expected = read(str(path), tmp_path / "first")
    num_errors = 0
    for call in itertools.count(1):
        plan.set(call, make_error)
        found = outcome(read, path, tmp_path / str(call))
        if isinstance(found, FkatDataError):
            num_errors += 1
            assert path.name in str(found), found
            # Only what another copy of the file may mend is called corrupt.
            assert isinstance(found, ShardCorruptError) == (error in DAMAGE or error == "zstandard"), found
            continue
        assert found == expected
        if plan.num_calls < call:
            break
    assert num_errors > 0 or error == "not implemented"


def test_no_memory_says_what_takes_less(tmp_path, plan):
    path = tmp_path / parquet(tmp_path)
    plan.set(4, OTHERS["memory"])
    with pytest.raises(ShardError, match=r"rows\.parquet.*memory.*row groups"):
        list(IterableParquetDataset(str(path)))


@pytest.mark.parametrize("reader", ["inspect of shards", "verify of shards"])
def test_a_disk_that_fails_is_an_error_with_the_file(tmp_path, reader, monkeypatch):
    read, make = READERS[reader]
    path = tmp_path / make(tmp_path)
    expected = read(str(path), tmp_path)
    open_file = Path.open

    class Failing:
        def __init__(self, file):
            self._file = file

        def __getattr__(self, name):
            return getattr(self._file, name)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self._file.close()

        def read(self, *_):
            raise OSError(errno.EIO, "Input/output error")

    def opened(self, *arguments, **options):
        file = open_file(self, *arguments, **options)
        return Failing(file) if self.name.endswith(".zstd") else file

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opened)
        with pytest.raises(OSError, match=r"Input/output error.*shard\.00000\.mds\.zstd"):
            read(str(path), tmp_path)
    assert read(str(path), tmp_path) == expected
