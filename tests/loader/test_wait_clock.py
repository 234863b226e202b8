import logging

import pytest

from fkat_data.errors import WorkerStalledError
from fkat_data.loader.recovery import WaitClock, activity_of
from fkat_data.observe.progress import Activity, WaitDisplay
from fkat_data.observe.sink import EventSink
from fkat_data.observe.stages import StageClock, new_page
from fkat_data.plan.task import Task
from fkat_data.worker.inline import InlineWorker
from fkat_data.worker.produce import Producer

TASK = Task(4, 1, 2, "a", 40)


class Recording(WaitDisplay):
    def __init__(self):
        super().__init__()
        self.shown = []

    def show(self, waited_s, doing):
        self.shown.append(waited_s)
        super().show(waited_s, doing)


class Unseen(WaitDisplay):
    def __init__(self):
        super().__init__()
        self.interval_s = float("inf")


def a_worker(clock=None):
    return InlineWorker(Producer(list, 0, 0, lambda *mark: None), EventSink(), clock)


@pytest.mark.parametrize(
    ("warning_s", "timeout_s", "shown_s", "reported_s"),
    [(30.0, None, [10, 30, 70, 150], [30, 90]), (4.0, None, [10, 30, 70, 150], [4, 12, 28, 60, 124])],
)
def test_a_wait_is_shown_and_reported_each_in_its_time(warning_s, timeout_s, shown_s, reported_s, caplog):
    display = Recording()
    clock, waited_s = WaitClock(warning_s, timeout_s, display), 0.0
    while waited_s < 150:
        waited_s += clock.interval_s
        clock.advance(a_worker(), TASK, 0, 1)
    assert display.shown == shown_s
    reports = [record.getMessage().split()[2] for record in caplog.records if record.levelname == "WARNING"]
    assert [float(seconds) for seconds in reports] == reported_s


def test_reports_come_at_growing_intervals_and_say_where(caplog):
    clock = WaitClock(30.0, None, Unseen())
    intervals_s = []
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            intervals_s.append(clock.interval_s)
            clock.advance(a_worker(), TASK, 7, 3)
    assert intervals_s == [30, 60, 120, 240]
    waits = [record.getMessage().splitlines()[0] for record in caplog.records]
    assert waits[1].startswith(
        "waiting for 90.0 s for microbatch 7 of shard 'a' (epoch 1, shard index 2), which worker"
    )
    assert "has not begun; tasks under way: 3, no microbatch is ready" in waits[1]


@pytest.mark.parametrize("display", [Unseen, Recording])
@pytest.mark.parametrize(
    ("warning_s", "timeout_s", "num_reports"),
    [(30, 45, 1), (30, 30, 0), (30, 10, 0), (1, 7.5, 3), (30, 25, 0), (0.1, 0.3, 1), (0.7, 12.1, 4)],
)
def test_the_wait_ends_in_an_error_at_the_timeout(warning_s, timeout_s, num_reports, display, caplog):
    clock, waited_s = WaitClock(warning_s, timeout_s, display()), 0.0
    while waited_s + clock.interval_s < timeout_s - 0.01:
        waited_s += clock.interval_s
        clock.advance(a_worker(), TASK, 7, 1)
    assert waited_s + clock.interval_s == pytest.approx(timeout_s)
    with pytest.raises(WorkerStalledError, match=f"sent nothing for {timeout_s:.1f} s"):
        clock.advance(a_worker(), TASK, 7, 1)
    assert sum(record.levelname == "WARNING" for record in caplog.records) == num_reports


class Begun(InlineWorker):
    def has_begun(self, ticket):
        return True


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("", Activity("opening shard 'a'")),
        ("build", Activity("opening shard 'a'")),
        ("store", Activity("waiting for stored bytes of shard 'a'")),
        ("replay", Activity("making again what was delivered before the resume, of shard 'a'", 7, 40)),
        ("produce", Activity("making microbatch 7 of shard 'a'")),
        ("blocked", Activity("waiting for shared memory or for the caller, in shard 'a'")),
    ],
)
def test_a_workers_activity_is_read_from_its_page(stage, expected):
    clock = StageClock(new_page())
    clock.mark(stage, 7)
    assert activity_of(Begun(Producer(list, 0, 0, clock.mark), EventSink(), clock), TASK) == expected


def test_a_worker_that_has_not_begun_differs_from_one_that_is_starting():
    assert activity_of(a_worker(), TASK) == Activity("the worker is starting")
    clock = StageClock(new_page())
    clock.mark("produce", 3)
    assert activity_of(a_worker(clock), TASK) == Activity("the worker has not begun shard 'a' yet")
