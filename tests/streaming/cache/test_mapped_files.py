import gc
import os
import pickle
import time

import pytest
from cache_examples import cache_in, content, get, is_exact, map_from, shards_in
from directory_machine import DirectoryMachine
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from fkat_data.errors import ShardNotFoundError
from fkat_data.streaming.cache import register_map_owner


@pytest.fixture
def at_once(monkeypatch):
    """The seconds for which a cache waits for other processes pass quickly."""
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: 1000 * monotonic())


def is_mapped(cache, name):
    with cache.mapped_files.claimed((cache.directory / name).stat().st_ino) as is_claimed:
        return not is_claimed


def test_a_file_counts_as_mapped_until_the_last_view_of_its_last_map_is_gone(tmp_path):
    cache, other = cache_in(tmp_path), cache_in(tmp_path)
    get(cache, "a.mds", 100)
    first, second, third = (map_from(which, "a.mds", 100) for which in (cache, cache, other))
    assert is_mapped(other, "a.mds")
    del first, third
    view = second[10:20]
    del second
    assert is_mapped(cache, "a.mds")
    assert bytes(view) == content("a.mds", 100)[10:20]
    del view
    assert not is_mapped(cache, "a.mds")


class Owner:
    def __init__(self, *maps):
        self.maps = list(maps)

    def give_back(self):
        self.maps.clear()


def test_what_this_process_keeps_mapped_without_need_is_unmapped_before_a_hotter_file_goes(tmp_path):
    cache = cache_in(tmp_path, 200)
    get(cache, "a.mds", 100)
    get(cache, "b.mds", 100)
    owner = Owner(map_from(cache, "a.mds", 100))
    register_map_owner(owner)
    get(cache, "c.mds", 100)
    assert shards_in(tmp_path) == ["b.mds", "c.mds"]
    assert owner.maps == []


def test_where_all_files_stay_mapped_a_file_is_made_all_the_same_and_the_log_says_by_how_much_it_exceeds(
    tmp_path, at_once, caplog
):
    cache = cache_in(tmp_path, 200)
    kept = []
    for name in ("a.mds", "b.mds", "c.mds", "d.mds"):
        get(cache, name, 100)
        kept.append(map_from(cache, name, 100))
    assert [record.getMessage().split(": ")[0] for record in caplog.records] == [
        f"the cache in {tmp_path} exceeds its limit of 200 bytes by {excess}" for excess in (100, 200)
    ]
    kept.clear()
    get(cache, "e.mds", 100)
    assert shards_in(tmp_path) == ["d.mds", "e.mds"]


def test_a_file_that_is_evicted_while_it_is_opened_is_not_found(tmp_path):
    cache = cache_in(tmp_path)
    get(cache, "a.mds", 100)
    with cache.mapped_files.claimed((tmp_path / "a.mds").stat().st_ino) as is_claimed:
        assert is_claimed
        with pytest.raises(ShardNotFoundError):
            map_from(cache, "a.mds", 100)
    with (tmp_path / "a.mds").open("rb") as file:
        found = os.fstat(file.fileno())
        cache.remove("a.mds")
        with pytest.raises(FileNotFoundError):
            cache.mapped_files.enter(tmp_path / "a.mds", found)


def test_a_register_that_was_removed_is_made_again(tmp_path):
    cache = cache_in(tmp_path)
    get(cache, "a.mds", 100)
    before = map_from(cache, "a.mds", 100)
    (tmp_path / ".fkat_data" / "mapped").unlink()
    assert not is_mapped(cache, "a.mds")
    after = map_from(cache, "a.mds", 100)
    del before
    assert is_mapped(cache, "a.mds")
    assert is_mapped(pickle.loads(pickle.dumps(cache)), "a.mds")
    del after


PROGRAM = """
import os, sys
from pathlib import Path
from cache_examples import cache_in, get, map_from
cache = cache_in(Path(sys.argv[1]))
get(cache, "a.mds", 100)
kept = map_from(cache, "a.mds", 100)
print("mapped", flush=True)
sys.stdin.readline()
"""


def test_what_another_process_has_mapped_stays_until_that_process_is_killed(start, tmp_path):
    directory = tmp_path / "cache"
    other = start(PROGRAM, directory)
    assert other.stdout.readline() == "mapped\n"
    cache = cache_in(directory, 200)
    for name in ("b.mds", "c.mds"):
        get(cache, name, 100)
    assert shards_in(directory) == ["a.mds", "c.mds"]
    other.kill()
    other.wait()
    get(cache, "d.mds", 100)
    assert shards_in(directory) == ["c.mds", "d.mds"]


SIZES = {f"s{number}.mds": 100 + 37 * number for number in range(8)} | {"x/s8.mds": 80, "x/y/s9.mds": 1}


class LimitMachine(DirectoryMachine):
    """Random uses of three caches of one directory, some of whose users keep files mapped."""

    def __init__(self):
        super().__init__(3)
        self.maps = []
        self.patch = pytest.MonkeyPatch()
        monotonic = time.monotonic
        self.patch.setattr(time, "monotonic", lambda: 100_000 * monotonic())

    @initialize(limit=st.integers(max(SIZES.values()), 1500))
    def begin(self, limit):
        self.limit = limit
        self.limit_to(limit)

    def mapped_bytes(self):
        return sum(SIZES[name] for name in {name for _, name in self.maps})

    @rule(name=st.sampled_from(sorted(SIZES)), which=st.integers(0, 2), is_kept=st.booleans())
    def get(self, name, which, is_kept):
        is_there = (self.directory / name).exists()
        get(self.caches[which], name, SIZES[name])
        total_bytes = sum(SIZES[other] for other in shards_in(self.directory))
        before_bytes = total_bytes if is_there else self.mapped_bytes() + SIZES[name]
        # What is mapped cannot go; all else does.
        assert total_bytes <= max(self.limit, before_bytes)
        if is_kept:
            self.maps.append((map_from(self.caches[which], name, SIZES[name]), name))

    @precondition(lambda self: self.maps)
    @rule(data=st.data())
    def unmap(self, data):
        del self.maps[data.draw(st.integers(0, len(self.maps) - 1))]

    @rule(which=st.integers(0, 2))
    def evict(self, which):
        self.budgets[which].evict(1)

    @rule(name=st.sampled_from(sorted(SIZES)), which=st.integers(0, 2))
    def remove(self, name, which):
        if all(other != name for _, other in self.maps):
            self.caches[which].remove(name)

    @rule(place=st.integers(0, 12))
    def die_while_the_ledger_is_written(self, place):
        """The record says "unknown" then, or what it said before is cut or garbage."""
        path = self.directory / ".fkat_data" / "budget"
        content = path.read_bytes() if path.exists() else b""
        path.write_bytes(content[: 8 * place] + bytes(8 * (place % 2)) + content[8 * place + 8 :])

    @invariant()
    def the_ledger_is_exact_and_what_is_mapped_is_there(self):
        assert is_exact(self.directory)
        for view, name in self.maps:
            assert (self.directory / name).exists()
            assert bytes(view) == content(name, SIZES[name])

    def teardown(self):
        self.patch.undo()
        self.maps.clear()
        gc.collect()
        super().teardown()


TestLimitMachine = pytest.mark.long(LimitMachine.TestCase)
TestLimitMachine.settings = settings(max_examples=30, stateful_step_count=30, suppress_health_check=list(HealthCheck))
