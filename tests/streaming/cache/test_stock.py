import errno
import os
from types import SimpleNamespace

import pytest
from cache_examples import cache_in, get, is_exact, is_shard, recorded_and_counted, shards_in

from fkat_data.streaming.cache import ledger, stock
from fkat_data.streaming.cache.cache_budget import CacheBudget
from fkat_data.streaming.cache.cache_directory import CacheDirectory


@pytest.fixture
def num_counts(monkeypatch):
    """Note each time that all files of a directory are counted."""
    counts = []
    files = CacheDirectory.files

    def counted(self):
        counts.append(self)
        return files(self)

    monkeypatch.setattr(CacheDirectory, "files", counted)
    return counts


def test_files_are_not_counted_for_each_file_that_is_made_even_if_each_evicts_one(tmp_path, num_counts):
    for number in range(50):
        get(cache_in(tmp_path), f"old{number}.mds", 10)
    for number in range(100):
        # As in a process of its own.
        get(cache_in(tmp_path, 500), f"new{number}.mds", 10)
    # Once as nothing is recorded, once to list the 50 that are there, and once to list those that were made since.
    assert len(num_counts) <= 4
    assert recorded_and_counted(tmp_path) == (500, 500)
    assert shards_in(tmp_path) == sorted(f"new{number}.mds" for number in range(50, 100))


def test_what_was_used_since_it_was_listed_stays(tmp_path):
    for number in range(6):
        get(cache_in(tmp_path), f"{number}.mds", 10)
    get(cache_in(tmp_path, 60), "6.mds", 10)  # lists 0 to 5
    cache_in(tmp_path).touch("1.mds")
    get(cache_in(tmp_path, 60), "7.mds", 10)
    assert shards_in(tmp_path) == ["1.mds", "3.mds", "4.mds", "5.mds", "6.mds", "7.mds"]


@pytest.mark.parametrize(
    "damage", [b"", b"garbage", b"1 2 none.mds\0" * 9, b"0 0 ../../outside.mds\0", os.urandom(300)]
)
def test_whatever_the_list_says_no_wrong_file_goes(tmp_path, damage):
    outside, directory = tmp_path / "outside.mds", tmp_path / "x" / "cache"
    outside.write_bytes(b"mine")
    for number in range(6):
        get(cache_in(directory), f"{number}.mds", 10)
    get(cache_in(directory, 60), "6.mds", 10)
    (directory / ".fkat_data" / "coldest").write_bytes(damage)
    for number in range(7, 12):
        get(cache_in(directory, 60), f"{number}.mds", 10)
        assert recorded_and_counted(directory) == (60, 60)
    assert shards_in(directory)[-3:] == ["7.mds", "8.mds", "9.mds"]
    assert outside.read_bytes() == b"mine"


def test_files_that_no_cache_made_are_found_after_a_while(tmp_path, monkeypatch):
    cache = cache_in(tmp_path, 100)
    get(cache, "a.mds", 10)
    (tmp_path / "foreign.mds").write_bytes(b"x" * 80)
    get(cache, "b.mds", 20)
    assert shards_in(tmp_path) == ["a.mds", "b.mds", "foreign.mds"]
    now_ns = ledger.time.monotonic_ns() + ledger._LONGEST_NS
    monkeypatch.setattr(ledger.time, "monotonic_ns", lambda: now_ns)
    get(cache, "c.mds", 20)
    assert shards_in(tmp_path) == ["a.mds", "b.mds", "c.mds"]


def test_after_a_restart_of_the_machine_nothing_recorded_is_believed(tmp_path, monkeypatch):
    get(cache_in(tmp_path, 100), "a.mds", 10)
    monkeypatch.setattr(ledger, "boot_id", lambda: 1)
    assert recorded_and_counted(tmp_path) == (None, 10)
    assert is_exact(tmp_path)
    assert recorded_and_counted(tmp_path) == (10, 10)


@pytest.mark.parametrize("call", ["pwrite", "write"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_takes_no_record_has_the_files_counted(tmp_path, monkeypatch, call, number):
    def fails(*_):
        raise OSError(number, "injected")

    module = ledger if call == "pwrite" else stock
    for name in ("a.mds", "b.mds", "c.mds"):
        get(cache_in(tmp_path, 30), name, 10)
    with monkeypatch.context() as patched:
        # Not in all of the process: uses are written with the same function.
        patched.setattr(module, "os", SimpleNamespace(**vars(os) | {call: fails}))
        for name in ("d.mds", "e.mds"):
            get(cache_in(tmp_path, 30), name, 10)
        assert is_exact(tmp_path)
    assert shards_in(tmp_path) == ["c.mds", "d.mds", "e.mds"]
    get(cache_in(tmp_path, 30), "f.mds", 10)
    assert recorded_and_counted(tmp_path) == (30, 30)


def test_a_cache_below_another_is_counted_once(tmp_path):
    outer, inner = cache_in(tmp_path), cache_in(tmp_path / "inner")
    get(outer, "a.mds", 10)
    get(inner, "b.mds", 20)
    assert CacheBudget([tmp_path], None, is_shard).usage_bytes == 10
    assert CacheBudget([tmp_path, tmp_path / "inner"], None, is_shard).usage_bytes == 30
