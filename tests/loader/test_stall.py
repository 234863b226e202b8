import logging

import pytest

from fkat_data.errors import WorkerStalledError
from fkat_data.loader.stall import StallWatch
from fkat_data.observe.statistics import Waiting
from fkat_data.plan.task import Task
from fkat_data.worker.inline import InlineWorker
from fkat_data.worker.produce import Producer

TASK = Task(4, 1, 2, "s2", 0)


@pytest.fixture
def worker():
    return InlineWorker(Producer(list, 0, 0, lambda name: None), Waiting())


def test_reports_come_at_growing_intervals_and_say_where(worker, caplog):
    watch = StallWatch(30.0, None)
    intervals_s = []
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            intervals_s.append(watch.patience_s)
            watch.report(worker, TASK, 7, 3)
    assert intervals_s == [30, 60, 120, 240]
    waits = [record.getMessage().splitlines()[0] for record in caplog.records]
    assert waits[1].startswith(
        "waiting for 90.0 s for microbatch 7 of shard 's2' (epoch 1, shard index 2), which worker"
    )
    assert "has not begun; 3 shards are in work, no microbatch is ready" in waits[1]


@pytest.mark.parametrize(("warning_s", "timeout_s", "reports"), [(30, 45, 1), (30, 30, 0), (30, 10, 0), (1, 7.5, 3)])
def test_the_wait_ends_in_an_error_at_the_timeout(worker, warning_s, timeout_s, reports):
    watch = StallWatch(warning_s, timeout_s)
    for _ in range(reports):
        watch.report(worker, TASK, 7, 1)
    with pytest.raises(WorkerStalledError, match=f"sent nothing for {timeout_s:.1f} s"):
        watch.report(worker, TASK, 7, 1)
