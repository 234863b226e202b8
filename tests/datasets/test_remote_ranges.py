"""Which bytes of a remote file are fetched: those of samples where reading is at random, and what is ahead in order."""

import io
import pickle
import random
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from meeting import Meeting
from remote_tables import KINDS, NUM_SAMPLES, ROWS_OF_A_GROUP, lines, members

from fkat_data.datasets import (
    IterableJsonDataset,
    IterableParquetDataset,
    JsonDataset,
    ParquetDataset,
)
from fkat_data.errors import DownloadError, ShardCorruptError


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


def test_row_groups_that_lie_one_behind_the_other_are_fetched_once_and_together(store, table):
    numbers, _ = table
    rows = list(IterableParquetDataset("counting://file"))
    assert [row["c30"] for row in rows] == numbers["c30"].tolist()
    assert len(store.requests) == 3  # the footer, the first row group, and the others
    assert store.num_bytes() < 1.05 * len(store.files["file"])


def chunk_of(store, group):
    """Return where the column c30 of a row group is in the file."""
    chunk = pq.read_metadata(io.BytesIO(store.files["file"])).row_group(group).column(30)
    return slice(chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size)


@pytest.mark.parametrize("columns", [None, ["c30"]])
def test_rows_before_a_row_group_that_a_store_does_not_send_come_first(columns, store, table, monkeypatch):
    numbers, _ = table
    lost = store.files["file"][chunk_of(store, 6)]

    def answer(content):
        if lost in content:
            raise PermissionError("no row group 6")
        return bytes(content)

    monkeypatch.setattr(store, "answer", staticmethod(answer))
    found = []
    with pytest.raises(DownloadError, match="no row group 6"):
        found.extend(row["c30"] for row in IterableParquetDataset("counting://file", columns))
    assert found == numbers["c30"].tolist()[: 6 * ROWS_OF_A_GROUP]


def test_a_damaged_row_group_of_several_that_are_fetched_together_is_named(store, table):
    numbers, _ = table
    content = bytearray(store.files["file"])
    content[chunk_of(store, 6).start] ^= 0xFF
    store.files["file"] = bytes(content)
    found = []
    with pytest.raises(ShardCorruptError, match="row group 6"):
        found.extend(row["c30"] for row in IterableParquetDataset("counting://file"))
    assert found == numbers["c30"].tolist()[: 6 * ROWS_OF_A_GROUP]


def num_threads():
    return len(list(Path("/proc/self/task").iterdir()))


def test_a_parquet_file_in_order_that_is_left_early_leaves_no_thread(store, table):
    list(IterableParquetDataset("counting://file", ["c30"]))  # what this starts once stays
    before = num_threads()
    rows = iter(IterableParquetDataset("counting://file", ["c30"]))
    next(rows)
    rows.close()
    for _ in range(6000):
        if num_threads() <= before:
            break
        time.sleep(0.01)
    assert num_threads() <= before
    assert len({start for _, start, _ in store.requests}) <= 11


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
