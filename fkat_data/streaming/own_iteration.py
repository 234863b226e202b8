"""Batches of a dataset whose subclass has an ``__iter__`` of its own, and where a resume goes on after each."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset

from fkat_data.errors import FkatDataError
from fkat_data.streaming.handed_out import BatchEnd
from fkat_data.tracebacks import OF_WORKER, folded_text

__all__ = ["FailedBatch", "IteratedBatch", "IteratedBatches"]


class FailedBatch(NamedTuple):
    """The error of a worker, delivered instead of its batch."""

    error: FkatDataError

    @classmethod
    def of(cls, error: FkatDataError) -> "FailedBatch":
        """Return the error with the worker's traceback. torch cannot rebuild an error with several arguments."""
        if text := folded_text(error):
            error.add_note(f"{OF_WORKER}\n{text}")
        return cls(error)


class IteratedBatch(NamedTuple):
    """A batch of what an ``__iter__`` yielded.

    Attributes:
        made: The batch.
        num_samples: Samples in it.
        end: The batch of the order that it is; None where ``__iter__`` does not yield one sample for each that
            ``StreamingDataset.__iter__`` handed to it.
    """

    made: Any
    num_samples: int
    end: BatchEnd | None


class IteratedBatches(IterableDataset[Any]):
    """Iterates over a dataset by its own ``__iter__``, and cuts what comes into batches.

    A sample for each that was handed out gives the batches of the order. Anything else is cut by the batch size alone.

    Args:
        dataset: A ``StreamingDataset``.
        collate: Makes a batch of samples.
        batch_size: Samples of a batch.
        drop_last: Whether to drop a short batch at the end.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any], batch_size: int, *, drop_last: bool) -> None:
        self._dataset = dataset
        self._collate = collate
        self._batch_size = batch_size
        self._drop_last = drop_last

    def __iter__(self) -> Iterator["IteratedBatch | FailedBatch"]:
        """Begin the next epoch, or whatever the dataset's ``__iter__`` begins."""
        try:
            yield from self._batches()
        except FkatDataError as error:
            yield FailedBatch.of(error)

    def _batches(self) -> Iterator[IteratedBatch]:
        dataset = self._dataset
        samples: list[Any] = []
        handed_out, num_yielded, is_in_step = None, 0, True
        dataset.handed_out = None
        for sample in dataset:
            if dataset.handed_out is not handed_out:
                is_in_step = is_in_step and not samples
                handed_out, num_yielded = dataset.handed_out, 0
            samples.append(sample)
            num_yielded += 1
            is_in_step = is_in_step and handed_out is not None and handed_out.num_samples == num_yielded
            end = handed_out.batch_end() if is_in_step and handed_out is not None else None
            if end is None and len(samples) < self._batch_size:
                continue
            if not (self._drop_last and end is not None and end.is_short):
                yield IteratedBatch(self._collate(samples), len(samples), end)
            samples = []
            is_in_step = end is not None
        if samples and not self._drop_last:
            yield IteratedBatch(self._collate(samples), len(samples), None)
