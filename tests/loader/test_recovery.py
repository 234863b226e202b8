import logging

import pytest

from fkat_data.errors import ConfigurationError, MemoryLimitError, ReplayMismatchError, WorkerDiedError
from fkat_data.loader.prefetch import Prefetcher
from fkat_data.loader.recovery import Recovery, Remedy, Restarts, ShardSkips
from fkat_data.loader.shard_lengths import ShardLengths
from fkat_data.loader.worker_group import WorkerGroup
from fkat_data.observe.sink import EventSink
from fkat_data.plan.place import START
from fkat_data.plan.shard_plan import shard_plan
from fkat_data.plan.task import Task
from fkat_data.worker.messages import WorkerGone
from fkat_data.worker.picks import Picks

GO_ON, GIVE_UP_SHARD, GIVE_UP = Remedy.GO_ON, Remedy.GIVE_UP_SHARD, Remedy.GIVE_UP


def task(epoch=0, index=0):
    return Task(index, epoch, index, f"s{index}", 0)


@pytest.mark.parametrize(
    ("most", "deaths", "remedies"),
    [
        (0, [(0, 0, 3, True)], [GIVE_UP]),
        (1, [(0, 0, 3, True), (0, 1, 3, True)], [GO_ON, GIVE_UP]),
        (5, [(0, 0, 3, True), (0, 0, 3, True)], [GO_ON, GIVE_UP_SHARD]),
        (5, [(0, 0, 3, True), (0, 0, 4, True), (0, 1, 4, True)], [GO_ON, GO_ON, GO_ON]),
        # A worker that dies before it begins the shard says nothing about the shard.
        (3, [(0, 0, 3, False)] * 4, [GO_ON, GO_ON, GO_ON, GIVE_UP]),
        (3, [(0, 0, 3, True), (0, 0, 3, False), (0, 0, 3, True)], [GO_ON, GO_ON, GIVE_UP_SHARD]),
        # Each epoch has its own account.
        (1, [(0, 0, 3, True), (1, 0, 3, True), (1, 0, 4, True)], [GO_ON, GO_ON, GIVE_UP]),
    ],
)
def test_a_worker_is_replaced_unless_it_is_in_vain(most, deaths, remedies):
    restarts = Restarts(most)
    found = [restarts.remedy(task(epoch, shard), index, has_begun=begun) for epoch, shard, index, begun in deaths]
    assert found == remedies
    assert restarts.total == sum(remedy is not GIVE_UP for remedy in remedies)


def test_failing_shards_are_skipped_counted_and_logged(caplog):
    skips = ShardSkips(2, skips=True)
    with caplog.at_level(logging.WARNING):
        assert skips.may_skip(task(0, 3), ValueError("bad row"), is_whole_epoch_lost=False)
    assert "shard 's3' (epoch 0, shard index 3), skip 1 of at most 2 in this epoch: ValueError: bad row" in caplog.text
    assert skips.may_skip(task(0, 5), OSError("gone"), is_whole_epoch_lost=False)
    assert skips.shards(0) == (3, 5)
    error = ValueError("one more")
    assert not skips.may_skip(task(0, 6), error, is_whole_epoch_lost=False)
    assert error.__notes__ == ["fkat_data: not skipped: 2 shards of this epoch already were (max_skipped_shards)"]
    assert skips.may_skip(task(1, 0), ValueError("the next epoch"), is_whole_epoch_lost=False)
    assert (skips.shards(0), skips.shards(1), skips.total) == ((), (0,), 3)


@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError("x", 1, "2"),
        MemoryLimitError(1, 2, 0, "too large"),
        MemoryError(),
        ReplayMismatchError("a", 0, 1),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_not_the_shards_fault_is_not_skipped(error):
    assert not ShardSkips(9, skips=True).may_skip(task(), error, is_whole_epoch_lost=False)


def test_nothing_is_skipped_by_default_and_no_epoch_is_lost_in_silence():
    assert not ShardSkips(9, skips=False).may_skip(task(), ValueError(), is_whole_epoch_lost=False)
    error = ValueError()
    assert not ShardSkips(9, skips=True).may_skip(task(), error, is_whole_epoch_lost=True)
    assert error.__notes__ == ["fkat_data: not skipped: no shard of this epoch gave a microbatch"]


class DeadWorker:
    """A worker whose process ends before it begins a task."""

    pid = 1
    is_alive = is_waiting = False

    def has_begun(self, ticket):
        return False

    def assign(self, task, allowance): ...

    def allow(self, ticket, allowance): ...

    def cancel(self, ticket): ...

    def receive(self, *, timeout_s):
        raise WorkerGone(self.pid, -9, "")


def test_any_number_of_workers_may_die_one_after_the_other():
    group = WorkerGroup([DeadWorker()], 0, 1, Picks, EventSink())
    recovery = Recovery(5000, False, 10, 30.0, None)
    prefetcher = Prefetcher(
        shard_plan(["a"]), [group], lambda group: None, lambda: None, recovery, 0, 2, ShardLengths("nothing")
    )
    prefetcher.start(START)
    raised = prefetcher.take(block=True)
    assert isinstance(raised.error, WorkerDiedError)
    assert prefetcher.restarts.total == 5000
