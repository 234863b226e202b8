"""How many microbatches a rank's epoch has: counted when it is asked for, and each shard once."""

import logging
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from fkat_data.engine.recovery import NOT_THE_SHARDS, Recovery
from fkat_data.engine.settings import WorkerPoolSettings
from fkat_data.engine.shard_lengths import ShardLengths
from fkat_data.engine.worker_pool import WorkerPool
from fkat_data.errors import WorkerDiedError, arguments
from fkat_data.loaders.factory import DataLoaderFactory
from fkat_data.observe.sink import EventSink
from fkat_data.plan.position import Task, TaskOrigin
from fkat_data.plan.shard_plan import Plan
from fkat_data.types import Shard
from fkat_data.worker.adoption import ShardCount
from fkat_data.worker.messages import Failure, Item, WorkerGone
from fkat_data.worker.worker import Worker

logger: logging.Logger = logging.getLogger(__name__)

_NUM_WORKERS = 4
#: Shards that a worker has before it: it need not wait for the trainer.
_NUM_AHEAD = 2
_REPORT_S = 10.0
_ADVICE = (
    "give the dataset, or the sampler, a __len__; or pass shard_sizes= to the DataLoaderFactory; "
    "or pass a factory with num_microbatches(shard)"
)


class _EpochShard(NamedTuple):
    shard_index: int
    shard: Shard
    origin: TaskOrigin | None


class EpochLength:
    """Counts the microbatches of epochs.

    A ``DataLoaderFactory`` counts what it can without opening a shard. The rest is opened by the factory in worker
    processes that end when all is counted, each shard under its own random stream: if nothing is drawn meanwhile, its
    number holds for all epochs, otherwise for this shard in this epoch.

    Args:
        plan: Says which shards an epoch has.
        settings: The loader's workers; those that count are made like them.
        lengths: What was found of shards that were read. It counts where the factory cannot say, and where it was wrong.
        recovery: Says how long a worker may take for a shard, and whether a shard that raises is skipped: it then has
            no microbatches.
    """

    def __init__(self, plan: Plan, settings: WorkerPoolSettings, lengths: ShardLengths, recovery: Recovery) -> None:
        self._plan = plan
        self._settings = settings
        self._factory = settings.factory
        self._lengths_of_shards = lengths
        self._delivered: Mapping[str, int] = lengths.found
        self._recovery = recovery
        self._counted: Mapping[str, int] = lengths.stated
        # Of one epoch: by the shard whose random stream has decided.
        self._drawn: dict[tuple[int, TaskOrigin | None, int], int] = {}
        self._reason = ""
        self._lengths: dict[int, int] = {}

    def of(self, epoch: int) -> int:
        """Return the microbatches of an epoch that this rank has from its ``first_step`` on.

        Raises:
            TypeError: It is not known; the message says what to pass.
            Exception: Whatever opening a shard raises.
        """
        num_shards = self._plan.num_tasks(epoch)
        if num_shards is None:
            raise TypeError("the number of microbatches is not known: the sampler does not say how many shards it has")
        entries = [self._entry(epoch, index) for index in range(num_shards)]
        numbers = self._numbers(epoch, entries)
        delivered_before = sum(entry.origin.first_microbatch for entry in entries if entry.origin is not None)
        self._lengths[epoch] = self._plan.first_step(epoch) + sum(numbers) - delivered_before
        return self._lengths[epoch]

    def check_end(self, epoch: int, step: int) -> None:
        """Warn if a loop leaves an epoch early, at the length of another one: its caller reads the length only once."""
        length = self._lengths.get(epoch, 0)
        for other, other_length in self._lengths.items():
            if other != epoch and other_length == step < length:
                logger.warning(
                    "epoch %d was left after %d microbatches, the length of epoch %d, but it has %d: read len(loader) "
                    "in each epoch (Lightning: Trainer(reload_dataloaders_every_n_epochs=1))",
                    epoch,
                    step,
                    other,
                    length,
                )
                return

    def _entry(self, epoch: int, index: int) -> _EpochShard:
        shard = self._plan.payload(epoch, index)
        assert shard is not None  # noqa: S101 - the epoch has that many
        return _EpochShard(index, shard, self._plan.origin(epoch, index))

    def _numbers(self, epoch: int, entries: Sequence[_EpochShard]) -> list[int]:
        count = getattr(self._factory, "num_microbatches", None)
        if callable(count):
            return [
                arguments.integer("num_microbatches(shard)", count(entry.shard), minimum=0)
                if (known := self._delivered.get(repr(entry.shard))) is None
                else known
                for entry in entries
            ]
        if isinstance(self._factory, DataLoaderFactory) and not self._reason:
            self._count(epoch, entries)
        if isinstance(self._factory, DataLoaderFactory) and not self._reason:
            return [self._known(epoch, entry) for entry in entries]
        return [self._number_delivered(entry) for entry in entries]

    def _known(self, epoch: int, entry: _EpochShard) -> int:
        known = self._drawn.get(_key(epoch, entry))
        return self._counted[repr(entry.shard)] if known is None else known

    def _number_delivered(self, entry: _EpochShard) -> int:
        known = self._delivered.get(repr(entry.shard))
        if known is None:
            reason = self._reason or "the factory does not say"
            raise TypeError(
                f"the number of microbatches is not known before shard {entry.shard!r} was read to its end: {reason}; "
                f"{_ADVICE}"
            )
        return known

    def _count(self, epoch: int, entries: Sequence[_EpochShard]) -> None:
        """Count what is not known of an epoch; or find the reason why that cannot be done."""
        if any(key[0] != epoch for key in self._drawn):
            self._drawn.clear()
        missing = [
            entry
            for entry in entries
            if repr(entry.shard) not in self._counted and _key(epoch, entry) not in self._drawn
        ]
        by_name = {repr(entry.shard): entry.shard for entry in missing}
        lengths = self._factory.lengths_without_opening(list(by_name.values()))
        for name, length in zip(by_name, lengths, strict=True):
            if length is not None:
                self._lengths_of_shards.state(name, length)
        to_open = [entry for entry in missing if repr(entry.shard) not in self._counted]
        if not to_open:
            return
        with closing(self._opened(epoch, to_open)) as opened:
            for entry, found in opened:
                if found.num_microbatches is None:
                    self._reason = found.reason
                    return
                if found.is_drawn:
                    self._drawn[_key(epoch, entry)] = found.num_microbatches
                else:
                    self._lengths_of_shards.state(repr(entry.shard), found.num_microbatches)

    def _opened(self, epoch: int, entries: Sequence[_EpochShard]) -> Generator[tuple[_EpochShard, ShardCount]]:
        """Yield the numbers of shards, as workers open them, in order."""
        num_workers = min(len(entries), max(self._settings.num_workers, _NUM_WORKERS))
        # Opening a shard seeds and watches the global generators: threads leave that to the caller's thread.
        settings = self._settings._replace(
            kind=self._settings.kind if self._settings.kind == "processes" else None,
            num_groups=num_workers,
            group_size=1,
            limit_bytes=None,
            profiler=None,
            is_zero_copy=False,
            is_digested=False,
            timeline=None,
        )
        pool = WorkerPool(settings, EventSink(None, None))
        reported_s = time.monotonic()
        try:
            pool.start()
            workers = [pool.workers[index % len(pool.workers)] for index in range(len(entries))]
            tasks = [_task(number, epoch, entry) for number, entry in enumerate(entries)]
            num_assigned = 0
            for number, entry in enumerate(entries):
                while num_assigned < min(len(entries), number + _NUM_AHEAD * len(pool.workers)):
                    workers[num_assigned].assign(tasks[num_assigned], 1)
                    num_assigned += 1
                counted = self._counted_by(workers[number], tasks[number], num_assigned - number)
                if time.monotonic() - reported_s > _REPORT_S:
                    reported_s = time.monotonic()
                    logger.info("%d of %d shards are counted", number + 1, len(entries))
                yield entry, counted
        finally:
            pool.close()

    def _counted_by(self, worker: Worker, task: Task, num_in_work: int) -> ShardCount:
        """Wait for what a worker counts, as for a microbatch: with reports, and no longer than ``stall_timeout_s``."""
        clock = self._recovery.wait_clock()
        try:
            while True:
                message = worker.receive(timeout_s=clock.interval_s)
                if isinstance(message, Item):
                    return message.microbatch
                if isinstance(message, Failure):
                    return self._empty(task.payload, message.error)
                if message is None:
                    clock.advance(worker, task, 0, num_in_work)
        except WorkerGone as gone:
            raise WorkerDiedError(
                gone.pid, gone.exit_code, task.payload, task.epoch, 0, gone.last_words, socket.gethostname()
            ) from None
        finally:
            clock.end()

    def _empty(self, shard: Shard, error: BaseException) -> ShardCount:
        if not self._recovery.skips_shards or isinstance(error, NOT_THE_SHARDS):
            raise error
        logger.warning("shard %r cannot be opened and counts as empty: %s", shard, error)
        return ShardCount(0, is_drawn=True, reason="")


def source_of_lengths(factory: object) -> str:
    """Return what says the lengths of a factory's shards, in words."""
    given = isinstance(factory, DataLoaderFactory) and factory.shard_sizes is not None
    return "shard_sizes" if given else "the length of what the factory makes"


def _key(epoch: int, entry: _EpochShard) -> tuple[int, TaskOrigin | None, int]:
    return epoch, entry.origin, entry.shard_index


def _task(task_id: int, epoch: int, entry: _EpochShard) -> Task:
    return Task(task_id, epoch, entry.shard_index, entry.shard, 0, entry.origin, is_counted=True)
