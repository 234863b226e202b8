"""The loader's plan for a subclass of ``StreamingDataset`` that overrides ``__iter__``: batches, and the resume point after each.

Each worker iterates the dataset, and their batches come in turn. ``StreamingDataset.__iter__`` counts the samples that it
delivers to the override. As long as the override yields one sample for each of them, a batch has an index in the order.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from fkat_data.errors import StaleIteratorError
from fkat_data.loaders.strand_plan import left_in_turns
from fkat_data.plan.position import Position, Task, TaskOrigin
from fkat_data.streaming.epoch.delivery_tracker import BatchEnd, DeliveryTracker
from fkat_data.streaming.epoch.shared_resume import ResumePoint
from fkat_data.streaming.loader_plan import StreamEpochs, collate_of_samples, step_of
from fkat_data.streaming.reader import StrandEpochs, StreamReader
from fkat_data.worker.epoch_factory import Snapshot, Strand
from fkat_data.worker.messages import WithPlanUpdate
from fkat_data.worker.microbatch_source import Opening, SequentialSource, ShardProduct

# Batches are made ahead, and frameworks ask for the position after a batch or two ago.
_MOST_KEPT = 8


class _BatchRecord(NamedTuple):
    """The facts about a batch that travel with it to the trainer.

    Attributes:
        num_samples: Samples in it.
        epoch: The newest epoch that the dataset has begun.
        end: The batch of the order that it is; None where ``__iter__`` does not yield one sample for each that
            ``StreamingDataset.__iter__`` delivered to it.
    """

    num_samples: int
    epoch: int
    end: BatchEnd | None


class UserIteratorBatches(ShardProduct):
    """Batches that a worker makes of what a user's own ``__iter__`` yields.

    If that yields exactly one sample for each that the dataset gave it, the batches are those of the dataset's order.
    Otherwise, each ``batch_size`` samples become one.

    Args:
        reader: Of the dataset.
        collate_fn: Makes a batch of samples.
        strand: The worker's part of the iteration, as ``UserIteratorPlan`` makes it.
    """

    def __init__(self, reader: StreamReader, collate_fn: Callable[[list[Any]], Any], strand: Strand) -> None:
        self._reader = reader
        self._collate_fn = collate_fn
        self._strand = strand
        snapshot = cast("Snapshot", strand.snapshot)
        self._first_step = snapshot.step
        self._point, self._drop_last = cast("tuple[ResumePoint, bool]", pickle.loads(snapshot.state))

    def microbatch_source(self, opening: Opening) -> SequentialSource:
        """Return the source. It begins with the first batch: what the user's code yields next follows only from what it did."""
        marked = partial(self._marked, collate_of_samples(self._reader, self._collate_fn, opening.collate))
        return SequentialSource(lambda _: (0, marked()), opening.rng, rng_index_of=self._rng_index_of)

    def _rng_index_of(self, index: int) -> int:
        """Return the index of a batch's random numbers: its number in the epoch, with any number of workers."""
        return self._first_step + index * max(1, self._strand.num_strands) + self._strand.number

    def __iter__(self) -> Iterator[Any]:
        """Yield every batch, without its mark."""
        return (marked.microbatch for marked in self._marked(collate_of_samples(self._reader, self._collate_fn)))

    def _marked(self, collate: Callable[[list[Any]], Any]) -> Iterator[WithPlanUpdate]:
        for samples, epoch, end in self._cut():
            yield WithPlanUpdate(collate(samples), pickle.dumps(tuple(_BatchRecord(len(samples), epoch, end))))

    def _cut(self) -> Iterator[tuple[list[Any], int, BatchEnd | None]]:
        state, batch_size = self._reader.state, self._reader.batch_size
        strand = StrandEpochs(state, self._point)
        samples: list[Any] = []
        epoch, delivery_tracker, num_yielded, is_in_step = self._point.epoch, None, 0, True
        state.delivery_tracker = None
        for sample in strand.samples(self._reader.dataset):
            if state.delivery_tracker is not delivery_tracker:
                is_in_step = is_in_step and not samples
                delivery_tracker, num_yielded = state.delivery_tracker, 0
                epoch = self._epoch_of(delivery_tracker, strand, epoch)
            samples.append(sample)
            num_yielded += 1
            is_in_step = is_in_step and delivery_tracker is not None and delivery_tracker.num_samples == num_yielded
            end = delivery_tracker.batch_end() if is_in_step and delivery_tracker is not None else None
            if end is None and len(samples) < batch_size:
                continue
            if not (self._drop_last and end is not None and end.is_short):
                yield samples, epoch, end
            samples = []
            is_in_step = end is not None
        if samples and not self._drop_last:
            yield samples, epoch, None

    def _epoch_of(self, delivery_tracker: DeliveryTracker | None, strand: StrandEpochs, epoch: int) -> int:
        """Return the epoch that the dataset has begun.

        Raises:
            StaleIteratorError: It is another one than this iteration's.
        """
        if delivery_tracker is None:
            return epoch
        if strand.next_point.epoch != delivery_tracker.beginning.epoch + 1:
            raise StaleIteratorError(
                f"another iterator of the dataset continues from epoch {delivery_tracker.beginning.epoch}, but this "
                f"one began at sample {self._point.sample_in_epoch} of epoch {self._point.epoch}: call "
                "super().__iter__() in the thread that iterates the dataset"
            )
        return delivery_tracker.beginning.epoch


class _Progress(NamedTuple):
    """The progress of the iteration after a batch.

    Attributes:
        num_samples: Samples so far.
        epoch: The newest epoch that the dataset had begun.
        end: The last batch of the order.
        is_in_step: Whether every batch so far is one of the order, in turn.
    """

    num_samples: int
    epoch: int
    end: BatchEnd | None = None
    is_in_step: bool = True

    def after(self, mark: _BatchRecord) -> "_Progress":
        """Return the progress after the next batch."""
        is_in_step = self.is_in_step and mark.end is not None and mark.end.follows(self.end)
        end = mark.end if is_in_step else self.end
        return _Progress(self.num_samples + mark.num_samples, max(self.epoch, mark.epoch), end, is_in_step)


class UserIteratorPlan(StreamEpochs):
    """The plan of epochs whose batches come from the user's ``__iter__``: each worker iterates it, and they take turns.

    Args:
        reader: As for ``StreamEpochs``, like the next three.
        dp_rank: The loader's.
        drop_last: Whether a short batch at an epoch's end is left out.
        leaves_empty_rest: Whether a loaded position with nothing behind it counts as the next epoch's begin.
        num_workers: Workers; 0: the dataset is iterated in this process, in none.
    """

    in_words = "a StreamingDataset with an __iter__ of its own"

    def __init__(self, reader: StreamReader, dp_rank: int, *, num_workers: int, **settings: bool) -> None:
        super().__init__(reader, dp_rank, **settings)
        self.num_strands: int | None = num_workers
        # By the number of batches before: the progress of what has arrived, of which the caller has the most.
        self._progress: dict[int, _Progress] = {}
        self._num_arrived = 0

    def payload(self, epoch: int, index: int) -> Strand:
        """Return a worker's part of the iteration."""
        state = pickle.dumps((self._begun, self._drop_last))
        return Strand(epoch, index, self.num_strands or 0, Snapshot(self._first_step, state))

    def origin(self, epoch: int, index: int) -> TaskOrigin:
        """Return what says where random streams come from: a batch has that of its number in the epoch."""
        return TaskOrigin(self._dp_rank, 0, 0)

    def interleaved(self, position: Position) -> Sequence[tuple[int, int]]:
        """Return the strands that have something left, and their first microbatches."""
        # What was made after that position has not reached the caller.
        self._num_arrived = position.microbatch
        self._progress = {count: kept for count, kept in self._progress.items() if count <= self._num_arrived}
        left = left_in_turns(max(1, self.num_strands or 0), self._num_arrived, position.ended)
        return sorted(left.items(), key=lambda item: item[1])

    def record(self, task: Task, num_made: int, update: bytes) -> None:
        """Record the progress after a batch."""
        self._progress[self._num_arrived + 1] = self._progress[self._num_arrived].after(
            _BatchRecord(*pickle.loads(update))
        )
        self._num_arrived += 1
        self._progress.pop(self._num_arrived - _MOST_KEPT, None)

    def epoch_and_step(self, position: Position) -> tuple[int, int]:
        """Return epoch and step of a position, as a state says them."""
        if self._point is None:
            return position.epoch, position.step
        if position.epoch != self._point.epoch:
            return self._epoch_at(position) + 1, 0
        progress = self._progress_at(position)
        if progress.end is None or progress.end.after.epoch == position.epoch:
            return position.epoch, position.step
        return progress.epoch, step_of(self._reader, progress.end.after)

    def _epoch_at(self, position: Position) -> int:
        """Return the newest epoch that the dataset had begun before a position."""
        return self._progress_at(position).epoch if self._left_epoch is None else self._left_epoch

    def _num_samples_before(self, position: Position) -> int:
        return self._progress_at(position).num_samples

    def _point_behind(self, position: Position) -> ResumePoint | None:
        progress = self._progress_at(position)
        if not progress.is_in_step:
            return None
        return self._begun if progress.end is None else progress.end.after

    def _go_to(self, point: ResumePoint) -> None:
        self._num_arrived, self._progress = 0, {0: _Progress(0, point.epoch)}
        super()._go_to(point)

    def _progress_at(self, position: Position) -> _Progress:
        is_over = position.epoch != self._begun.epoch
        return self._progress[self._num_arrived if is_over else position.microbatch]
