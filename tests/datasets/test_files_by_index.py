"""What the datasets of files have in common: rows by index, from any store, in copies and in forks."""

import copy
import gzip
import os
import pickle
import subprocess
import sys

import fsspec
import pytest
import zstandard
from written_files import FORMATS, NUM_SAMPLES, write_lines

from fkat_data.datasets import IterableJsonDataset, IterableParquetDataset, JsonDataset, ParquetDataset
from fkat_data.errors import ShardNotFoundError

IN_ORDER = {JsonDataset: IterableJsonDataset, ParquetDataset: IterableParquetDataset}


def lines_by(compress):
    def write(path, word):
        write_lines(path, word)
        path.write_bytes(compress(path.read_bytes()))

    return write


@pytest.fixture(params=[*FORMATS, (JsonDataset, lines_by(gzip.compress)), (JsonDataset, lines_by(zstandard.compress))])
def dataset(request, tmp_path):
    kind, write = request.param
    write(tmp_path / "file", "word")
    return kind(str(tmp_path / "file"))


def numbers(rows):
    return [row["n"] if "n" in row else int(row["__key__"]) for row in rows]


@pytest.mark.parametrize("index", [1.5, "1", slice(0, 2), None])
def test_an_index_is_an_integer(dataset, index):
    with pytest.raises(TypeError, match="integers"):
        dataset[index]


def test_copies_and_pickles_are_small_and_read_alike(dataset):
    dataset[0]
    blob = pickle.dumps(dataset)
    assert len(blob) < 2000
    for twin in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(blob), dataset):
        assert numbers(twin) == list(range(NUM_SAMPLES))


@pytest.mark.usefixtures("processes")
def test_a_forked_process_reads_beside_its_parent(dataset):
    dataset[0]
    child = os.fork()
    if child == 0:
        try:
            os._exit(numbers(dataset) != list(range(NUM_SAMPLES)))
        finally:  # an exception must not make a second pytest of the child
            os._exit(2)
    assert numbers(dataset) == list(range(NUM_SAMPLES))
    assert os.waitpid(child, 0)[1] == 0


def test_any_file_system_of_fsspec_is_read(dataset, tmp_path):
    with fsspec.open("memory://rows/file", "wb") as file:
        file.write((tmp_path / "file").read_bytes())
    for uri in ("memory://rows/file", f"file://{tmp_path}/file"):
        assert numbers(type(dataset)(uri).__getitems__([11, 1])) == [11, 1]
        if type(dataset) in IN_ORDER:
            assert numbers(IN_ORDER[type(dataset)](uri)) == list(range(NUM_SAMPLES))


@pytest.mark.parametrize("missing", ["{folder}/nothing", "file://{folder}/nothing", "memory://nothing"])
def test_a_missing_file_is_named(dataset, tmp_path, missing):
    missing = missing.format(folder=tmp_path)
    for kind in {type(dataset), IN_ORDER.get(type(dataset), type(dataset))}:
        with pytest.raises(ShardNotFoundError, match=missing):
            list(kind(missing))


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("package", "extra", "kind", "name"),
    [
        ("pyarrow", "parquet", "datasets import ParquetDataset", "a.parquet"),
        ("pyarrow", "parquet", "streaming import LocalDataset", "a.parquet"),
        ("zstandard", "json", "datasets import JsonDataset", "lines.zst"),
    ],
)
def test_without_its_package_a_dataset_says_what_to_install(tmp_path, package, extra, kind, name):
    (tmp_path / name).write_bytes(b"PAR1" if extra == "parquet" else zstandard.compress(b"1\n"))
    program = f"""
import sys
sys.modules[{package!r}] = None
try:
    from fkat_data.{kind} as Dataset
    Dataset({str(tmp_path / name)!r})
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.startswith(
        f"ConfigurationError {package} = <not installed>: expected pip install 'fkat_data[{extra}]'"
    )
