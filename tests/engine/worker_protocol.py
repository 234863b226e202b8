"""The contract of ``Worker``, with the commands that an engine gives one: for every kind of workers."""

import pytest
import torch
from torch.utils.data import DataLoader

from fkat_data.engine.settings import WorkerPoolSettings
from fkat_data.engine.worker_pool import WorkerPool
from fkat_data.observe.sink import EventSink
from fkat_data.plan.position import Task
from fkat_data.worker.messages import End, Failure, Item, WorkerGone
from fkat_data.worker.worker import PipedWorker, Worker, WorkerReport

COUNT = 7
#: An actor's start on a busy machine.
_SOON_S = 300.0


class Numbers:
    """Numbers, of which the last one is missing in a bad shard."""

    def __init__(self, shard):
        self.shard = shard

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        if self.shard == "bad" and index == COUNT - 1:
            raise ValueError("mine")
        return torch.tensor(index)


def factory(shard):
    return iter(range(COUNT)) if shard == "in order" else DataLoader(Numbers(shard), batch_size=None)


def task(task_id, shard="by index", first=0):
    return Task(task_id, 0, task_id, shard, first)


def received(worker, task_id):
    """The messages of a task, in order, up to its end; those of cancelled ones before it are left out."""
    found = []
    while not found or (isinstance(found[-1], Item) and not found[-1].is_last):
        message = worker.receive(timeout_s=_SOON_S)
        assert message is not None
        assert message.task_id <= task_id
        found += [message] if message.task_id == task_id else []
    return found


def indices(messages):
    return [message.microbatch_index for message in messages if isinstance(message, Item)]


def check_worker(kind):
    """Check a worker of a kind: None, as of the caller's thread, or one of ``WorkerKind``."""
    settings = WorkerPoolSettings(factory, 0, 0, 1, 1, None, None, kind, is_zero_copy=True, is_digested=False)
    pool = WorkerPool(settings, EventSink())
    try:
        pool.start()
        worker = pool.workers[0]
        _check_facts(worker, kind)
        _check_tasks(worker)
        _check_end(worker)
    finally:
        pool.close()


def _check_facts(worker, kind):
    missing = [name for name in vars(Worker) if not name.startswith("_") and not hasattr(worker, name)]
    assert not missing
    assert isinstance(worker, PipedWorker) == (kind == "processes")
    assert worker.pid > 0
    assert worker.is_alive
    assert not worker.is_waiting
    worker.end_wait()
    assert isinstance(worker.stack(), str)
    assert worker.works_ahead == (kind is not None)
    assert worker.report()._replace(times=None, started_s=0.0) == WorkerReport(None, 0)
    assert worker.receive(timeout_s=0) is None


def _check_tasks(worker):
    worker.assign(task(0), 2)
    first = [worker.receive(timeout_s=_SOON_S) for _ in range(2)]
    assert indices(first) == [0, 1]
    assert worker.has_begun(0)
    assert worker.fingerprint(0) is not None
    if worker.works_ahead:  # else each is made when it is asked for
        assert worker.receive(timeout_s=0.05) is None
    worker.allow(0, COUNT)
    assert indices(received(worker, 0)) == [*range(2, COUNT)]
    assert worker.report().num_received == COUNT
    assert worker.report().times.produced == COUNT
    assert worker.num_ready == 0
    assert worker.take_leftover_rows(0) is None

    worker.assign(task(1), COUNT)
    worker.assign(task(2, "in order", first=3), COUNT + 1)
    worker.cancel(2)
    in_order = received(worker, 2)
    assert indices(in_order) == [*range(3, COUNT)]
    assert isinstance(in_order[-1], End)

    worker.assign(task(3, "bad"), COUNT)
    worker.assign(task(4), COUNT)
    *_, failure = received(worker, 3)
    assert isinstance(failure, Failure)
    assert (type(failure.error), failure.microbatch_index) == (ValueError, COUNT - 1)
    assert indices(received(worker, 4)) == [*range(COUNT)]


def _check_end(worker):
    worker.assign(task(5), 2)  # with a limit, as it may make a whole task before it learns that its peer is gone
    worker.hang_up()
    if worker.works_ahead:
        with pytest.raises(WorkerGone):
            received(worker, 5)
    for timeout_s in (1.0, 0.0, 0.0):
        worker.close(timeout_s)
    worker.kill()
    assert worker.is_alive != worker.works_ahead
    assert worker.report().num_received >= 3 * COUNT
