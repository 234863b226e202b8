import pytest

from fkat_data.streaming.store import pace
from fkat_data.streaming.store.pace import PART_BYTES, Pace, SlowError


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now_s = 100.0

        def monotonic(self):
            return self.now_s

    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    return clock


def receive(clock, pace, num_bytes, seconds):
    limit_s = pace.ask()
    clock.now_s += min(seconds, limit_s)
    if seconds > limit_s:
        raise pace.late()
    pace.answered(num_bytes)


def test_an_attempt_has_its_time_and_no_more(clock):
    pace = Pace(10.0)
    receive(clock, pace, 1 << 20, 6)
    with pytest.raises(SlowError, match="1,048,576 bytes within 10 s"):
        receive(clock, pace, 1 << 20, 6)


def test_each_further_part_has_as_much(clock):
    pace = Pace(60.0)
    for _ in range(10):
        receive(clock, pace, PART_BYTES // 2, 20)
        receive(clock, pace, PART_BYTES // 2, 20)
    assert clock.now_s == 100 + 400


def test_silence_ends_it_earlier(clock):
    pace = Pace(600.0)
    receive(clock, pace, 5, 1)
    started_s = clock.now_s
    with pytest.raises(SlowError, match="no byte for 30 s, after 5 bytes"):
        receive(clock, pace, 1, 1000)
    assert clock.now_s - started_s == 30


def test_a_trickle_ends_within_35_seconds(clock):
    pace = Pace(600.0)
    started_s = clock.now_s
    for _ in range(29):
        receive(clock, pace, 1, 1)
    with pytest.raises(SlowError, match="only 30 bytes in 30 s"):
        receive(clock, pace, 1, 1)
    assert clock.now_s - started_s <= 35


def test_a_slow_but_steady_stream_goes_on(clock):
    pace = Pace(600.0)
    for _ in range(300):
        receive(clock, pace, 70_000, 1)


def test_time_that_is_spent_elsewhere_does_not_count(clock):
    pace = Pace(10.0)
    for _ in range(5):
        receive(clock, pace, 1 << 20, 1)
        clock.now_s += 1000
