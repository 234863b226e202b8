"""Compute which rank reads which shard when, from the order of a configuration."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from fkat_data.streaming.epoch.epochs import Epochs
from fkat_data.streaming.epoch.resume_point import ResumePoint
from fkat_data.streaming.epoch.skips import SampleSkips
from fkat_data.streaming.order.plan import Plan
from fkat_data.streaming.order.spanner import Spanner
from fkat_data.tools.simulation.setup import Setup

_Integers = npt.NDArray[np.int64]

#: Samples to plan at once.
_CHUNK = 1 << 19
_MOST_BITS = 63


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


def needs_of(
    epochs: Epochs,
    spanner: Spanner,
    skips: SampleSkips,
    setup: Setup,
    *,
    start: ResumePoint | None = None,
    first_plan: Plan | None = None,
    count: Callable[[_Integers], None] | None = None,
) -> list[EpochNeeds]:
    """Return the shards that the ranks of a run need, epoch by epoch. Replicated ranks count as one.

    Args:
        epochs: The configuration of the order.
        spanner: Where the shards begin.
        skips: The samples and batches that are not delivered, none if the run starts within an epoch.
        setup: The run.
        start: Where the run starts; None: at the start of epoch 0.
        first_plan: The plan of the epoch in which the run starts, if it is made already.
        count: Called with the ids of the delivered samples, part by part.

    Raises:
        ConfigurationError: The epoch cannot be planned.
    """
    found: list[EpochNeeds] = []
    num_left = setup.num_steps
    point = start or ResumePoint()
    while num_left != 0 and (setup.num_epochs is None or len(found) < setup.num_epochs):
        place = epochs.settled(point)
        plan = first_plan if first_plan is not None and not found else epochs.plan(place)
        part_maker = _PartMaker(plan, spanner, skips, count)
        parts: list[StepGroup] = []
        lengths = _Lengths(setup.batches_together)
        for batches in _chunks(plan, place.epoch, skips, setup, num_left):
            parts += part_maker.parts(batches, lengths.of(len(batches)))
        needs = EpochNeeds(place.epoch, tuple(parts))
        found.append(needs)
        if not needs.num_steps:
            break
        num_left = None if num_left is None else num_left - needs.num_steps
        point = ResumePoint(place.epoch + 1)
    return found


def _chunks(plan: Plan, epoch: int, skips: SampleSkips, setup: Setup, num_wanted: int | None) -> Iterator[_Integers]:
    """Yield the batches that are delivered, in chunks that a part never crosses."""
    num_batches = plan.batching.num_even_batches
    if num_wanted is not None and not skips:
        num_batches = min(num_batches, num_wanted)
    size = setup.batches_per_chunk or max(1, num_batches)
    num_yielded = 0
    for start in range(0, num_batches, size):
        batches = np.arange(start, min(start + size, num_batches))
        batches = batches[~skips.is_skipped(epoch, batches)]
        if skips.has_samples:
            pieces = [batches[piece] for piece in _pieces(len(batches), plan.grid.global_batch_size)]
            has_samples = [
                (skips.without(plan.global_batches(piece)) >= 0).sum(axis=2).min(axis=1, initial=1) > 0
                for piece in pieces
            ]
            batches = batches[np.concatenate([np.zeros(0, bool), *has_samples])]
        if num_wanted is not None:
            batches = batches[: num_wanted - num_yielded]
        num_yielded += len(batches)
        if len(batches):
            yield batches
        if num_yielded == num_wanted:
            return


def _pieces(num_steps: int, samples_per_step: int) -> list[slice]:
    """Return slices of steps that have about as many samples as are planned at once."""
    size = max(1, _CHUNK // samples_per_step)
    return [slice(start, min(start + size, num_steps)) for start in range(0, num_steps, size)]


class _PartMaker:
    """Makes the parts of an epoch, in memory that does not grow with the epoch or with a part's number of samples."""

    def __init__(
        self, plan: Plan, spanner: Spanner, skips: SampleSkips, count: Callable[[_Integers], None] | None
    ) -> None:
        self._plan = plan
        self._spanner = spanner
        self._skips = skips
        self._count = count
        self._samples_per_step = plan.grid.global_batch_size
        self._num_ranks = plan.grid.num_ranks

    def parts(self, batches: _Integers, steps_of_part: Sequence[int]) -> Iterator[StepGroup]:
        """Yield the parts of all batches, given the number of steps of each part."""
        start = 0
        for lengths in self._planned_together(steps_of_part):
            stop = start + sum(lengths)
            yield from self._made(batches[start:stop], lengths)
            start = stop

    def _planned_together(self, steps_of_part: Sequence[int]) -> Iterator[list[int]]:
        together: list[int] = []
        for num_steps in steps_of_part:
            if together and (sum(together) + num_steps) * self._samples_per_step > _CHUNK:
                yield together
                together = []
            together.append(num_steps)
        yield together

    def _made(self, batches: _Integers, lengths: Sequence[int]) -> Iterator[StepGroup]:
        num_parts, num_ranks = len(lengths), self._num_ranks
        part_of_step: _Integers = np.repeat(np.arange(num_parts), lengths)
        found = _ShardVisits(len(self._spanner.starts))
        samples_of_part = np.zeros(num_parts, np.int64)
        for piece in _pieces(len(batches), self._samples_per_step):
            ids = self._plan.global_batches(batches[piece])
            if self._skips.has_samples:
                ids = self._skips.without(ids)
            is_read = ids >= 0
            groups = part_of_step[piece, None] * num_ranks + np.arange(num_ranks)
            read = ids[is_read]
            shards = self._spanner.shards(read)
            found.add(np.broadcast_to(groups[:, :, None], ids.shape)[is_read], shards)
            np.add.at(samples_of_part, part_of_step[piece], is_read.sum(axis=2).max(axis=1))
            if self._count is not None:
                self._count(read)
        edges = np.searchsorted(found.groups, np.arange(num_parts * num_ranks + 1))
        for part, num_samples in enumerate(samples_of_part.tolist()):
            own = edges[part * num_ranks : (part + 1) * num_ranks + 1]
            by_rank = _ByRank(found.shards[own[0] : own[-1]].copy(), own - own[0])
            yield StepGroup(lengths[part], num_samples, by_rank)


class _ByRank(Sequence[_Integers]):
    """For each rank, its shards: slices of one array, because an array for each rank takes more memory."""

    def __init__(self, shards: _Integers, edges: _Integers) -> None:
        self._shards = shards
        self._edges = edges

    def __len__(self) -> int:
        return len(self._edges) - 1

    @overload
    def __getitem__(self, rank: int) -> _Integers: ...
    @overload
    def __getitem__(self, rank: slice) -> list[_Integers]: ...
    def __getitem__(self, rank: int | slice) -> _Integers | list[_Integers]:
        if isinstance(rank, slice):
            return [self[index] for index in range(*rank.indices(len(self)))]
        index = range(len(self))[rank]
        return self._shards[self._edges[index] : self._edges[index + 1]]


class _ShardVisits:
    """The shards that groups of samples are in, each once, in the order of a group's samples.

    Attributes:
        groups: The groups, in their order, once for each of their shards.
        shards: The shards.
    """

    def __init__(self, num_shards: int) -> None:
        self._num_shards = num_shards
        self.groups: _Integers = np.zeros(0, np.int64)
        self.shards: _Integers = np.zeros(0, np.int64)

    def add(self, groups: _Integers, shards: _Integers) -> None:
        """Add the groups and shards of samples. Those of one group come in their order."""
        groups = np.concatenate([self.groups, groups])
        shards = np.concatenate([self.shards, shards])
        if not len(groups):
            return
        num_bits = len(groups).bit_length()
        keys = groups * self._num_shards + shards
        if int(keys.max()).bit_length() + num_bits > _MOST_BITS:
            _, firsts = np.unique(keys, return_index=True)
        else:
            # Sorting numbers is many times faster than sorting their places.
            keys = np.sort((keys << num_bits) | np.arange(len(keys)))
            is_first = np.diff(keys >> num_bits, prepend=-1) > 0
            firsts = keys[is_first] & ((1 << num_bits) - 1)
        firsts = firsts[np.lexsort((firsts, groups[firsts]))]
        self.groups, self.shards = groups[firsts], shards[firsts]


class _Lengths:
    """The numbers of steps that are read together: one at first, then twice as many each time, within a chunk."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._next = 1

    def of(self, num_steps: int) -> list[int]:
        """Return the lengths of the parts of the next chunk. They add up to ``num_steps``."""
        found: list[int] = []
        while num_steps > 0:
            found.append(min(self._next, num_steps))
            num_steps -= found[-1]
            self._next = min(2 * self._next, self._most)
        return found
