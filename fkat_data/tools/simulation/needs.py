"""Compute which rank reads which shard when, from the order of a configuration."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fkat_data.streaming.epoch.epochs import Epochs
from fkat_data.streaming.epoch.resume_point import ResumePoint
from fkat_data.streaming.epoch.skips import SampleSkips
from fkat_data.streaming.order.plan import Plan
from fkat_data.streaming.order.spanner import Spanner
from fkat_data.tools.simulation.setup import Setup

__all__ = ["EpochNeeds", "StepGroup", "needs_of"]

_Integers = npt.NDArray[np.int64]

#: Samples to plan at once.
_CHUNK = 1 << 19


class StepGroup(NamedTuple):
    """Steps whose samples each rank reads together.

    Attributes:
        num_steps: The number of steps.
        num_samples: The number of samples that each rank reads.
        shards: For each rank, the shards that it reads, in the order of its samples.
    """

    num_steps: int
    num_samples: int
    shards: Sequence[_Integers]


@dataclass(frozen=True)
class EpochNeeds:
    """The shards that an epoch needs.

    Attributes:
        epoch: The epoch.
        parts: The groups of steps, in their order.
    """

    epoch: int
    parts: tuple[StepGroup, ...]

    @property
    def num_steps(self) -> int:
        """The number of steps in all parts."""
        return sum(part.num_steps for part in self.parts)


def needs_of(epochs: Epochs, spanner: Spanner, skips: SampleSkips, setup: Setup) -> list[EpochNeeds]:
    """Return the shards that the ranks of a run need, epoch by epoch. Replicated ranks count as one.

    Args:
        epochs: The configuration of the order.
        spanner: Where the shards begin.
        skips: The samples and batches that are not delivered.
        setup: The run.

    Raises:
        ConfigurationError: The epoch cannot be planned.
    """
    found: list[EpochNeeds] = []
    num_left = setup.num_steps
    while num_left != 0 and (setup.num_epochs is None or len(found) < setup.num_epochs):
        place = epochs.settled(ResumePoint(len(found)))
        rows = _rows(epochs.plan(place), place.epoch, skips, setup, num_left)
        lengths = _Lengths(setup)
        needs = EpochNeeds(place.epoch, tuple(part for ids in rows for part in _parts(ids, spanner, lengths)))
        found.append(needs)
        if not needs.num_steps:
            break
        num_left = None if num_left is None else num_left - needs.num_steps
    return found


def _rows(plan: Plan, epoch: int, skips: SampleSkips, setup: Setup, num_wanted: int | None) -> Iterator[_Integers]:
    """Yield the ids of the delivered samples by step, rank and sample, in chunks that end between groups of steps."""
    num_batches = plan.batching.num_even_batches
    unit = setup.batches_per_chunk or setup.batches_together
    size = max(1, _CHUNK // (plan.grid.global_batch_size * unit)) * unit
    if num_wanted is not None and not skips:
        num_batches = min(num_batches, num_wanted)
    num_yielded = 0
    for start in range(0, num_batches, size):
        indices = np.arange(start, min(start + size, num_batches))
        indices = indices[~skips.is_skipped(epoch, indices)]
        ids = plan.global_batches(indices)
        if skips.has_samples:
            ids = skips.without(ids)
            ids = ids[(ids >= 0).sum(axis=2).min(axis=1, initial=1) > 0]
        if num_wanted is not None:
            ids = ids[: num_wanted - num_yielded]
        num_yielded += len(ids)
        if len(ids):
            yield ids
        if num_yielded == num_wanted:
            return


def _parts(ids: _Integers, spanner: Spanner, lengths: "_Lengths") -> Iterator[StepGroup]:
    num_ranks = int(ids.shape[1])
    steps_of_part = lengths.of(len(ids))
    num_parts = len(steps_of_part)
    part_of_step: _Integers = np.repeat(np.arange(num_parts), steps_of_part)
    is_read = ids >= 0
    groups = np.broadcast_to((part_of_step[:, None] * num_ranks + np.arange(num_ranks))[:, :, None], ids.shape)[is_read]
    shards, _ = spanner.locate(ids[is_read])
    num_shards = len(spanner.starts)
    keys, firsts = np.unique(groups * num_shards + shards, return_index=True)
    groups, shards = np.divmod(keys, num_shards)
    shards = shards[np.lexsort((firsts, groups))]
    edges = np.searchsorted(groups, np.arange(num_parts * num_ranks + 1)).tolist()
    samples_of_step = is_read.sum(axis=2).max(axis=1)
    samples_of_part = np.bincount(part_of_step, samples_of_step, minlength=num_parts).astype(np.int64).tolist()
    for part in range(num_parts):
        own = edges[part * num_ranks : (part + 1) * num_ranks + 1]
        by_rank = [shards[own[rank] : own[rank + 1]] for rank in range(num_ranks)]
        yield StepGroup(steps_of_part[part], samples_of_part[part], by_rank)


class _Lengths:
    """The numbers of steps that are read together: one at first, then twice as many each time, within a chunk."""

    def __init__(self, setup: Setup) -> None:
        self._most = setup.batches_together
        self._chunk = setup.batches_per_chunk
        self._next = 1

    def of(self, num_steps: int) -> list[int]:
        """Return the lengths of the next parts. They start at the start of a chunk and add up to ``num_steps``."""
        found: list[int] = []
        for start in range(0, num_steps, self._chunk or num_steps):
            left = min(self._chunk or num_steps, num_steps - start)
            while left > 0:
                found.append(min(self._next, left))
                left -= found[-1]
                self._next = min(2 * self._next, self._most)
        return found
