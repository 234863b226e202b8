"""A rank's batches of an epoch, in their order, without what must not be delivered."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fkat_data.streaming.epoch.resume_point import ResumePoint
from fkat_data.streaming.epoch.skips import SampleSkips
from fkat_data.streaming.order.plan import Plan

__all__ = ["RankBatches", "batches_in_chunk"]

_Integers = npt.NDArray[np.int64]

#: Samples that are planned together where a plan is cheap: what that needs stays in the processor's cache.
_CHUNK = 8192


class RankBatches:
    """What a rank reads of the rest of an epoch.

    A global batch of which a rank would have nothing left is left out on every rank, so that all have equally many.

    Args:
        plan: The rest of the epoch.
        place: Where it begins.
        rank: The rank.
        skips: What must not be delivered.
    """

    def __init__(self, plan: Plan, place: ResumePoint, rank: int, skips: SampleSkips) -> None:
        self._plan = plan
        self._place = place
        self._rank = rank
        self._skips = skips
        # Global batches are counted from the start of the epoch.
        self._first_batch = place.sample_in_epoch // plan.grid.global_batch_size

    def chunks(self, first: int = 0, part: int = 0, num_parts: int = 1) -> Iterator[tuple[_Integers, list[_Integers]]]:
        """Yield batches, some at a time: their indices among the plan's, and the ids of each batch's samples.

        Args:
            first: Delivered batches to step over.
            part: Which batches of those delivered: of 0, 1, 2, ... those that leave this rest.
            num_parts: When divided by this.
        """
        num_batches = self._plan.batching.num_even_batches
        together = batches_in_chunk(self._plan.grid.batch_size)
        step = together * num_parts if self._plan.is_cheap else num_batches
        # Where nothing is left out, what is stepped over need not be looked at.
        index = delivered = 0 if self._skips else min(first, num_batches)
        while index < num_batches:
            indices = np.arange(index, min(index + step, num_batches))
            index += step
            indices, ids = self._kept(indices)
            ordinals = delivered + np.arange(len(indices))
            delivered += len(indices)
            mine = (ordinals >= first) & (ordinals % num_parts == part)
            indices = indices[mine]
            own = self._plan.rank_batches(self._rank, indices) if ids is None else ids[mine]
            for start in range(0, len(indices), together):
                stop = start + together
                yield indices[start:stop], [batch[batch >= 0] for batch in own[start:stop]]

    def is_short(self, index: int) -> bool:
        """Return whether a batch of the plan has fewer samples than others on every rank, as the last may have."""
        batching = self._plan.batching
        return batching.num_rank_samples(index + 1) - batching.num_rank_samples(index) < self._plan.grid.batch_size

    def place_after(self, index: int) -> int:
        """Return ``sample_in_epoch`` once a batch of the plan has been delivered."""
        return self._place.sample_in_epoch + self._plan.batching.num_rank_samples(index + 1) * self._plan.grid.num_ranks

    def _kept(self, indices: _Integers) -> tuple[_Integers, _Integers | None]:
        """Return the batches that are delivered, and this rank's samples where they had to be looked at."""
        indices = indices[~self._skips.is_skipped(self._place.epoch, self._first_batch + indices)]
        if not self._skips.has_samples:
            return indices, None
        ids = self._skips.without(self._plan.global_batches(indices))
        is_kept = (ids >= 0).sum(axis=2).min(axis=1, initial=1) > 0
        return indices[is_kept], ids[is_kept, self._rank]


def batches_in_chunk(batch_size: int) -> int:
    """Return how many batches are planned, and yielded, together."""
    return max(1, _CHUNK // batch_size)
