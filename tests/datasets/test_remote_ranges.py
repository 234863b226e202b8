"""Which bytes of a remote file are fetched: those of samples where reading is at random, and what is ahead in order."""

import io
import json
import pickle
import random
import tarfile
import time

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from counting_files import CountingFileSystem
from meeting import Meeting

from fkat_data.datasets import (
    IterableJsonDataset,
    IterableParquetDataset,
    JsonDataset,
    ParquetDataset,
    TarDataset,
    TokenDocuments,
    TokenWindows,
)
from fkat_data.errors import DownloadError, ShardCorruptError

NUM_SAMPLES = 200


@pytest.fixture
def store(monkeypatch):
    fsspec.register_implementation("counting", CountingFileSystem, clobber=True)
    for name, value in {"files": {}, "requests": [], "meeting": None}.items():
        monkeypatch.setattr(CountingFileSystem, name, value)
    return CountingFileSystem


def lines():
    return {"file": "".join(json.dumps({"n": n, "text": "x" * 100}) + "\n" for n in range(NUM_SAMPLES)).encode()}


def members():
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for number in range(NUM_SAMPLES):
            for extension, size in ("cls", 3), ("bin", 700):
                member = tarfile.TarInfo(f"{number:04}.{extension}")
                member.size = size
                archive.addfile(member, io.BytesIO(b"%03d" % number if size == 3 else bytes(size)))
    return {"file": content.getvalue()}


def tokens():
    return {"file": np.arange(NUM_SAMPLES * 64, dtype=np.uint16).tobytes()}


def documents():
    lengths = np.full(NUM_SAMPLES, 64, np.int32)
    index = b"".join(
        (
            b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + b"\x08",
            NUM_SAMPLES.to_bytes(8, "little") + (NUM_SAMPLES + 1).to_bytes(8, "little"),
            lengths.tobytes(),
            (np.arange(NUM_SAMPLES, dtype=np.int64) * 128).tobytes(),
            np.arange(NUM_SAMPLES + 1, dtype=np.int64).tobytes(),
        )
    )
    return {"file.bin": tokens()["file"], "file.idx": index}


#: By name: the files, how they are opened, and the bytes of a sample.
KINDS = {
    "json lines": (lines, lambda: JsonDataset("counting://file"), 121),
    "tar": (members, lambda: TarDataset("counting://file"), 703),
    "one of a tar's members": (members, lambda: TarDataset("counting://file", ["cls"]), 3),
    "windows of tokens": (tokens, lambda: TokenWindows("counting://file", 64, dtype="uint16"), 128),
    "documents of tokens": (documents, lambda: TokenDocuments("counting://file.bin"), 128),
}


@pytest.mark.parametrize("kind", KINDS)
def test_samples_at_random_fetch_at_most_twice_their_bytes(kind, store):
    files, opened, sample_bytes = KINDS[kind]
    store.files.update(files())
    dataset = opened()
    dataset[0]  # opens the file
    for chosen in random.Random(0).sample(range(1, NUM_SAMPLES), 12), [*range(150, 170), 3]:
        for read in (lambda chosen: [dataset[index] for index in chosen[:6]], dataset.__getitems__):
            store.requests.clear()
            assert len(read(chosen)) * 2 * sample_bytes >= store.num_bytes()


def test_lines_of_a_file_of_millions_fetch_no_others(store):
    store.files["file"] = lines()["file"][:121] * 10 + b"".join(b"%02d\n" % (n % 90 + 10) for n in range(900)) * 2500
    dataset = JsonDataset("counting://file")
    assert len(dataset) == 2_250_010
    assert len(pickle.dumps(dataset)) < 4.1 * len(dataset)
    dataset[0]
    indices = random.Random(0).sample(range(10, len(dataset)), 20)
    store.requests.clear()
    assert dataset.__getitems__(indices) == [(index - 10) % 90 + 10 for index in indices]
    assert store.num_bytes() <= 2 * 3 * len(indices)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_fetched_at_once_and_neighbours_by_one_request(kind, store):
    files, opened, _ = KINDS[kind]
    store.files.update(files())
    dataset = opened()
    expected = list(map(str, dataset))
    store.requests.clear()
    members = 2 if kind == "tar" else 1  # a header is between two members
    store.meeting = Meeting(3 * members)
    indices = [150, 3, 77]
    assert list(map(str, dataset.__getitems__(indices))) == [expected[index] for index in indices]
    assert len(store.requests) == 3 * members
    if members == 1 and "one" not in kind:
        store.meeting = Meeting(2)
        indices = [151, 3, 150, 4, 5]
        assert list(map(str, dataset.__getitems__(indices))) == [expected[index] for index in indices]
        assert len(store.requests) == 5


def test_the_files_of_a_batch_are_read_at_once(store):
    paths = [f"counting://part-{number}" for number in range(3)]
    store.files.update({path.removeprefix("counting://"): lines()["file"] for path in paths})
    dataset = JsonDataset(paths)
    dataset.__getitems__([1, 201, 401])
    store.meeting = Meeting(3)
    assert [sample["n"] for sample in dataset.__getitems__([590, 20, 250])] == [190, 20, 50]


def in_order(dataset):
    return [sample for start in range(0, len(dataset), 8) for sample in dataset.__getitems__(range(start, start + 8))]


@pytest.mark.parametrize("kind", ["json lines", "tar", "windows of tokens"])
def test_batches_in_order_are_read_ahead_and_each_byte_comes_once(kind, store):
    files, opened, _ = KINDS[kind]
    store.files.update(files())
    dataset = opened()
    expected = list(map(str, dataset))
    dataset = opened()
    store.requests.clear()
    assert list(map(str, in_order(dataset))) == expected
    assert store.num_bytes() < 1.1 * len(store.files["file"])


ROWS_OF_A_GROUP = 40


@pytest.fixture
def table(store):
    """Parquet of 60 columns and ten row groups, and the bytes of each column chunk."""
    content = io.BytesIO()
    numbers = {f"c{column:02}": np.random.default_rng(column).random(10 * ROWS_OF_A_GROUP) for column in range(60)}
    pq.write_table(pa.table(numbers), content, row_group_size=ROWS_OF_A_GROUP, use_dictionary=False)
    store.files["file"] = content.getvalue()
    return numbers, pq.read_metadata(content).row_group(3).column(7).total_compressed_size


def test_a_row_group_is_fetched_by_the_columns_that_are_read(store, table):
    numbers, chunk_bytes = table
    dataset = ParquetDataset("counting://file", ["c07"], row_groups_kept=10)
    chosen = random.Random(0).sample(range(len(dataset)), 20)
    store.requests.clear()
    assert [dataset[index]["c07"] for index in chosen] == [numbers["c07"][index] for index in chosen]
    num_groups = len({index // ROWS_OF_A_GROUP for index in chosen})
    assert store.num_bytes() <= 2 * num_groups * chunk_bytes


def test_the_row_groups_of_a_batch_are_fetched_at_once_and_neighbouring_columns_together(store, table):
    numbers, chunk_bytes = table
    dataset = ParquetDataset("counting://file", ["c07", "c08", "c09"])
    store.requests.clear()
    store.meeting = Meeting(3)
    indices = [70, 10, 150]
    assert [row["c08"] for row in dataset.__getitems__(indices)] == [numbers["c08"][index] for index in indices]
    assert len(store.requests) == 3
    assert store.num_bytes() < 3 * 3.1 * chunk_bytes


def test_row_groups_in_order_are_fetched_once_and_ahead(store, table):
    numbers, chunk_bytes = table
    dataset = IterableParquetDataset("counting://file", ["c30"])
    rows = iter(dataset)
    next(rows)
    for _ in range(6000):
        if len(store.requests) == 11:  # the footer, this row group, and the next ones: they are small
            break
        time.sleep(0.01)
    assert len(store.requests) == 11
    assert [row["c30"] for row in rows] == numbers["c30"].tolist()[1:]
    assert store.num_bytes() <= 10 * chunk_bytes + (64 << 10)


def read_through():
    return list(IterableJsonDataset("counting://file"))


@pytest.mark.parametrize(
    ("files", "read"),
    [(lines, read_through), (lines, KINDS["json lines"][1]), (members, KINDS["tar"][1])],
    ids=["an iteration", "an index of lines", "an index of members"],
)
def test_a_file_that_is_read_through_is_fetched_once(files, read, store):
    store.files.update(files())
    assert len(read()) == NUM_SAMPLES
    assert store.num_bytes() < 1.1 * len(store.files["file"])


@pytest.mark.parametrize(("answer", "error"), [(b"x" * 50_000, DownloadError), (b"", ShardCorruptError)])
def test_a_store_that_sends_other_bytes_than_those_asked_for_is_an_error(store, answer, error, monkeypatch):
    store.files.update(lines())
    dataset = JsonDataset("counting://file")
    sample = dataset[150]
    with monkeypatch.context() as patched:
        patched.setattr(store, "answer", staticmethod(lambda _: answer))
        for read in (lambda: dataset[150], lambda: dataset.__getitems__([7, 90]), read_through):
            with pytest.raises(error):
                read()
    assert dataset[150] == sample


def test_row_groups_that_are_decoded_again_are_not_fetched_again(store, table):
    numbers, _ = table
    dataset = ParquetDataset("counting://file", ["c07"], row_groups_kept=1)
    store.requests.clear()
    for _ in range(3):
        for chosen in [range(0, 400, 40), [399], [0, 200]]:
            found = dataset.__getitems__(chosen)
            assert [row["c07"] for row in found] == [numbers["c07"][index] for index in chosen]
    assert len(store.requests) == 10
