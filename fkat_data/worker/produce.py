"""Production of one task: shard in, microbatches out. Knows no process, pipe or segment."""

import functools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from fkat_data.errors import ConfigurationError, ReplayMismatchError, StateMismatchError, WorkerError
from fkat_data.errors.sample_errors import early_end
from fkat_data.errors.wording import add_note, notes_of, shard_location, shard_name
from fkat_data.plan.position import ShardFingerprint, Task
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.seeding import ShardRng
from fkat_data.transport.digest import digest_of
from fkat_data.types import Shard
from fkat_data.worker.adoption import OwnIterationSource, ShardCount, count_microbatches, is_product, source_of
from fkat_data.worker.batches import draws_nothing
from fkat_data.worker.fetch import num_prefetched
from fkat_data.worker.fingerprints import check_fingerprint, fingerprint_of
from fkat_data.worker.messages import content_of
from fkat_data.worker.microbatch_source import (
    BulkSource,
    Collate,
    DrawSummary,
    MicrobatchSource,
    Opening,
    RandomAccessSource,
    SequentialSource,
)
from fkat_data.worker.windows import ShardWindows


class Produced(NamedTuple):
    """One microbatch of a task.

    Attributes:
        microbatch_index: Its index in the shard.
        microbatch: What the user's DataLoader yielded.
        is_last: Whether the shard ends with it; None where that shows only later.
    """

    microbatch_index: int
    microbatch: Any
    is_last: bool | None


class Producer(NamedTuple):
    """What every task of a worker has in common.

    Attributes:
        factory: Makes the iterable of a shard's microbatches.
        seed: The loader's seed.
        dp_rank: The loader's data-parallel rank.
        enter_stage: Called with one of ``fkat_data.observe.stages.STAGES`` when it begins, with "" when the last one ends.
        collate: Does what torch's ``default_collate`` does; used instead of it where that is possible.
        report: Called with a task's id, and what is known of its shard's batches and files, before it is made.
        take_leftover_rows: Returns what the task before has left for a task that was assigned without it; waits for it.
        give_leftover_rows: Called with a task's id, and what it has left for the task behind it.
        is_threaded: Whether threads make microbatches, which leave the global random generators alone.
    """

    factory: Callable[[Shard], Iterable[Any]]
    seed: int
    dp_rank: int
    enter_stage: Callable[..., None]
    collate: Collate | None = None
    report: Callable[[int, ShardFingerprint], None] | None = None
    take_leftover_rows: Callable[[Task], bytes] | None = None
    give_leftover_rows: Callable[[int, bytes], None] | None = None
    is_threaded: bool = False


class OpenShard:
    """A shard that a worker has opened: it makes the shard's microbatches, each under its own random stream.

    Args:
        task: The shard, and where in it to begin.
        producer: How it is made.
        is_shared: Whether other workers make microbatches of it, too.
        check: Called with the source, and the class of the product, before either is used; raises where it is not to be.

    Raises:
        Exception: Whatever the user's code raises, or ``check``.
        StateMismatchError: The shard was begun in other batches, or of a file that has changed since.
        WorkerError: The user's code raised StopIteration, which would look like the end of the shard.
    """

    def __init__(
        self,
        task: Task,
        producer: Producer,
        *,
        is_shared: bool = False,
        check: Callable[[MicrobatchSource, str], None] | None = None,
    ) -> None:
        self._task = task
        self._enter_stage = producer.enter_stage
        self._rng = _rng_of(task, producer)
        producer.enter_stage("build", task.task_index, repr(task.payload))
        if not draws_nothing(task.payload):
            self._rng.seed_opening()
        product = _made_by(producer.factory, task)
        if task.left_out:
            product = _without(product, task.left_out)
        self.kind: str = type(cast("object", product)).__qualname__
        """The name of the class of what the factory returned."""
        self._source = source = self._source_of(product, producer, is_shared=is_shared)
        self.is_random_access: bool = not isinstance(source, SequentialSource)
        """Whether it makes any microbatch without those before it."""
        self.prefetches: bool = self.is_random_access and self.indexed.prefetches
        """Whether microbatches can be begun to be read before they are made."""
        if check is not None:
            check(source, self.kind)
        fingerprint = fingerprint_of(product)
        if task.fingerprint is not None:
            check_fingerprint(task.fingerprint, fingerprint, product, task.first_microbatch)
        if fingerprint != ShardFingerprint() and producer.report is not None:
            producer.report(task.task_id, fingerprint)
        first = task.first_microbatch if task.lost_microbatch is None else task.lost_microbatch
        # The first, while what a dead worker has made before it is not compared; and where a sequential source has begun.
        self._first = first if task.digest is not None and first > 0 else None
        self._begun = 0
        if isinstance(source, SequentialSource):
            self._begun = self._iterate(source, first - (self._first is not None), producer)
            self._first = None
        # The first microbatch that was not begun to be read, and the items of the last that was.
        self._next_prefetch = self._num_items = 0
        # Microbatches whose indices were returned in a summary.
        self._num_summarized = 0

    @property
    def is_for_threads(self) -> bool:
        """Whether several threads may make its microbatches at once."""
        return self.is_random_access and not isinstance(self._source, BulkSource)

    def prefetch(self, index: int) -> None:
        """Begin to read a microbatch, once; an error is raised where it is made. Indices grow from call to call."""
        if index >= self._next_prefetch:
            self._next_prefetch = index + 1
            with suppress(Exception):
                self._num_items = self.indexed.prefetch(index) or self._num_items

    @property
    def num_prefetched(self) -> int:
        """Microbatches that are to be begun to be read while another one is made."""
        return num_prefetched(self._num_items)

    @property
    def indexed(self) -> RandomAccessSource:
        """The source of a shard with random access."""
        return cast("RandomAccessSource", self._source)

    def draw_summary(self, index: int, reach: int) -> DrawSummary | None:
        """Return what is drawn of the shard, up to ``reach`` microbatches behind this one; None if it was returned before."""
        if index + reach < self._num_summarized:
            return None
        found = self.indexed.draw_summary(index + 2 * reach)
        self._num_summarized = sys.maxsize if found.is_whole else found.num_known
        return found

    def make(self, index: int) -> Produced | None:
        """Return a microbatch, None if the shard has none there; indices grow, and follow on one another without random access.

        Raises:
            Exception: Whatever the user's code raises.
            ReplayMismatchError: A dead worker had made other data for the microbatch before the first.
        """
        if index == self._first:
            # What a dead worker made last is made again, to see that it is the same.
            self.check(index - 1, self._made(index - 1, "replay"))
        self._first = None
        return self._made(index, "produce")

    def produce(self) -> Generator[Produced]:
        """Yield the shard's microbatches from the task's first.

        Raises:
            Exception: Whatever the user's code raises, with notes that name shard and microbatch.
            ReplayMismatchError: A dead worker had made other data for the same microbatch.
            WorkerError: The user's code raised StopIteration, which would look like the end of the shard.
        """
        index = self._task.first_microbatch
        try:
            for produced in self._rest():
                index = produced.microbatch_index
                yield produced
                index += 1
        except Exception as error:
            note_microbatch(error, self._task, index, is_open=True)
            raise
        finally:
            self._enter_stage("")
            self._source.close()

    def _rest(self) -> Iterator[Produced]:
        index = self._task.first_microbatch
        if not self.is_random_access and not self._replay(index):
            return
        self._look_ahead(index)
        produced = self.make(index)
        while produced is not None:
            yield produced
            if produced.is_last:
                return
            index += 1
            self._look_ahead(index)
            produced = self._made(index, "produce")

    def _replay(self, first: int) -> bool:
        """Make what comes before a microbatch again; return whether the shard has it."""
        for index in range(self._begun, first):
            produced = self._made(index, "replay")
            if produced is None:
                return False
            if index == first - 1:
                self.check(index, produced)
        return True

    def _look_ahead(self, index: int) -> None:
        if self.prefetches:
            self.prefetch(index)
            for ahead in range(index + 1, index + 1 + self.num_prefetched):
                self.prefetch(ahead)

    def _source_of(self, product: Any, producer: Producer, *, is_shared: bool) -> MicrobatchSource:
        task, take, give = self._task, producer.take_leftover_rows, producer.give_leftover_rows
        opening = Opening(
            self._rng,
            producer.collate,
            is_shared,
            producer.is_threaded,
            take and (lambda: take(task) if task.leftover_rows is None else task.leftover_rows),
            give and functools.partial(give, task.task_id),
        )
        with _no_early_end():
            return source_of(product, opening)

    def _iterate(self, source: SequentialSource, first: int, producer: Producer) -> int:
        if producer.is_threaded and isinstance(source, OwnIterationSource):
            raise ConfigurationError(
                "workers",
                "threads",
                "'processes', for a DataLoader that is more than torch's own: with workers or pinned memory of its "
                "own, or of a class that overrides how it iterates",
            )
        with _no_early_end():
            return source.iterate(first)

    def _made(self, index: int, stage: str) -> Produced | None:
        self._enter_stage(stage, index)
        try:
            made = self._source.make(index)
        except genuine(StopIteration) as error:
            raise early_end("the dataset") from error
        # skips NamedTuple's Python `__new__`: twice as fast
        return None if made is None else tuple.__new__(Produced, (index, *made))

    def check(self, index: int, produced: Produced | None) -> None:
        """Compare a microbatch with what a dead worker has made for its index, if that is known.

        Raises:
            ReplayMismatchError: They differ.
        """
        task = self._task
        if task.digest is not None and (produced is None or task.digest != digest_of(content_of(produced.microbatch))):
            raise ReplayMismatchError(task.payload, task.epoch, index)


@contextmanager
def _no_early_end() -> Generator[None]:
    """Take no StopIteration of the user's code for the end of something else."""
    try:
        yield
    except genuine(StopIteration) as error:
        raise WorkerError("the factory's product raised StopIteration when its iteration began") from error


def produce(task: Task, producer: Producer) -> Generator[Produced]:
    """Open a shard and yield its microbatches, see ``OpenShard``; or a ``ShardCount`` alone, if the task asks for it."""
    try:
        opened = _counted(task, producer) if task.is_counted else OpenShard(task, producer)
    except Exception as error:
        producer.enter_stage("")
        note_microbatch(error, task, task.first_microbatch, is_open=False)
        raise
    if isinstance(opened, ShardCount):
        yield Produced(0, opened, is_last=True)
    else:
        yield from opened.produce()


def produce_together(task: Task, producer: Producer) -> tuple[int, Iterator[Any]]:
    """Open a shard whose microbatches no code of a user's makes, see ``batches.runs_no_user_code``.

    Returns:
        The number of its last microbatch, and the microbatches from the task's first on.

    Raises:
        Exception: What opening it raises, with a note that names the shard. The iterator raises what reading does.
    """
    try:
        producer.enter_stage("build", task.task_index, repr(task.payload))
        product = _made_by(producer.factory, task)
    except Exception as error:
        note_microbatch(error, task, task.first_microbatch, is_open=False)
        raise
    producer.enter_stage("produce", task.first_microbatch)
    source = cast("BulkSource", source_of(product, Opening(_rng_of(task, producer))))
    return source.count - 1, source.iterate(task.first_microbatch)


def _counted(task: Task, producer: Producer) -> ShardCount:
    producer.enter_stage("build", task.task_index, repr(task.payload))
    open_shard = functools.partial(_made_by, producer.factory, task)
    counted = count_microbatches(open_shard, _rng_of(task, producer))
    producer.enter_stage("")
    return counted


def _rng_of(task: Task, producer: Producer) -> ShardRng:
    dp_rank, shard_index = (producer.dp_rank, task.task_index) if task.origin is None else task.origin[:2]
    return ShardRng.of(producer.seed, dp_rank, task.epoch, shard_index)


class EpochAware(ABC):
    """A factory that asks for the epoch of the shards that it gets."""

    @abstractmethod
    def enter_epoch(self, epoch: int) -> None:
        """Note the epoch of the next shard."""

    @abstractmethod
    def for_threads(self) -> "EpochAware":
        """Return a factory for the threads of a worker."""

    @abstractmethod
    def __call__(self, shard: Shard) -> Any:
        """Return what makes the microbatches of a shard."""


def _made_by(factory: Callable[[Shard], Any], task: Task) -> Any:
    made_by: object = factory
    if isinstance(made_by, EpochAware):
        made_by.enter_epoch(task.epoch)
    try:
        product: Any = factory(task.payload)
    except genuine(StopIteration) as error:
        raise WorkerError("the factory raised StopIteration") from error
    if not is_product(product):
        raise ConfigurationError(
            "dataloader_factory", product, "something that returns an iterable of microbatches for a shard"
        )
    return cast("object", product)


def _without(product: Any, offsets: tuple[int, ...]) -> ShardWindows:
    """Return a product that leaves out these samples of its shard, as when the shard was begun."""
    if not isinstance(product, ShardWindows):
        hint = "finish the shard with a DataLoaderFactory(on_sample_error='skip'), as it was begun"
        raise StateMismatchError("left_out", list(offsets), "<none>", hint)
    return product.without(offsets)


def note_microbatch(error: BaseException, task: Task, index: int, *, is_open: bool) -> str:
    """Note on an exception, once, which shard and microbatch it concerns; return the note."""
    for note in notes_of(error):
        if note.startswith(_NOTE):
            return note
    where = f"at microbatch {index} of" if is_open else "while opening"
    note = f"{_NOTE} {where} {shard_name(task.payload)} {shard_location(task.payload, task.epoch, task.task_index)}"
    add_note(error, note)
    return note


_NOTE = "fkat_data:"
