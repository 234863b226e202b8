"""Which rank opens which shard when: the order of a configuration, without its samples."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fkat_data.streaming.epochs import Epochs
from fkat_data.streaming.order.epoch import EpochPlan
from fkat_data.streaming.order.spanner import Spanner
from fkat_data.streaming.place import Place
from fkat_data.streaming.simulation.setup import Setup
from fkat_data.streaming.skips import Skips

__all__ = ["EpochNeeds", "Opening", "Part", "needs_of"]

_Integers = npt.NDArray[np.int64]

#: Samples that are planned together: where that is cheap, and where each time costs a walk through the epoch.
_CHUNK = 1 << 19
_LARGE_CHUNK = 1 << 24


class Opening(NamedTuple):
    """Shards that a rank opens for a part: those that it has not open already, in the order of need."""

    rank: int
    shards: tuple[int, ...]


class Part(NamedTuple):
    """Steps whose samples each rank reads at once.

    Attributes:
        num_steps: How many.
        num_samples: What each rank reads.
        openings: By rank; ranks that open nothing are left out.
    """

    num_steps: int
    num_samples: int
    openings: tuple[Opening, ...]


@dataclass(frozen=True)
class EpochNeeds:
    """What an epoch needs.

    Attributes:
        epoch: The epoch.
        is_whole: Whether these are all its steps.
        parts: One after the other.
    """

    epoch: int
    is_whole: bool
    parts: tuple[Part, ...]

    @property
    def num_steps(self) -> int:
        """Steps of all parts."""
        return sum(part.num_steps for part in self.parts)


def needs_of(epochs: Epochs, spanner: Spanner, skips: Skips, setup: Setup) -> list[EpochNeeds]:
    """Return what the ranks of a run need, epoch by epoch. Ranks are those of the order: replicated ones are one.

    Args:
        epochs: What the configuration says of the order.
        spanner: Where the shards begin.
        skips: What is not delivered.
        setup: The run.

    Raises:
        ConfigurationError: The epoch cannot be planned.
    """
    found: list[EpochNeeds] = []
    num_left = setup.num_steps
    open_shards = _OpenShards(epochs.grid().num_ranks, len(spanner.starts), setup.most_open)
    while num_left != 0 and (setup.num_epochs is None or len(found) < setup.num_epochs):
        place = epochs.settled(Place(len(found)))
        plan = epochs.plan(place)
        if setup.workers_per_rank:
            # A DataLoader starts its workers anew in each epoch.
            open_shards.close()
        rows = _rows(plan, place.epoch, skips, setup, num_left)
        parts = tuple(part for ids in rows for part in _parts(ids, spanner, open_shards, setup))
        num_steps = sum(part.num_steps for part in parts)
        is_whole = num_left is None or num_steps < num_left or num_steps == plan.batching.num_even_batches
        found.append(EpochNeeds(place.epoch, is_whole, parts))
        if not num_steps:
            break
        num_left = None if num_left is None else num_left - num_steps
    return found


def _rows(plan: EpochPlan, epoch: int, skips: Skips, setup: Setup, num_wanted: int | None) -> Iterator[_Integers]:
    """Yield what is delivered: sample ids by step, rank and sample; a multiple of what is read at once, or the end."""
    num_batches = plan.batching.num_even_batches
    samples = _CHUNK if plan.is_cheap else _LARGE_CHUNK
    unit = setup.batches_per_chunk or setup.batches_together
    size = max(1, samples // (plan.grid.global_batch_size * unit)) * unit
    if num_wanted is not None and not skips:
        num_batches = min(num_batches, num_wanted)
    num_given = 0
    for start in range(0, num_batches, size):
        indices = np.arange(start, min(start + size, num_batches))
        indices = indices[~skips.is_skipped(epoch, indices)]
        ids = plan.global_batches(indices)
        if skips.has_samples:
            ids = skips.without(ids)
            ids = ids[(ids >= 0).sum(axis=2).min(axis=1, initial=1) > 0]
        if num_wanted is not None:
            ids = ids[: num_wanted - num_given]
        num_given += len(ids)
        if len(ids):
            yield ids
        if num_given == num_wanted:
            return


def _parts(ids: _Integers, spanner: Spanner, open_shards: "_OpenShards", setup: Setup) -> Iterator[Part]:
    num_steps, num_ranks, _ = ids.shape
    steps = np.arange(num_steps)
    starts = (steps % (setup.batches_per_chunk or num_steps)) % setup.batches_together == 0
    part_of_step = np.cumsum(starts) - 1
    num_parts = int(part_of_step[-1]) + 1
    is_read = ids >= 0
    groups = np.broadcast_to((part_of_step[:, None] * num_ranks + np.arange(num_ranks))[:, :, None], ids.shape)[is_read]
    shards, _ = spanner.locate(ids[is_read])
    num_shards = len(spanner.starts)
    keys, firsts = np.unique(groups * num_shards + shards, return_index=True)
    groups, shards = np.divmod(keys, num_shards)
    in_order = np.lexsort((firsts, groups))
    openings: list[list[Opening]] = [[] for _ in range(num_parts)]
    for group, opened in open_shards.opened(groups[in_order], shards[in_order], num_ranks):
        part, rank = divmod(group, num_ranks)
        openings[part].append(Opening(rank, opened))
    steps_of_part = np.bincount(part_of_step, minlength=num_parts).tolist()
    samples_of_step = is_read.sum(axis=2).max(axis=1)
    samples_of_part = np.bincount(part_of_step, samples_of_step, minlength=num_parts).astype(np.int64).tolist()
    for number, samples, opened in zip(steps_of_part, samples_of_part, openings, strict=True):
        yield Part(number, samples, tuple(opened))


class _OpenShards:
    """Which shards the ranks have open; the one that was not used for the longest time is closed for another."""

    def __init__(self, num_ranks: int, num_shards: int, most_open: int) -> None:
        self._most_open = most_open
        self._num_shards = num_shards
        # Where all shards may be open at a time, there is nothing to close.
        self._has_opened = np.zeros((num_ranks, num_shards), bool) if num_shards <= most_open else None
        self._open: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(num_ranks)]

    def close(self) -> None:
        """Close all."""
        if self._has_opened is not None:
            self._has_opened[:] = False
        for shards in self._open:
            shards.clear()

    def opened(self, groups: _Integers, shards: _Integers, num_ranks: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield what each group opens, groups being parts by ranks in the order of their numbers."""
        if self._has_opened is not None:
            ranks = groups % num_ranks
            is_new = ~self._has_opened[ranks, shards]
            groups, shards, ranks = groups[is_new], shards[is_new], ranks[is_new]
            _, firsts = np.unique(ranks * self._num_shards + shards, return_index=True)
            firsts.sort()
            groups, shards = groups[firsts], shards[firsts]
            self._has_opened[groups % num_ranks, shards] = True
        edges = np.flatnonzero(np.diff(groups, prepend=-1)).tolist()
        for start, stop in zip(edges, [*edges[1:], len(groups)], strict=True):
            group, visited = int(groups[start]), shards[start:stop].tolist()
            opened = visited if self._has_opened is not None else self._visit(group % num_ranks, visited)
            if opened:
                yield group, tuple(opened)

    def _visit(self, rank: int, visited: list[int]) -> list[int]:
        shards = self._open[rank]
        opened: list[int] = []
        for shard in visited:
            if shard in shards:
                shards.move_to_end(shard)
                continue
            opened.append(shard)
            shards[shard] = None
            if len(shards) > self._most_open:
                shards.popitem(last=False)
        return opened
