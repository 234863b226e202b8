"""The count of what one iteration of a streaming dataset has delivered."""

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from fkat_data.streaming.epoch.rank_batches import RankBatches
from fkat_data.streaming.epoch.shared_resume import ResumePoint


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
