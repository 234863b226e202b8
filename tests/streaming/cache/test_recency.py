import os
import pickle
import struct
import time

import pytest

from fkat_data.streaming.cache import recency
from fkat_data.streaming.cache.recency import Recency


@pytest.fixture
def path(tmp_path):
    return tmp_path / "recency"


def order(table, names):
    """The names that were used, from the first to the last use."""
    uses = table.last_uses()
    return sorted((name for name in names if table.key_of(name) in uses), key=lambda name: uses[table.key_of(name)])


def test_files_are_in_the_order_of_their_last_use_for_all_who_look(path):
    table, other = Recency(path), Recency(path)
    names = [f"shard.{number:05}.mds" for number in range(300)]
    for name in names:
        table.touch(name)
    for name in names[:5]:
        other.touch(name)
    table.forget(names[7])
    table.forget("never.mds")
    expected = [*names[5:7], *names[8:], *names[:5]]
    assert order(table, names) == order(other, names) == order(Recency(path), names) == expected


def test_the_wall_clock_and_the_times_of_files_have_no_part_in_it(path, monkeypatch):
    table = Recency(path)
    table.touch("a")
    os.utime(path, ns=(0, 4 * 10**18))
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    table.touch("b")
    assert order(table, ["a", "b"]) == ["a", "b"]


def test_what_was_used_before_the_machine_started_again_is_older(path, monkeypatch):
    clock = [5_000_000]
    monkeypatch.setattr(recency.time, "monotonic_ns", lambda: clock[0])
    table = Recency(path)
    table.touch("before")
    clock[0] = 10
    monkeypatch.setattr(recency, "boot_id", lambda: 1)
    fresh = Recency(path)
    fresh.touch("after")
    assert order(fresh, ["before", "after"]) == ["before", "after"]
    assert fresh.last_uses()[fresh.key_of("after")] == 10
    assert fresh.last_uses()[fresh.key_of("before")] < 0


def test_a_table_that_is_full_forgets_what_was_used_longest_ago(path, monkeypatch):
    monkeypatch.setattr(recency, "_NUM_ENTRIES", recency._WINDOW + 1)  # all names share one window
    table = Recency(path)
    names = [str(number) for number in range(40)]
    for name in names:
        table.touch(name)
    assert order(table, names) == names[-recency._WINDOW :]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        os.urandom(5000),
        b"\xff" * 100_000,
        struct.pack("<QQQQ", recency._MAGIC, 1, 1 << 63, 0) + b"\xff" * 64,
        struct.pack("<QQQQ", recency._MAGIC, 1, 5, 0) + b"\xff" * 63,
    ],
    ids=range(6),
)
def test_whatever_is_in_the_file_it_works_again(path, content):
    path.write_bytes(content)
    table = Recency(path)
    for name in ("a", "b"):
        table.touch(name)
    assert order(table, ["a", "b"]) == ["a", "b"]
    assert order(Recency(path), ["a", "b"]) == ["a", "b"]


def test_a_file_that_was_removed_is_made_again(path):
    table = Recency(path)
    table.touch("a")
    path.unlink()
    table.touch("b")
    assert order(Recency(path), ["a", "b"]) == ["b"]


def test_it_pickles_and_where_nothing_can_be_written_it_does_nothing(path):
    table = Recency(path)
    table.touch("a")
    copy = pickle.loads(pickle.dumps(table))
    copy.touch("b")
    assert order(table, ["a", "b"]) == ["a", "b"]
    nowhere = Recency(path / "below" / "a file")
    nowhere.touch("a")
    nowhere.forget("a")
    assert nowhere.last_uses() == {}
