import pytest

from fkat_data.errors import WorkerStalledError
from fkat_data.loader.patience import Patience, doing
from fkat_data.loader.stall import StallWatch
from fkat_data.observe.progress import Activity, WaitDisplay
from fkat_data.observe.stages import StageClock, new_page
from fkat_data.observe.statistics import Waiting
from fkat_data.plan.task import Task
from fkat_data.worker.inline import InlineWorker
from fkat_data.worker.produce import Producer

TASK = Task(0, 0, 0, "a", 40)


class Recording(WaitDisplay):
    def __init__(self):
        super().__init__()
        self.shown = []

    def show(self, waited_s, doing):
        self.shown.append(waited_s)
        super().show(waited_s, doing)


def a_worker(clock=None):
    return InlineWorker(Producer(list, 0, 0, lambda *mark: None), Waiting(), clock)


@pytest.mark.parametrize(
    ("warning_s", "timeout_s", "shown_s", "reported_s"),
    [(30.0, None, [10, 30, 70, 150], [30, 90]), (4.0, None, [10, 30, 70, 150], [4, 12, 28, 60, 124])],
)
def test_a_wait_is_shown_and_reported_each_in_its_time(warning_s, timeout_s, shown_s, reported_s, caplog):
    display = Recording()
    patience, waited_s = Patience(StallWatch(warning_s, timeout_s), display), 0.0
    while waited_s < 150:
        waited_s += patience.interval_s
        patience.report(a_worker(), TASK, 0, 1)
    assert display.shown == shown_s
    told = [record.getMessage().split()[2] for record in caplog.records if record.levelname == "WARNING"]
    assert [float(seconds) for seconds in told] == reported_s


def test_the_wait_ends_in_an_error_at_the_timeout():
    patience = Patience(StallWatch(30.0, 25.0), Recording())
    for interval_s in (10, 15):
        assert patience.interval_s == interval_s
        if interval_s == 10:
            patience.report(a_worker(), TASK, 0, 1)
    with pytest.raises(WorkerStalledError, match=r"25\.0 s"):
        patience.report(a_worker(), TASK, 0, 1)


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
        ("blocked", Activity("waiting for room, in shard 'a'")),
    ],
)
def test_what_is_waited_for_is_told_from_the_workers_page(stage, expected):
    clock = StageClock(new_page())
    clock.mark(stage, 7)
    assert doing(Begun(Producer(list, 0, 0, clock.mark), Waiting(), clock), TASK) == expected


def test_a_worker_that_has_not_begun_is_told_from_one_that_is_not_there_yet():
    assert doing(a_worker(), TASK) == Activity("the worker is being started")
    clock = StageClock(new_page())
    clock.mark("produce", 3)
    assert doing(a_worker(clock), TASK) == Activity("the worker has not begun shard 'a' yet")
