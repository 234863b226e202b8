"""The loader's plan for a subclass of ``StreamingDataset`` that overrides ``__iter__``: batches, and the resume point after each.

Each worker iterates the dataset, and their batches come in turn. ``StreamingDataset.__iter__`` counts the samples that it
delivers to the override. As long as the override yields one sample for each of them, a batch has an index in the order.
"""

import pickle
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

from fkat_data.errors import StaleIteratorError
from fkat_data.loaders.strand_plan import left_in_turns
from fkat_data.plan.position import Position, Task, TaskOrigin
from fkat_data.streaming.epoch.rank_batches import RankBatches
from fkat_data.streaming.epoch.shared_resume import ResumePoint
from fkat_data.streaming.loader_plan import StreamEpochs, collate_of_samples, step_of
from fkat_data.worker.epoch_factory import Snapshot, Strand
from fkat_data.worker.messages import WithPlanUpdate
from fkat_data.worker.microbatch_source import Opening, SequentialSource, ShardProduct

# Batches are made ahead, and frameworks ask for the position after a batch or two ago.
_MOST_KEPT = 8


class BatchEnd(NamedTuple):
    """The end of a batch of the order.

    Attributes:
        ordinal: The batch's number among those that this rank reads.
        is_short: Whether the batch is the short one at the end of an epoch.
        after: Where an iteration that follows the batch resumes.
        num_parts: Workers that share the rank's batches.
    """

    ordinal: int
    is_short: bool
    after: ResumePoint
    num_parts: int

    def follows(self, other: "BatchEnd | None") -> bool:
        """Return whether this batch is the next one after another, or the first one after None."""
        if other is None or self.after.epoch == other.after.epoch:
            return self.ordinal == (0 if other is None else other.ordinal + 1)
        # Workers that share an epoch begin the next one at different times.
        return self.num_parts == 1 and self.ordinal == 0 and self.after.epoch == other.after.epoch + 1


class DeliveryTracker:
    """A count of the samples that one iteration of ``StreamingDataset`` has delivered, and the batches that they complete.

    Args:
        batches: The rank's batches.
        part: Index of this worker's part of them.
        num_parts: Number of parts.

    Attributes:
        beginning: Where the iteration began.
        num_samples: The number of samples delivered.
    """

    def __init__(self, batches: RankBatches, part: int, num_parts: int) -> None:
        self.beginning: ResumePoint = batches.point
        self.num_samples = 0
        # Weakly: the plan of an epoch, which may be large, lives as long as the iteration does.
        self._batches = weakref.ref(batches)
        self._next_ordinal = part
        self._num_parts = num_parts
        self._num_planned = 0
        self._ends: deque[tuple[int, int, int]] = deque()

    def plan(self, indices: Sequence[int], sizes: Sequence[int]) -> None:
        """Add batches that will be delivered: their indices in the plan, and their sizes."""
        for index, size in zip(indices, sizes, strict=True):
            self._num_planned += size
            self._ends.append((self._num_planned, self._next_ordinal, index))
            self._next_ordinal += self._num_parts

    def batch_end(self) -> BatchEnd | None:
        """Return the batch that ends with the last sample; None if that sample is in the middle of a batch."""
        while self._ends and self._ends[0][0] < self.num_samples:
            self._ends.popleft()
        batches = self._batches()
        if batches is None or not self._ends or self._ends[0][0] > self.num_samples:
            return None
        _, ordinal, index = self._ends[0]
        after = replace(batches.point, sample_in_epoch=batches.sample_in_epoch_after(index))
        return BatchEnd(ordinal, batches.is_short(index), after, self._num_parts)


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


class TrackedDataset(Protocol):
    """A dataset that counts the samples that its own ``__iter__`` delivers.

    Attributes:
        delivery_tracker: The count of the iteration that was begun last.
        next_of_strand: Where the next epoch of a loader's strand begins; None: none goes through the dataset now.
    """

    delivery_tracker: DeliveryTracker | None
    next_of_strand: ResumePoint | None

    @property
    def batch_size(self) -> int | None:
        """Samples a batch."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Yield samples."""
        ...


class UserIteratorBatches(ShardProduct):
    """The batches of a worker that iterates a dataset with the user's ``__iter__``.

    One sample for each that was delivered gives the batches of the order. Anything else is cut by the batch size alone.

    Args:
        dataset: The dataset.
        collate_fn: Makes a batch of samples.
        strand: The part of the iteration, as ``UserIteratorPlan`` makes it.
    """

    def __init__(self, dataset: TrackedDataset, collate_fn: Callable[[list[Any]], Any], strand: Strand) -> None:
        self._dataset = dataset
        self._collate_fn = collate_fn
        self._strand = strand
        snapshot = cast("Snapshot", strand.snapshot)
        self._first_step = snapshot.step
        self._point, self._drop_last = cast("tuple[ResumePoint, bool]", pickle.loads(snapshot.state))

    def microbatch_source(self, opening: Opening) -> SequentialSource:
        """Return the source, which begins with the first batch: only the user's code knows the rest."""
        marked = partial(self._marked, collate_of_samples(self._dataset, self._collate_fn, opening.collate))
        return SequentialSource(lambda _: (0, marked()), opening.rng, rng_index_of=self._rng_index_of)

    def _rng_index_of(self, index: int) -> int:
        """Return the index of a batch's random numbers: its number in the epoch, with any number of workers."""
        return self._first_step + index * max(1, self._strand.num_strands) + self._strand.number

    def __iter__(self) -> Iterator[Any]:
        """Yield every batch, without its mark."""
        return (marked.microbatch for marked in self._marked(collate_of_samples(self._dataset, self._collate_fn)))

    def _marked(self, collate: Callable[[list[Any]], Any]) -> Iterator[WithPlanUpdate]:
        for samples, epoch, end in self._cut():
            yield WithPlanUpdate(collate(samples), pickle.dumps(tuple(_BatchRecord(len(samples), epoch, end))))

    def _cut(self) -> Iterator[tuple[list[Any], int, BatchEnd | None]]:
        dataset, batch_size = self._dataset, cast("int", self._dataset.batch_size)
        samples: list[Any] = []
        epoch, delivery_tracker, num_yielded, is_in_step = self._point.epoch, None, 0, True
        dataset.delivery_tracker, dataset.next_of_strand = None, self._point
        try:
            for sample in dataset:
                if dataset.delivery_tracker is not delivery_tracker:
                    is_in_step = is_in_step and not samples
                    delivery_tracker, num_yielded = dataset.delivery_tracker, 0
                    epoch = self._epoch_of(delivery_tracker, epoch)
                samples.append(sample)
                num_yielded += 1
                is_in_step = is_in_step and delivery_tracker is not None and delivery_tracker.num_samples == num_yielded
                end = delivery_tracker.batch_end() if is_in_step and delivery_tracker is not None else None
                if end is None and len(samples) < batch_size:
                    continue
                if not (self._drop_last and end is not None and end.is_short):
                    # In the caller's own thread, others may iterate the dataset meanwhile.
                    next_of_strand, dataset.next_of_strand = dataset.next_of_strand, None
                    yield samples, epoch, end
                    dataset.next_of_strand = next_of_strand
                samples = []
                is_in_step = end is not None
        finally:
            dataset.next_of_strand = None
        if samples and not self._drop_last:
            yield samples, epoch, None

    def _epoch_of(self, delivery_tracker: DeliveryTracker | None, epoch: int) -> int:
        """Return the epoch that the dataset has begun.

        Raises:
            StaleIteratorError: It is another one than this iteration's.
        """
        if delivery_tracker is None:
            return epoch
        following = self._dataset.next_of_strand
        if following is None or following.epoch != delivery_tracker.beginning.epoch + 1:
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
        dataset: As for ``StreamEpochs``, like the next three.
        dp_rank: The loader's.
        drop_last: Whether a short batch at an epoch's end is left out.
        leaves_empty_rest: Whether a loaded position with nothing behind it counts as the next epoch's begin.
        num_workers: Workers; 0: the dataset is iterated in this process, in none.
    """

    def __init__(self, dataset: TrackedDataset, dp_rank: int, *, num_workers: int, **settings: bool) -> None:
        super().__init__(dataset, dp_rank, **settings)
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
        del epoch, index
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
        del task, num_made
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
        return progress.epoch, step_of(self._dataset, progress.end.after)

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
