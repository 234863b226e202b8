"""Compute which rank reads which shards when, from the order of a configuration."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fkat_data.streaming.epoch import Epochs, ResumePoint, SampleSkips
from fkat_data.streaming.order import Plan, Spanner

_Integers = npt.NDArray[np.int64]

#: Samples to plan at once.
_CHUNK = 1 << 19


class Part(NamedTuple):
    """Steps whose samples each rank reads together.

    Attributes:
        num_steps: The number of steps.
        num_samples: The number of samples that each rank reads.
        shards: The shards of all ranks: of each rank, those that it reads, in the order of their numbers.
        edges: Where each rank's shards begin, and where the last one's end.
    """

    num_steps: int
    num_samples: int
    shards: _Integers
    edges: _Integers

    def of(self, rank: int) -> list[int]:
        """Return the shards that a rank reads."""
        return self.shards[self.edges[rank] : self.edges[rank + 1]].tolist()


class Needs:
    """The shards that the ranks of a run need, epoch by epoch. Replicated ranks count as one.

    Args:
        epochs: The configuration of the order.
        spanner: Where the shards begin.
        skips: The samples and batches that are not delivered, none if the run starts within an epoch.
        batches_together: The number of batches that a rank reads at once, at most: an epoch begins with one, then two,
            then four, ...
        batches_per_chunk: Batches of different chunks are never read at once.
        count: Called with the ids of the delivered samples, part by part.
    """

    def __init__(
        self,
        epochs: Epochs,
        spanner: Spanner,
        skips: SampleSkips,
        batches_together: int,
        batches_per_chunk: int,
        count: Callable[[_Integers], None] | None = None,
    ) -> None:
        self._epochs = epochs
        self._spanner = spanner
        self._skips = skips
        self._most = batches_together
        self._chunk = batches_per_chunk
        self._count = count

    def by_epoch(self, start: ResumePoint, num_steps: int | None, num_epochs: int | None) -> Iterator[list[Part]]:
        """Yield the parts of each epoch from a place on, for a number of steps or epochs.

        Raises:
            ConfigurationError: An epoch cannot be planned.
        """
        num_left, number = num_steps, 0
        while num_left != 0 and number != num_epochs:
            point = self._epochs.settled(start if not number else ResumePoint(start.epoch + number))
            parts = list(self._parts(self._epochs.plan(point), point.epoch, num_left))
            if not parts:
                return
            yield parts
            number += 1
            num_left = None if num_left is None else num_left - sum(part.num_steps for part in parts)

    def _parts(self, plan: Plan, epoch: int, num_wanted: int | None) -> Iterator[Part]:
        together, num_batches = 1, plan.batching.num_even_batches
        for start in range(0, num_batches, self._chunk):
            batches = np.arange(start, min(start + self._chunk, num_batches))
            batches = self._delivered(plan, epoch, batches)[:num_wanted]
            num_wanted = None if num_wanted is None else num_wanted - len(batches)
            lengths: list[int] = []
            while sum(lengths) < len(batches):
                lengths.append(min(together, len(batches) - sum(lengths)))
                together = min(2 * together, self._most)
            # Planning many samples together is faster, and planning all of them takes too much memory.
            size = max(1, _CHUNK // (plan.grid.global_batch_size * self._most))
            for first in range(0, len(lengths), size):
                some = lengths[first : first + size]
                yield from self._read(plan, batches[: sum(some)], some)
                batches = batches[sum(some) :]
            if num_wanted == 0:
                return

    def _delivered(self, plan: Plan, epoch: int, batches: _Integers) -> _Integers:
        batches = batches[~self._skips.is_skipped(epoch, batches)]
        if not self._skips.has_samples:
            return batches
        ids = self._skips.without(plan.global_batches(batches))
        # Where skips leave a rank no sample of a batch, no rank gets it.
        return batches[(ids >= 0).sum(axis=2).min(axis=1, initial=1) > 0]

    def _read(self, plan: Plan, batches: _Integers, lengths: list[int]) -> Iterator[Part]:
        num_ranks, num_shards = plan.grid.num_ranks, len(self._spanner.starts)
        ids = self._skips.without(plan.global_batches(batches))
        is_read = ids >= 0
        if self._count is not None:
            self._count(ids[is_read])
        readers = np.repeat(np.arange(len(lengths)), lengths)[:, None] * num_ranks + np.arange(num_ranks)
        readers = np.broadcast_to(readers[:, :, None], ids.shape)[is_read]
        visits = np.unique(readers * num_shards + self._spanner.shards(ids[is_read]))
        edges = np.searchsorted(visits, np.arange(len(lengths) * num_ranks + 1) * num_shards)
        most_samples = np.add.reduceat(is_read.sum(axis=2).max(axis=1), np.cumsum([0, *lengths[:-1]]))
        for part, num_samples in enumerate(most_samples.tolist()):
            own = edges[part * num_ranks : (part + 1) * num_ranks + 1]
            yield Part(lengths[part], num_samples, visits[own[0] : own[-1]] % num_shards, own - own[0])
