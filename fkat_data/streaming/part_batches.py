"""The batches of a part of an epoch, made where the part has travelled to."""

from collections.abc import Callable, Iterator
from typing import Any

from fkat_data.streaming.batch_maker import batch_maker
from fkat_data.streaming.stream_plan import StreamPart, batches_together

__all__ = ["PartBatches"]


class PartBatches:
    """Makes any batch of a part; those that follow on one another are read together.

    Args:
        dataset: The ``StreamingDataset``.
        collate: Makes a batch of samples.
        part: The part.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any], part: StreamPart) -> None:
        self._make = batch_maker(dataset, collate)
        self._part = part
        self._most_together = batches_together(dataset, dataset.batch_size)
        self._together = part.num_together
        self._next = part.first
        self._made: Iterator[Any] = iter(())
        self._num_left = 0

    @property
    def is_plain(self) -> bool:
        """Whether no code of a user's makes them, so that nothing is drawn."""
        return self._part.is_plain

    @property
    def num_microbatches(self) -> int:
        """The number behind that of the part's last batch."""
        return len(self._part)

    def microbatch(self, index: int) -> Any:
        """Return a batch by its number in the epoch; fast where the number is the one behind the last.

        Raises:
            Exception: What reading its samples raises, or the user's.
        """
        if index != self._next:
            self._together, self._num_left = 1, 0
        if not self._num_left:
            stop = min(index + self._together, len(self._part))
            self._made = iter(self._make([self._part.batch(number) for number in range(index, stop)]))
            self._num_left = stop - index
            self._together = min(2 * self._together, self._most_together)
        # Where this fails, the next call makes the batch again.
        num_left, self._num_left, self._next = self._num_left, 0, index
        batch = next(self._made)
        self._next, self._num_left = index + 1, num_left - 1
        return batch
