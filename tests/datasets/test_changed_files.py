"""Files that are written again while a dataset is in use, or between a saved state and its resume."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import time

import pytest
from walks import at_state, begun
from written_files import FORMATS, NUM_SAMPLES, write_lines, write_rows

from fkat_data import DataLoader
from fkat_data.datasets import (
    IterableJsonDataset,
    IterableParquetDataset,
    JsonDataset,
    MapDataset,
    ParquetDataset,
)
from fkat_data.errors import ShardCorruptError, StateMismatchError


@pytest.fixture(params=FORMATS)
def case(request, tmp_path):
    """A file with a word, a function that opens it, and one that writes another word into it or another file."""
    kind, write = request.param
    path, options = tmp_path / "file", {"row_groups_kept": 1} if kind is ParquetDataset else {}
    write(path, "older")
    return path, lambda: kind(str(path), **options), write


def replaced(path, write, word):
    """Put another file with a word in the place of one."""
    other = path.parent / "other"
    write(other, word)
    later(other)
    other.replace(path)


def later(path):
    """Let a file look as if it was written a second later: clocks of file systems are coarse."""
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1_000_000_000))


def test_a_file_that_is_written_again_in_its_place_never_mixes_with_the_old_one(case):
    path, opened, write = case
    dataset = opened()
    assert "older" in str(dataset[0])
    write(path, "newer")
    later(path)
    with pytest.raises(ShardCorruptError, match=r"file.*the file has changed"):
        dataset.__getitems__([NUM_SAMPLES - 1, 5])


def test_a_file_that_was_replaced_is_noticed_where_it_is_opened_again(case):
    path, opened, write = case
    shipped = pickle.dumps(opened())
    replaced(path, write, "new")
    with pytest.raises(ShardCorruptError, match=r"file.*the file has changed"):
        pickle.loads(shipped)[3]


@pytest.mark.parametrize("word", ["newer", "new, and of another length" * 30])
def test_who_has_a_file_open_reads_it_on_after_another_one_replaced_it(case, word):
    path, opened, write = case
    dataset = opened()
    assert "older" in str(dataset[0])
    replaced(path, write, word)
    assert all("older" in str(sample) for sample in dataset.__getitems__(range(NUM_SAMPLES)))
    assert word in str(opened()[0])


def test_a_copy_of_a_file_is_the_same_file(case):
    path, opened, _ = case
    shipped = pickle.dumps(opened())
    shutil.copy(path, path.parent / "copy")
    (path.parent / "copy").replace(path)
    later(path)
    assert "older" in str(pickle.loads(shipped)[3])


APPENDING = """
import sys, time
with open(sys.argv[1], "ab", buffering=0) as file:
    for _ in range(30_000):
        file.write(b'{"n": 100}\\n')
        time.sleep(0.001)
"""


def test_a_file_that_grows_while_it_is_read_has_the_same_lines(tmp_path, processes):
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(f'{{"n": {n}, "text": "{"x" * 1000}"}}\n' for n in range(20_000)), "utf-8")
    dataset = JsonDataset(str(path))
    size_bytes = path.stat().st_size
    with subprocess.Popen([sys.executable, "-c", APPENDING, str(path)]) as appending:
        try:
            while path.stat().st_size == size_bytes:
                time.sleep(0.01)
            for _ in range(5):
                rows = dataset.__getitems__([0, 10_000, len(dataset) - 1])
                assert [row["n"] for row in rows] == [0, 10_000, 19_999]
            assert pickle.loads(pickle.dumps(dataset))[7]["n"] == 7
        finally:
            appending.kill()
    with path.open("r+b") as file:
        file.seek(20)
        file.write(b"y")
    later(path)
    with pytest.raises(ShardCorruptError, match=r"lines\.jsonl.*the file has changed"):
        dataset[19_999]


def test_a_parquet_file_that_is_cut_while_it_is_mapped_is_an_error_and_does_not_end_the_process(tmp_path):
    path = tmp_path / "file.parquet"
    write_rows(path, "old")
    dataset = ParquetDataset(str(path))
    rows = begun(IterableParquetDataset(str(path), rows_at_once=2), 1)
    os.truncate(path, 10)
    for read in (lambda: dataset[0], lambda: list(rows)):
        with pytest.raises(ShardCorruptError, match=r"file\.parquet.*the file has changed"):
            read()


def test_lines_of_a_file_that_is_written_while_it_is_read_in_order_do_not_mix(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(f'"{"x" * 1000} old"\n' for _ in range(5000)), "utf-8")
    lines = begun(IterableJsonDataset(str(path)), 1)
    path.write_text("".join(f'"{"x" * 1000} new"\n' for _ in range(5000)), "utf-8")
    later(path)
    seen = []
    with pytest.raises(ShardCorruptError, match=r"lines\.jsonl.*the file has changed"):
        seen.extend(lines)
    assert all(line.endswith("old") for line in seen)


def loader_of(dataset):
    return DataLoader(MapDataset(dataset, str), batch_size=2)


def test_a_resume_refuses_a_file_that_has_changed_since_and_names_it(case):
    path, opened, write = case
    loader = loader_of(opened())
    begun(loader, 1)
    state = json.loads(json.dumps(loader.local_state_dict()))
    assert len(list(at_state(loader_of(opened()), state))) == NUM_SAMPLES // 2 - 1
    write(path, "new, and of another length" * 30)
    with pytest.raises(StateMismatchError, match=f"files.*the file has changed since the state was saved.*{path}"):
        loader_of(opened()).load_state_dict(state)


def test_a_state_without_files_and_one_at_the_start_of_an_epoch_load(tmp_path):
    path = tmp_path / "file"
    write_lines(path, "old")
    loader = loader_of(JsonDataset(str(path)))
    at_start = loader.local_state_dict()
    next(iter(loader))
    within = loader.local_state_dict()["place"][0]
    del within["files"]
    write_lines(path, "new")
    for state, num_left in ((at_start, NUM_SAMPLES // 2), (within, NUM_SAMPLES // 2 - 1)):
        assert len(list(at_state(loader_of(JsonDataset(str(path))), state))) == num_left


def test_a_state_of_many_files_stays_small(tmp_path):
    paths = [tmp_path / f"{number:04}.jsonl" for number in range(600)]
    for path in paths:
        path.write_text("1\n", "utf-8")
    names = [str(path) for path in paths]
    loader = DataLoader(JsonDataset(names), batch_size=2)
    next(iter(loader))
    state = loader.local_state_dict()["place"][0]
    assert len(state["files"]) <= 256
    paths[301].write_text("2\n", "utf-8")
    with pytest.raises(StateMismatchError, match=r"one from \S*0300\.jsonl to \S*0302\.jsonl"):
        DataLoader(JsonDataset(names), batch_size=2).load_state_dict(state)
