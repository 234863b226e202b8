"""Recompute from the order, without a log, which samples a global batch had and what an epoch has shown."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError, arguments
from fkat_data.loaders.sample_records import SampleRecord
from fkat_data.streaming.epoch.epochs import Epochs
from fkat_data.streaming.epoch.rank_batches import SampleSkips
from fkat_data.streaming.epoch.shared_resume import ResumePoint
from fkat_data.streaming.order.epoch_order import EpochPlan
from fkat_data.streaming.reading.catalog import Catalog

_Integers = npt.NDArray[np.int64]

#: The number of samples that are planned together.
_CHUNK = 1 << 18
#: Counts of 16 bits hold twice as many, which no phase and no repeat at the end of an epoch reaches.
_MOST_REPEATS = 1 << 14


@dataclass(frozen=True)
class StreamCoverage:
    """The coverage of a stream by an epoch.

    Attributes:
        num_samples: Samples in the stream.
        num_due: Samples that a whole epoch shows, repetitions included.
        fewest_due: How often a whole epoch shows each sample at least.
        num_seen: Different samples that were delivered.
        num_delivered: Samples that were delivered, repetitions included.
        num_skipped: Samples that ``skip`` left out, repetitions included.
        fewest: How often the rarest sample was delivered or left out.
        most: How often the most frequent sample was.
    """

    num_samples: int
    num_due: int
    fewest_due: int
    num_seen: int
    num_delivered: int
    num_skipped: int
    fewest: int
    most: int


@dataclass(frozen=True)
class Coverage:
    """The coverage of all streams by an epoch.

    Attributes:
        epoch: The epoch.
        num_steps: Global batches that were counted.
        num_batches: Global batches of the whole epoch.
        num_repeats: Samples that fill up the last batches a second time, so that all ranks read the same number.
        streams: The coverage of each stream.
    """

    epoch: int
    num_steps: int
    num_batches: int
    num_repeats: int
    streams: tuple[StreamCoverage, ...]

    @property
    def is_as_due(self) -> bool:
        """Whether every sample was read as often as its stream's weight says, except for the repeats at the end."""
        extra = 0
        for stream in self.streams:
            extra += stream.num_delivered + stream.num_skipped - stream.num_due
            if stream.fewest < stream.fewest_due:
                return False
        return extra == self.num_repeats

    @property
    def is_each_once(self) -> bool:
        """Whether every sample was read exactly once, except for the repeats at the end."""
        extra = sum(stream.num_delivered + stream.num_skipped - stream.num_samples for stream in self.streams)
        return all(stream.fewest == 1 for stream in self.streams if stream.num_samples) and extra == self.num_repeats


def records_of(
    epochs: Epochs, catalog: Catalog, skips: SampleSkips, step: int, epoch: int | None
) -> list[SampleRecord]:
    """Return every sample of a global batch, rank by rank.

    Args:
        epochs: The order's settings.
        catalog: The shards.
        skips: What is not delivered.
        step: The global batch of the epoch; or of the whole run, if no epoch is given.
        epoch: The epoch.

    Raises:
        ConfigurationError: The global batch does not exist.
    """
    arguments.integer("step", step, minimum=0)
    point = ResumePoint(0 if epoch is None else arguments.integer("epoch", epoch, minimum=0))
    num_batches = epochs.batching(point).num_even_batches
    while epoch is None and step >= num_batches > 0:
        step -= num_batches
        point = ResumePoint(point.epoch + 1)
        num_batches = epochs.batching(point).num_even_batches
    if step >= num_batches:
        raise ConfigurationError("step", step, f"a global batch of epoch {point.epoch}, less than {num_batches}")
    steps, plan = np.array([step]), epochs.plan(point)
    ids = plan.global_batches(steps)
    is_left_out = bool(skips.is_skipped(point.epoch, steps)[0])
    kept, ids = skips.without(plan, point, steps, ids)[0], ids[0]
    return [
        SampleRecord(point.epoch, step, rank, *where_is(catalog, sample), is_left_out or int(kept[rank, column]) < 0)
        for rank, batch in enumerate(ids.tolist())
        for column, sample in enumerate(batch)
        if sample >= 0
    ]


def coverage_of(epochs: Epochs, catalog: Catalog, skips: SampleSkips, epoch: int, num_steps: int | None) -> Coverage:
    """Return what an epoch has shown after some steps.

    Counting takes 4 bytes of memory for each sample, or 16 if samples are shown thousands of times.

    Args:
        epochs: The order's settings.
        catalog: The shards.
        skips: What is not delivered.
        epoch: The epoch.
        num_steps: Global batches that were delivered or left out; None: all of the epoch.

    Raises:
        ConfigurationError: The epoch has fewer global batches.
    """
    point = ResumePoint(arguments.integer("epoch", epoch, minimum=0))
    batching = epochs.batching(point)
    num_batches = batching.num_even_batches
    steps = (
        num_batches if num_steps is None else arguments.integer("num_steps", num_steps, minimum=0, maximum=num_batches)
    )
    due, phases = epochs.shares(epoch), epochs.phases(epoch)
    dtype = np.int16 if max(due.repeat) < _MOST_REPEATS else np.int64
    delivered, skipped = np.zeros(catalog.num_samples, dtype), np.zeros(catalog.num_samples, dtype)
    plan = epochs.plan(point)
    for indices, ids in global_batches(plan, steps):
        is_left_out = skips.is_skipped(epoch, indices)[:, None, None] | (skips.without(plan, point, indices, ids) < 0)
        np.add.at(delivered, ids[(ids >= 0) & ~is_left_out], 1)
        np.add.at(skipped, ids[(ids >= 0) & is_left_out], 1)
    edges = [*catalog.sample_offset_per_stream.tolist(), catalog.num_samples]
    streams = [
        _stream_coverage(
            delivered[edges[stream] : edges[stream + 1]],
            skipped[edges[stream] : edges[stream + 1]],
            [phase.choose[stream] for phase in phases],
        )
        for stream in range(len(due.choose))
    ]
    read = batching.num_rank_samples(steps) * epochs.grid().num_ranks
    return Coverage(epoch, steps, num_batches, max(0, read - due.epoch_size), tuple(streams))


def _stream_coverage(
    delivered: npt.NDArray[np.signedinteger[Any]],
    skipped: npt.NDArray[np.signedinteger[Any]],
    due_in_phases: list[int],
) -> StreamCoverage:
    total = delivered + skipped
    return StreamCoverage(
        num_samples=len(total),
        num_due=sum(due_in_phases),
        # Each phase shows every sample once before it repeats one.
        fewest_due=sum(count // max(len(total), 1) for count in due_in_phases),
        num_seen=int(np.count_nonzero(delivered)),
        num_delivered=int(delivered.sum()),
        num_skipped=int(skipped.sum()),
        fewest=int(total.min()) if len(total) else 0,
        most=int(total.max(initial=0)),
    )


def global_batches(plan: EpochPlan, num_steps: int) -> Iterator[tuple[_Integers, _Integers]]:
    """Yield the numbers of global batches from the start of a plan on, many at a time, and their sample ids."""
    chunk = max(1, _CHUNK // plan.grid.global_batch_size)
    for start in range(0, num_steps, chunk):
        indices = np.arange(start, min(start + chunk, num_steps))
        yield indices, plan.global_batches(indices)


def where_is(catalog: Catalog, sample: int) -> tuple[int, str, int, int]:
    """Return a sample's stream, the name of its shard, its row there, and its number."""
    shard, row = catalog.spanner[sample]
    return int(catalog.stream_per_shard[shard]), catalog.entries[shard].name, row, sample
