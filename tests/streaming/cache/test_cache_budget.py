import errno
import os
import time

import pytest
from cache_examples import cache_in, get, is_exact, is_shard, recorded_bytes, shards_in

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.cache import Cache, CacheBudget


def test_files_that_no_cache_made_count_and_stay_and_unused_shards_go_first(tmp_path):
    (tmp_path / "notes.txt").write_bytes(b"x" * 100)
    (tmp_path / "old.mds").write_bytes(b"x" * 50)
    (tmp_path / "older.mds").write_bytes(b"x" * 50)
    os.utime(tmp_path / "older.mds", ns=(0, 10**18))
    budget = CacheBudget([tmp_path], 300, is_shard)
    assert budget.usage_bytes == 200
    cache = Cache(tmp_path, budget)
    get(cache, "a.mds", 150)
    assert shards_in(tmp_path) == ["a.mds", "notes.txt", "old.mds"]
    assert budget.evict(1) == 50
    assert budget.evict(1) == 150
    assert budget.evict(1) == 0
    assert shards_in(tmp_path) == ["notes.txt"]


def test_a_limit_that_one_file_does_not_fit_under_is_an_error_that_says_what_would_do(tmp_path):
    (tmp_path / "notes.txt").write_bytes(b"x" * 100)
    cache = cache_in(tmp_path, 300)
    with pytest.raises(ConfigurationError, match=r"limit_bytes = 300: expected at least 310"):
        get(cache, "a.mds", 210)
    get(cache, "a.mds", 200)
    assert CacheBudget([tmp_path], None, None).evict(1) == 0
    no_eviction = Cache(tmp_path, CacheBudget([tmp_path], 300))
    with pytest.raises(ConfigurationError, match="at least 301"):
        get(no_eviction, "b.mds", 1)


def test_directories_share_one_limit_and_one_order_of_use(tmp_path):
    parts = [tmp_path / name for name in ("a", "b", "a/inside")]
    asked = set()

    def is_evictable(directory, name):
        asked.add((directory, name))
        return name != "keep.mds"

    budget = CacheBudget(parts, 400, is_evictable)
    caches = [Cache(part, budget) for part in parts]
    get(caches[0], "keep.mds", 100)
    for cache, name in [(caches[1], "1.mds"), (caches[2], "2.mds"), (caches[0], "3.mds")]:
        get(cache, name, 100)
    assert budget.usage_bytes == 400
    get(caches[1], "1.mds", 100)
    get(caches[1], "4.mds", 100)
    assert shards_in(tmp_path / "a" / "inside") == []
    assert (parts[2], "2.mds") in asked
    assert (parts[0], "inside/2.mds") not in asked
    get(caches[2], "5.mds", 100)
    assert sorted(path.name for path in tmp_path.rglob("*.mds")) == ["1.mds", "4.mds", "5.mds", "keep.mds"]


def test_files_that_are_being_made_count_at_their_full_size_and_are_left_alone(tmp_path):
    budget = CacheBudget([tmp_path], 1000, is_shard)
    cache, other = Cache(tmp_path, budget), cache_in(tmp_path, 1000)
    get(cache, "old.mds", 300)
    seen = []

    def fill(file):
        seen.append(budget.usage_bytes)
        get(other, "small.mds", 200)  # what is being made leaves this much, once the old one is gone
        seen.append(budget.usage_bytes)
        get(other, "large.mds", 500)  # comes on top, as two are being made
        seen.append(budget.usage_bytes)
        file.write(b"x" * 800)

    assert cache.get("a.mds", 800, fill).stat().st_size == 800
    assert seen == [800, 1000, 1300]
    get(cache, "b.mds", 200)
    assert shards_in(tmp_path) == ["a.mds", "b.mds"]


def test_files_are_not_counted_for_each_file_that_is_made_even_if_each_evicts_one(tmp_path, monkeypatch):
    cache, looks, scandir = cache_in(tmp_path, 500), [], os.scandir
    for number in range(50):
        get(cache, f"old{number}.mds", 10)
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", lambda path: looks.append(str(path)) or scandir(path))
        for number in range(100):
            get(cache, f"new{number}.mds", 10)
    # Once to list the 50 that are there, and once to list those that were made since.
    assert looks.count(str(tmp_path)) <= 2
    assert recorded_bytes(tmp_path) == 500
    assert shards_in(tmp_path) == sorted(f"new{number}.mds" for number in range(50, 100))


def test_files_that_no_cache_made_are_found_after_a_while(tmp_path, monkeypatch):
    cache = cache_in(tmp_path, 100)
    get(cache, "a.mds", 10)
    (tmp_path / "foreign.mds").write_bytes(b"x" * 80)
    get(cache, "b.mds", 20)
    assert shards_in(tmp_path) == ["a.mds", "b.mds", "foreign.mds"]
    ten_minutes_later_ns = time.monotonic_ns() + 601 * 10**9
    monkeypatch.setattr(time, "monotonic_ns", lambda: ten_minutes_later_ns)
    get(cache, "c.mds", 20)
    assert shards_in(tmp_path) == ["a.mds", "b.mds", "c.mds"]


@pytest.mark.parametrize("name", ["budget", "recency"])
@pytest.mark.parametrize("content", [None, b"", b"short", os.urandom(5000), b"\xff" * 100_000], ids=range(5))
def test_whatever_is_in_the_records_the_limit_holds_and_no_other_file_goes(tmp_path, name, content):
    (tmp_path / "mine.txt").write_bytes(b"x" * 10)
    cache = cache_in(tmp_path, 60)
    for number in range(6):
        get(cache, f"{number}.mds", 10)
    path = tmp_path / ".fkat_data" / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    fresh = cache_in(tmp_path, 60)
    for number in range(6, 12):
        get(fresh, f"{number}.mds", 10)
        assert recorded_bytes(tmp_path) == 60
    assert shards_in(tmp_path) == ["10.mds", "11.mds", "7.mds", "8.mds", "9.mds", "mine.txt"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_takes_no_record_has_the_files_counted(tmp_path, monkeypatch, number):
    cache = cache_in(tmp_path, 30)
    for name in ("a.mds", "b.mds", "c.mds"):
        get(cache, name, 10)

    def fails(*_):
        raise OSError(number, "injected")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", fails)
        for name in ("d.mds", "e.mds"):
            get(cache, name, 10)
        assert is_exact(tmp_path)
    assert len(shards_in(tmp_path)) == 3
    get(cache, "f.mds", 10)
    assert len(shards_in(tmp_path)) == 3
    assert recorded_bytes(tmp_path) == 30


def test_a_cache_below_another_is_counted_once(tmp_path):
    outer, inner = cache_in(tmp_path), cache_in(tmp_path / "inner")
    get(outer, "a.mds", 10)
    get(inner, "b.mds", 20)
    assert CacheBudget([tmp_path], None, is_shard).usage_bytes == 10
    assert CacheBudget([tmp_path, tmp_path / "inner"], None, is_shard).usage_bytes == 30
