import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from walks import wait_until

from fkat_data.streaming.reading.read_ahead import ReadAhead


def shards_of(part):
    return part, len(part)


def test_a_shard_in_work_is_waited_for_and_made_once():
    begun, may_end, made = threading.Event(), threading.Event(), []

    def prepare(shard, wait):
        begun.set()
        may_end.wait(30)
        made.append(shard)
        return shard

    ahead = ReadAhead(prepare, 2)
    ahead.want([5])
    begun.wait(30)
    threading.Timer(0.1, may_end.set).start()
    assert ahead.take(5) == 5
    assert made == [5]


def test_no_more_are_in_work_than_there_are_threads():
    lock, running, most = threading.Lock(), [0], [0]

    def prepare(shard, wait):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.01)
        with lock:
            running[0] -= 1
        return shard

    ahead = ReadAhead(prepare, 3)
    ahead.want(range(20))
    assert [ahead.take(shard) for shard in range(20)] == list(range(20))
    assert 1 < most[0] <= 4  # who asks may make one as well


def test_a_failure_is_raised_where_its_shard_is_asked_for_and_then_it_is_tried_again():
    attempts = []

    def prepare(shard, wait):
        attempts.append((shard, wait))
        if shard == 1 and len([one for one, _ in attempts if one == 1]) < 3:
            raise OSError(f"cannot have shard {shard}")
        return shard

    ahead = ReadAhead(prepare, 1)
    ahead.want([0, 1, 2])
    ahead.want([1])  # has failed or is about to: nothing is repeated behind anybody's back
    wait_until(lambda: (2, False) in attempts)
    assert ahead.take(0) == 0
    with pytest.raises(OSError, match="cannot have shard 1"):
        ahead.take(1)
    with pytest.raises(OSError, match="cannot have shard 1"):
        ahead.take(1)
    assert ahead.take(1) == 1
    assert ahead.take(2) == 2
    assert [one for one, _ in attempts].count(1) == 3


def test_a_shard_that_another_process_is_at_is_put_behind_the_others():
    order, is_free = [], threading.Event()

    def prepare(shard, wait):
        if shard == 0 and not is_free.is_set():
            if not wait:
                return None
            is_free.wait(30)
        order.append(shard)
        return shard

    ahead = ReadAhead(prepare, 1)
    ahead.want([0, 1, 2])
    wait_until(lambda: order == [1, 2])
    is_free.set()
    wait_until(lambda: order == [1, 2, 0])
    assert [ahead.take(shard) for shard in (0, 1, 2)] == [0, 1, 2]


def test_waiting_for_other_processes_costs_little():
    calls = []

    def prepare(shard, wait):
        calls.append(shard)

    ahead = ReadAhead(prepare, 4)
    ahead.want(range(3))
    time.sleep(0.5)
    ahead.close()
    assert len(calls) < 3 * 4 * 0.5 / 0.02 * 2


def test_nothing_shares_the_way_with_what_is_needed_first():
    begun, may_end = [], threading.Event()

    def prepare(shard, wait):
        begun.append(shard)
        if shard < 2:
            may_end.wait(30)
        return shard

    ahead = ReadAhead(prepare, 8)
    parts = ahead.iterate([[0, 1], [2], [3]], shards_of, 10)
    assert next(parts) == [0, 1]
    wait_until(lambda: sorted(begun) == [0, 1])
    time.sleep(0.1)
    assert sorted(begun) == [0, 1]
    may_end.set()
    wait_until(lambda: sorted(begun) == [0, 1, 2, 3])
    assert [ahead.take(shard) for shard in (0, 1)] == [0, 1]
    assert list(parts) == [[2], [3]]
    ahead.close()


def test_parts_are_yielded_when_enough_of_those_that_follow_is_wanted():
    wanted, planned = [], []

    class Recorded(ReadAhead):
        def want(self, shards, *, is_first=False):
            wanted.extend(shards)

    def parts():
        for part in ([0, 1], [2, 3, 4], [5], [6], [7, 8]):
            planned.append(part)
            yield part

    ahead = Recorded(lambda shard, wait: shard, 1)
    got = ahead.iterate(parts(), shards_of, 3)
    assert next(got) == [0, 1]
    assert wanted == [0, 1, 2, 3, 4]
    assert next(got) == [2, 3, 4]
    assert wanted == list(range(9))
    assert list(got) == [[5], [6], [7, 8]]


@settings(max_examples=60)
@given(
    parts=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), max_size=12),
    num_ahead=st.integers(0, 12),
    num_threads=st.integers(0, 3),
    data=st.data(),
)
def test_every_part_comes_once_with_its_shards_whatever_fails_or_is_busy(parts, num_ahead, num_threads, data):
    failing = data.draw(st.sets(st.integers(0, 9)))
    busy = data.draw(st.dictionaries(st.integers(0, 9), st.integers(1, 3)))
    lock = threading.Lock()

    def prepare(shard, wait):
        with lock:
            if not wait and busy.get(shard, 0):
                busy[shard] -= 1
                return None
        if shard in failing:
            raise OSError(f"shard {shard}")
        return f"shard {shard}"

    ahead = ReadAhead(prepare, num_threads)
    got = []
    for part in ahead.iterate(parts, shards_of, num_ahead):
        got.append(part)
        for shard in part:
            if shard in failing:
                with pytest.raises(OSError, match=f"shard {shard}"):
                    ahead.take(shard)
            else:
                assert ahead.take(shard) == f"shard {shard}"
    ahead.close()
    assert got == parts


def test_after_close_nothing_is_begun_and_threads_end():
    before = threading.active_count()
    may_end, made = threading.Event(), []

    def prepare(shard, wait):
        made.append(shard)
        may_end.wait(30)
        return shard

    ahead = ReadAhead(prepare, 2)
    ahead.want(range(10))
    wait_until(lambda: len(made) == 2)
    assert ahead.close() == []
    may_end.set()
    wait_until(lambda: threading.active_count() <= before)
    assert sorted(made) == [0, 1]
    ahead.want([11])
    assert sorted(made) == [0, 1]


def test_what_was_not_taken_is_given_back_at_the_end():
    made = []
    ahead = ReadAhead(lambda shard, wait: made.append(shard) or shard, 1)
    ahead.want([1, 2, 3])
    wait_until(lambda: made == [1, 2, 3])  # the last one may not be ready yet
    assert ahead.close()[:2] == [1, 2]
