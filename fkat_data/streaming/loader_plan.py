"""The plan of a stream's epochs for a loader: ranges of batches, or windows, as the numbers of their samples.

The order is planned in the trainer's process; workers receive the numbers of the samples to read, and keep no position.
"""

import logging
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, cast

import numpy as np
from torch.utils import data

from fkat_data.errors import ConfigurationError
from fkat_data.errors.sample_errors import collated
from fkat_data.loaders.loader_plan import LoaderPlan, NumberedBatches, Provenance
from fkat_data.loaders.loader_state import LoaderState
from fkat_data.loaders.window_plan import WindowOrder
from fkat_data.loaders.window_states import Spread
from fkat_data.plan.position import Exclusion, Position, Reshard, ResumeState, Task, TaskOrigin
from fkat_data.runtime.interruption import genuine
from fkat_data.streaming.epoch.rank_batches import (
    BatchGroup,
    PickedSamples,
    RankBatches,
    SampleSkips,
    ids_of,
    in_groups,
)
from fkat_data.streaming.epoch.shared_resume import ResumePoint
from fkat_data.streaming.reader import StreamReader
from fkat_data.streaming.reading.catalog import COMMON_COLUMNS
from fkat_data.streaming.reading.open_shards import writable_array
from fkat_data.streaming.reading.pinned_commits import check_saved, saved_commits
from fkat_data.worker.fetch import call_collate
from fkat_data.worker.microbatch_source import BulkSource, Opening, ShardProduct
from fkat_data.worker.windows import Window

_logger = logging.getLogger(__name__)

_RANGE_SIZE = 32
_FIRST_TOGETHER = 4
_MOST_KEPT = 8
#: Enough samples to make the visit of a shard worthwhile, and few enough bytes to spare memory: twice as many are slower
#: where samples have some KiB.
_READ_TOGETHER = 1024
_READ_TOGETHER_BYTES = 4 << 20


class BatchRange(NumberedBatches):
    """Batches that follow on one another in an epoch.

    Args:
        first: The number of the first, among the global batches of the epoch.
        batches: The samples of each.
        num_together: How many of them to read together at first.
        runs_no_user_code: Whether no code of a user's makes them.
    """

    def __init__(self, first: int, batches: list[PickedSamples], num_together: int, *, runs_no_user_code: bool) -> None:
        super().__init__(first, batches)
        self.num_together = num_together
        self.runs_no_user_code = runs_no_user_code


class StreamEpochs(LoaderPlan):
    """The plan of this rank's part of a stream's epochs.

    A ``ResumePoint`` of the dataset says where its next iteration begins: an epoch, and how many samples of it were read.
    ``begin`` alone reads it.

    Args:
        reader: Of the ``StreamingDataset``.
        dp_rank: The loader's.
        drop_last: Whether a short batch at an epoch's end is left out.
        leaves_empty_rest: Whether a loaded position at an epoch's end counts as the start of the next epoch.
    """

    def __init__(self, reader: StreamReader, dp_rank: int, *, drop_last: bool, leaves_empty_rest: bool) -> None:
        self._reader = reader
        self._dp_rank = dp_rank
        self._drop_last = drop_last
        self._leaves_empty_rest = leaves_empty_rest
        self._point: ResumePoint | None = None
        # The dataset's resume point after this iteration had begun: another one then was set by the user.
        self._next_point = ResumePoint()
        self._batches: RankBatches | None = None
        self._first_step = 0
        # The epoch that was left; None: the iteration that has begun was not.
        self._left_epoch: int | None = None

    def first(self) -> Position:
        """Return the position of a loader that was not iterated: where its first iteration begins."""
        point = self._loaded_point()
        return Position(point.epoch, 0, 0, step_of(self._reader, point))

    def next_start(self, position: Position) -> ResumePoint:
        """Return the resume point of an iteration that begins now: that of the present one, if nothing of it was delivered.

        Args:
            position: The loader's.
        """
        following: ResumePoint = self._reader.next_point()
        if self._point is None or following != self._next_point:  # somebody has said where
            return self._loaded_point()
        if self._left_epoch is None and (position.epoch, position.step) == (self._point.epoch, self._first_step):
            return self._point
        return replace(following, epoch=self._epoch_at(position) + 1)

    def upcoming_epoch(self, position: Position) -> int | None:
        """Return the epoch of an iteration that begins now."""
        return self.next_start(position).epoch

    def begin(self, position: Position) -> ResumeState:
        """Begin an iteration where ``next_start`` says; return where the engine goes.

        Args:
            position: Where the iteration before was left.
        """
        if self.beginning is not None:  # an interrupted call has begun it
            self._reader.begin_at(self.beginning)
        self.beginning = self.next_start(position)
        self._reader.begin_at(self.beginning)
        self._go_to(self._reader.begin_epoch())
        return ResumeState(Position(self._begun.epoch, 0, 0, self._first_step))

    def leave(self, position: Position) -> None:
        """Leave the epoch: a state says from here on that the next one begins."""
        self._left_epoch = self._epoch_at(position)

    def saved(self, position: Position) -> dict[str, Any]:
        """Return what a state says of a position: the dataset's own state; None: no state can say it."""
        point = self._point_at(position)
        return {"stream": None if point is None else self._reader.state_at(point)}

    def copied_dataset(self, position: Position) -> Any:
        """Return the dataset for a copy of the loader, which begins at the start of the epoch under way."""
        if self._point is None or self._reader.next_point() != self._next_point:
            return self._reader.dataset
        epoch, _ = self.epoch_and_step(position)
        return self._reader.dataset_at(replace(self._next_point, epoch=epoch))

    def read_state(self, state: LoaderState) -> ResumeState:
        """Return where a state was taken; the dataset has loaded it, and ``begin`` goes there."""
        return ResumeState(Position(state.epoch, 0, 0, state.step))

    def num_batches(self, epoch: int) -> int:
        """Return the batches of an epoch on this rank, with those before a resume."""
        point = self._point
        if point is not None and point.epoch == epoch and self._left_epoch is None:
            first_step = self._first_step
        else:
            point = self._loaded_point()
            if point.epoch != epoch:
                point = replace(point, epoch=epoch, sample_in_epoch=0, initial_grid=None)
            first_step = step_of(self._reader, point)
        return first_step + num_wanted_batches(self._reader, point, drop_last=self._drop_last)

    def num_samples_before(self, position: Position) -> int:
        """Return the samples that the iteration under way has given before a position."""
        return 0 if self._point is None or self._left_epoch is not None else self._num_samples_before(position)

    @abstractmethod
    def _num_samples_before(self, position: Position) -> int:
        """Return the same where an iteration is under way."""

    @abstractmethod
    def _point_behind(self, position: Position) -> ResumePoint | None:
        """Return the resume point after the microbatches before this position; None: it is not known."""

    def _epoch_at(self, position: Position) -> int:
        """Return the epoch of a position of the iteration that has begun, or of which it is behind the last batch."""
        return self._begun.epoch if self._left_epoch is None else self._left_epoch

    def _point_at(self, position: Position) -> ResumePoint | None:
        if self.beginning is not None:
            return self.beginning
        point = self._point
        if point is None:
            return self._loaded_point()
        if self._left_epoch is not None and position.epoch != point.epoch:
            return replace(point, epoch=self._left_epoch + 1, sample_in_epoch=0, initial_grid=None)
        return self._point_behind(position)

    def _loaded_point(self) -> ResumePoint:
        """Return the resume point that the dataset has loaded, or that of its first iteration."""
        point: ResumePoint = self._reader.next_point()
        is_within = not self._leaves_empty_rest or not point.sample_in_epoch
        if is_within or num_wanted_batches(self._reader, point, drop_last=self._drop_last):
            return point
        return replace(point, epoch=point.epoch + 1, sample_in_epoch=0, initial_grid=None)

    @property
    def _begun(self) -> ResumePoint:
        """The point where the iteration under way has begun."""
        assert self._point is not None  # noqa: S101 - an iteration has begun
        return self._point

    def _go_to(self, point: ResumePoint) -> None:
        self._point, self._next_point = point, self._reader.next_point()
        self._batches = self._reader.rank_batches(point)
        self._first_step = step_of(self._reader, point)
        self._left_epoch = None

    def _wanted_batches(self) -> Iterator[BatchGroup]:
        assert self._batches is not None  # noqa: S101 - an iteration has begun
        return wanted_batches(self._reader, self._batches, 0, drop_last=self._drop_last)


class StreamPlan(StreamEpochs):
    """The plan of epochs whose batches are known by the numbers of their samples.

    Args:
        reader: As for ``StreamEpochs``, like the next three.
        dp_rank: The loader's.
        drop_last: Whether a short batch at an epoch's end is left out.
        leaves_empty_rest: Whether a loaded position at an epoch's end counts as the start of the next epoch.
        is_read_here: Whether this process reads the samples.
        collate_fn: What makes a batch of samples.
    """

    has_several_tasks = True

    def __init__(
        self, reader: StreamReader, dp_rank: int, *, is_read_here: bool, collate_fn: Any, **settings: bool
    ) -> None:
        super().__init__(reader, dp_rank, **settings)
        self._is_read_here = is_read_here
        self._runs_no_user_code = runs_no_user_code(reader, collate_fn)
        self._has_begun = False
        self._ranges: dict[int, BatchRange] = {}
        self._wanted: Iterator[BatchGroup] = iter(())
        self._needs_restart = True
        self._num_ranges = self._num_drawn = self._num_samples = 0
        # What the iteration gave before samples were left out of it; and the steps where it was planned, with their points.
        self._num_given = 0
        self._starts: list[tuple[int, ResumePoint]] = []
        # By the step of the first batch; the ranges before those kept are forgotten.
        self._known: dict[int, _PlannedRange] = {}

    def begin(self, position: Position) -> ResumeState:
        """Begin an iteration; warn, once, if streams whose columns differ are mixed in batches."""
        self._num_given = 0
        begun = super().begin(position)
        self._starts = [(self._first_step, self._begun)]
        is_mixed = self._runs_no_user_code and self._reader.dataset.mixes_streams and self._reader.batch_size > 1
        differing = self._reader.catalog.differing_columns if is_mixed and not self._has_begun else None
        if differing is not None:
            _logger.warning("%s: a batch cannot have samples of both without %s", differing, COMMON_COLUMNS)
        self._has_begun = True
        return begun

    def payload(self, epoch: int, index: int) -> BatchRange | None:
        """Return a range of the epoch's batches, or None past its end."""
        return None if self._point is None or epoch != self._point.epoch else self._range_at(index)

    def origin(self, epoch: int, index: int) -> TaskOrigin | None:
        """Return where a range begins: the numbers of its batches are those in the epoch."""
        batch_range = self.payload(epoch, index)
        return None if batch_range is None else TaskOrigin(self._dp_rank, 0, batch_range.first)

    def tasks_of(self, task: Task, position: Position) -> tuple[Task, ...]:
        """Return a task of one batch."""
        (found,) = super().tasks_of(task, position)
        number = found.first_microbatch
        return (found._replace(payload=self._range_of(number, found.payload.batch(number))),)

    def saved_payload(self, payload: BatchRange, number: int) -> list[Any]:
        """Return the samples of a batch as plain values."""
        ids, positions, seed = cast("PickedSamples", payload.batch(number))
        return [ids.tolist(), None if positions is None else positions.tolist(), seed]

    def loaded_payload(self, saved: Any, number: int) -> BatchRange:
        """Return a range of one batch."""
        ids, positions, seed = saved
        places = None if positions is None else np.array(positions, np.int64)
        return self._range_of(number, PickedSamples(np.array(ids, np.int64), places, seed))

    def _range_of(self, number: int, picks: PickedSamples) -> BatchRange:
        return BatchRange(number, [picks], 1, runs_no_user_code=self._runs_no_user_code)

    def made_of(self, position: Position) -> list[Provenance]:
        """Return the numbers of a batch's samples."""
        step = position.step + 1
        first_step = max((first for first in self._known if first < step), default=None)
        if position.epoch != self._begun.epoch or first_step is None:
            return []
        batches = self._known[first_step].batches[step - first_step - 1 :]
        return [Provenance(picks.ids.tolist(), []) for picks in batches[:1]]

    def begin_at(self, position: Position) -> Position:
        """Return where ranges begin for a position: with the first, where the iteration, or what is left of it, was planned."""
        is_first = (position.epoch, position.step) == (self._begun.epoch, self._first_step)
        return Position(position.epoch, 0, 0, position.step) if is_first else position

    def exclude(self, position: Position, exclusion: Exclusion) -> tuple[Reshard, ...]:
        """Leave samples out from a position on; all others keep their position, so that any number of ranks goes on.

        Returns:
            None of them: the dataset's own state says it.
        """
        reader, point = self._reader, cast("ResumePoint", self._point_at(position))
        if point.epoch != position.epoch:  # behind an epoch's last batch
            point = replace(point, epoch=position.epoch, sample_in_epoch=0, initial_grid=None)
        point, added = reader.epochs.with_defaults(point), list[dict[str, Any]]()
        if exclusion.samples:
            added.append({"samples": exclusion.samples, "from": [point.epoch, point.sample_in_epoch]})
            if exclusion.samples[-1] >= reader.catalog.num_samples:
                raise ConfigurationError(
                    "samples", exclusion.samples[-1], f"numbers below {reader.catalog.num_samples}"
                )
        if exclusion.steps is not None:
            span = reader.rank_batches(point).span(*(step - position.step for step in exclusion.steps))
            added += [] if span is None else [{"epoch": point.epoch, "span": span}]
        reader.state.skips = reader.skips.also(SampleSkips(added))
        is_under_way = self._point is not None and self.beginning is None and self._left_epoch is None
        if is_under_way and position.epoch == self._begun.epoch:
            num_given, known, step = self._num_samples_before(position), self._range_before(position), position.step
            self._num_given = num_given
            self._go_to(point)
            self._first_step = step
            self._starts.append((step, point))
            if known is not None:
                self._known[known.first_step] = known.until(step)
        return ()

    def made_at(self, epoch: int, step: int) -> dict[int, list[Any]]:
        """Return the numbers of the samples of each rank's batch at a step."""
        if step >= self.num_batches(epoch):
            return {}
        loaded = self._loaded_point()
        starts = self._starts if self._point is not None else [(step_of(self._reader, loaded), loaded)]
        of_epoch = ((first, point) for first, point in reversed(starts) if point.epoch == epoch and first <= step)
        begin = replace(starts[-1][1], epoch=epoch, sample_in_epoch=0, initial_grid=None)
        first_step, start = next(of_epoch, (0, begin))
        ids = self._reader.rank_batches(self._reader.epochs.with_defaults(start)).of_all_ranks(step - first_step)
        return {} if ids is None else {rank: own[own >= 0].tolist() for rank, own in enumerate(ids)}

    def _num_samples_before(self, position: Position) -> int:
        known = self._range_before(position)
        return self._num_given if known is None else known.num_samples_before(self._step_at(position))

    def _point_behind(self, position: Position) -> ResumePoint:
        known = self._range_before(position)
        if self._batches is None or known is None:
            return self._begun
        number = known.numbers[self._step_at(position) - known.first_step - 1]
        return replace(self._begun, sample_in_epoch=self._batches.sample_in_epoch_after(number))

    def _step_at(self, position: Position) -> int:
        # Behind the last batch, the dataset's states say that nothing is left of the epoch.
        if position.epoch == self._begun.epoch or not self._known:
            return position.step
        return max(known.first_step + len(known.numbers) for known in self._known.values())

    def _range_before(self, position: Position) -> "_PlannedRange | None":
        """Return the range of the batch before a position; None before the iteration's first."""
        step = self._step_at(position)
        first_step = max((first for first in self._known if first < step), default=None)
        return None if step == self._first_step or first_step is None else self._known[first_step]

    def _go_to(self, point: ResumePoint) -> None:
        self._needs_restart = True
        super()._go_to(point)
        self._known = {}
        self._restart()

    def _restart(self) -> None:
        """Plan the iteration's batches from the first on."""
        reader, wanted = self._reader, self._wanted_batches()
        groups: Iterator[BatchGroup]
        if self._is_read_here:
            together = batches_together(reader, reader.batch_size)
            # If shards come from a store, the first batch must not wait for those of the batches after it.
            first = min(together, _FIRST_TOGETHER) if reader.catalog.is_in_place else 1
            num_together = reader.fitting
            groups = reader.with_read_ahead(in_groups(wanted, first, together, num_together), ids_of)
        else:
            # Workers share this node's cache and find there what this process fetches.
            groups = reader.with_read_ahead(in_groups(wanted, _RANGE_SIZE, _RANGE_SIZE), ids_of, is_opened=False)
        self._wanted = _without_gaps(groups)
        self._ranges.clear()
        self._num_ranges = self._num_drawn = 0
        self._num_samples = self._num_given
        self._needs_restart = False

    def _range_at(self, index: int) -> BatchRange | None:
        if self._needs_restart or (index < self._num_ranges and index not in self._ranges):
            self._restart()
        while self._num_ranges <= index:
            # After an interruption or an error, the iterator has gone past what is missing here.
            self._needs_restart = True
            group = next(self._wanted, None)
            if group is not None:
                self._add(*group)
            self._needs_restart = False
            if group is None:
                return None
        return self._ranges.get(index)

    def _add(self, numbers: list[int], batches: list[PickedSamples]) -> None:
        assert self._batches is not None  # noqa: S101 - an iteration has begun
        together = len(numbers) if self._is_read_here else 1
        batch_range = BatchRange(
            self._batches.first_batch + numbers[0], batches, together, runs_no_user_code=self._runs_no_user_code
        )
        first_step = self._first_step + self._num_drawn
        self._known[first_step] = _PlannedRange(first_step, numbers, batches, self._num_samples)
        self._num_drawn += len(numbers)
        self._num_samples += sum(len(picks.ids) for picks in batches)
        self._ranges[self._num_ranges] = batch_range
        self._num_ranges += 1
        # Where ranges are planned again after an interruption, the caller's position, which is further on, stays known.
        if self._ranges.pop(self._num_ranges - _MOST_KEPT - 1, None) is not None:
            del self._known[min(self._known)]


class _PlannedRange(NamedTuple):
    """The batches of a range, as a state describes them.

    Attributes:
        first_step: The step of its first batch.
        numbers: The plan's index of each.
        batches: The samples of each.
        num_before: The samples that the iteration has given before them.
    """

    first_step: int
    numbers: list[int]
    batches: list[PickedSamples]
    num_before: int

    def num_samples_before(self, step: int) -> int:
        """Return the samples that the iteration has given before a step."""
        return self.num_before + sum(len(picks.ids) for picks in self.batches[: step - self.first_step])

    def until(self, step: int) -> "_PlannedRange":
        """Return its batches before a step."""
        count = step - self.first_step
        return self._replace(numbers=self.numbers[:count], batches=self.batches[:count])


def step_of(reader: StreamReader, point: ResumePoint) -> int:
    """Return the batches that a rank of the present world had of an epoch before a point.

    A part of a round counts as one: an epoch of which a sample was delivered has begun, however many ranks load it.
    """
    num_before = -(-point.sample_in_epoch // reader.epochs.grid().global_batch_size)
    if not reader.skips.has_samples:
        before = np.arange(num_before, dtype=np.int64)
        return num_before - int(reader.skips.is_skipped(point.epoch, before).sum())
    return _num_kept(reader, replace(point, sample_in_epoch=0), num_before) if num_before else 0


def num_wanted_batches(reader: StreamReader, point: ResumePoint, *, drop_last: bool) -> int:
    """Return how many batches a loader delivers of an epoch from a point on."""
    batching = reader.epochs.batching(point)
    num_batches: int = batching.num_even_batches
    if drop_last and num_batches:
        in_last = batching.num_rank_samples(num_batches) - batching.num_rank_samples(num_batches - 1)
        num_batches -= in_last < reader.batch_size
    if reader.skips.has_samples:
        return _num_kept(reader, point, num_batches)
    numbers = point.sample_in_epoch // reader.epochs.grid().global_batch_size + np.arange(num_batches)
    return num_batches - int(reader.skips.is_skipped(point.epoch, numbers).sum())


def _num_kept(reader: StreamReader, point: ResumePoint, num_batches: int) -> int:
    """Return how many of the first batches from a point on have samples that are not skipped, on every rank."""
    point = reader.epochs.with_defaults(point)

    def count() -> int:
        found = 0
        for numbers, _ in reader.rank_batches(point).chunks():
            found += int((numbers < num_batches).sum())
            if len(numbers) and numbers[-1] >= num_batches:
                break
        return found

    return reader.skips.counted((point, reader.epochs.grid(), num_batches), count)


def wanted_batches(reader: StreamReader, batches: RankBatches, first: int, *, drop_last: bool) -> Iterator[BatchGroup]:
    """Yield a rank's batches from one of them on, as a loader delivers them."""
    for indices, chunk in batches.picks(first, with_positions=reader.maker.has_user_code):
        numbers = indices.tolist()
        num_kept = len(numbers) - bool(drop_last and numbers and batches.is_short(numbers[-1]))
        yield numbers[:num_kept], chunk[:num_kept]


def runs_no_user_code(reader: StreamReader, collate_fn: Any) -> bool:
    """Return whether batches are gathered column by column, without code of the user's."""
    return collate_fn is data.default_collate and not reader.maker.has_user_code


def batches_together(reader: StreamReader, batch_size: int) -> int:
    """Return the number of batches that one process reads together."""
    return max(1, min(_READ_TOGETHER, reader.samples_in(_READ_TOGETHER_BYTES)) // batch_size)


def _without_gaps(groups: Iterator[BatchGroup]) -> Iterator[BatchGroup]:
    """Yield the same batches in groups whose numbers follow on one another."""
    for numbers, batches in groups:
        if numbers and numbers[-1] - numbers[0] + 1 == len(numbers):
            yield numbers, batches
            continue
        start = 0
        for stop in range(1, len(numbers) + 1):
            if stop == len(numbers) or numbers[stop] != numbers[stop - 1] + 1:
                yield numbers[start:stop], batches[start:stop]
                start = stop


class BatchRangeProduct(ShardProduct):
    """The batches of a range, made in any order; those that follow on one another are read together.

    Args:
        reader: Of the ``StreamingDataset``.
        collate: Makes a batch of samples.
        batch_range: The range.
    """

    def __init__(self, reader: StreamReader, collate: Callable[[list[Any]], Any], batch_range: BatchRange) -> None:
        self._make = batch_maker(reader, collate)
        self._range = batch_range
        self._most_together = batches_together(reader, reader.batch_size)
        self._together = batch_range.num_together
        self._next = batch_range.first
        self._made: Iterator[Any] = iter(())
        self._num_left = 0

    def microbatch_source(self, opening: Opening) -> BulkSource:
        """Return the source, by the numbers of batches in the epoch; nothing is drawn where no code of a user's makes them."""
        rng = None if self._range.runs_no_user_code else opening.rng
        return BulkSource(self._microbatch, len(self._range), rng, self._rest)

    def _rest(self, first: int) -> Iterator[Any]:
        """Yield the batches from a number on, read together; where one fails, those before it come first.

        Raises:
            Exception: What reading their samples raises, or the user's.
        """
        return iter(self._make([self._range.batch(number) for number in range(first, len(self._range))]))

    def _microbatch(self, index: int) -> Any:
        """Return a batch by its number in the epoch; fast where the number is the one behind the last.

        Raises:
            Exception: What reading its samples raises, or the user's.
        """
        if index != self._next:
            self._together, self._num_left = 1, 0
        if not self._num_left:
            stop = min(index + self._together, len(self._range))
            self._made = iter(self._make([self._range.batch(number) for number in range(index, stop)]))
            self._num_left = stop - index
            self._together = min(2 * self._together, self._most_together)
        # Where this fails, the next call makes the batch again.
        num_left, self._num_left, self._next = self._num_left, 0, index
        batch = next(self._made)
        self._next, self._num_left = index + 1, num_left - 1
        return batch


def batch_maker(
    reader: StreamReader, collate: Callable[[list[Any]], Any]
) -> Callable[[Sequence[PickedSamples]], Iterable[Any]]:
    """Return what makes the batches of some picks; where a batch fails, those before it come first."""
    if runs_no_user_code(reader, collate):
        return lambda batches: reader.collated([picks.ids for picks in batches])
    make = collate_of_samples(reader, collate)
    return lambda batches: (make(list(reader.maker.picked(picks))) for picks in batches)


def collate_of_samples(
    reader: StreamReader, collate: Callable[[list[Any]], Any], default: Callable[[Any], Any] | None = None
) -> Callable[[list[Any]], Any]:
    """Return a collate function for samples whose arrays may be read-only, as views of a shard are: torch warns of them.

    Args:
        reader: Of the ``StreamingDataset``.
        collate: The user's, or torch's.
        default: Does what torch's does; None: torch's itself.
    """
    is_own = collate is not data.default_collate
    stack = partial(call_collate, collate) if is_own else default or collated

    def made(samples: list[Any]) -> Any:
        try:
            return stack(samples if is_own else [writable(sample) for sample in samples])
        except genuine(KeyError) as error:
            reader.catalog.note_columns(error)
            raise

    return made


def writable(sample: Any) -> Any:
    """Return a sample whose arrays may be written to."""
    if type(sample) is dict:
        return {name: writable_array(value) for name, value in cast("dict[Any, Any]", sample).items()}
    if type(sample) in (list, tuple):
        return type(sample)(map(writable_array, sample))
    return writable_array(sample)


class StreamWindows(WindowOrder):
    """The order of a stream, for a loader with a window function.

    Seed and canonical nodes are those of a loaded state, in later epochs as well, as in the dataset's own epochs.

    Args:
        reader: Of the ``StreamingDataset``.
        window_size: Samples of a window.
        is_read_here: Whether this process reads the samples; if not, their shards are only fetched.
    """

    def __init__(self, reader: StreamReader, window_size: int, *, is_read_here: bool) -> None:
        self._reader = reader
        self._window_size = window_size
        self._is_read_here = is_read_here
        self._seed: int | None = None
        self._num_canonical_nodes: int | None = None

    def order_fields(self, epoch: int, saved: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return what the windows of an epoch depend on."""
        reader = self._reader
        if saved is not None:
            check_saved(reader.catalog.commits, saved, None)
            self._seed, self._num_canonical_nodes = saved["shuffle_seed"], Spread.saved(saved["spread"]).num_parts
        point = reader.epochs.with_defaults(ResumePoint(epoch, 0, self._num_canonical_nodes, self._seed))
        sizes = tuple(int(shares.epoch_size) for shares in reader.epochs.phases(epoch))
        world = reader.epochs.world_sizes()
        spread = Spread(sizes, cast("int", point.num_canonical_nodes), world.num_nodes, world.ranks_per_node)
        if saved is not None:
            spread = Spread.saved(saved["spread"])  # the nodes that began the epoch decide how it is dealt out
        commits = saved_commits(reader.catalog.commits)
        return {
            "num_samples": sum(sizes),
            "shuffle": reader.epochs.settings.shuffle,
            "shuffle_seed": cast("int", point.shuffle_seed),
            "spread": spread.plain(),
            **({"commits": commits} if commits else {}),
        }

    def samples(self, epoch: int, order_fields: Mapping[str, Any]) -> Callable[[int], list[int]]:
        """Return what gives the numbers of a window's samples."""
        spread = Spread.saved(order_fields["spread"])
        orders = self._reader.epochs.ordered(epoch, order_fields["shuffle_seed"], spread.num_parts)
        firsts = [0, *accumulate(spread.sizes)]
        starts, stops = spread.windows(self._window_size)

        def samples_of(number: int) -> list[int]:
            start, stop = int(starts[number]), int(stops[number])
            phase = bisect_right(firsts, start) - 1
            return orders[phase].sample_ids(start - firsts[phase], stop - firsts[phase]).tolist()

        return samples_of

    def followed(self, windows: Iterator[Window]) -> Iterator[Window]:
        """Yield windows, while the shards of those behind them are fetched."""
        return self._reader.with_read_ahead(windows, _ids_of, is_opened=self._is_read_here)


def _ids_of(window: Window) -> Any:
    return np.array(window.indices, np.int64)
