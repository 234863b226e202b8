"""Make batches of the samples that a ``StreamingDataLoader`` picks: column by column, or by a collate function."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch.utils import data

from fkat_data.sample_errors import collated
from fkat_data.streaming.epoch.rank_batches import PickedSamples
from fkat_data.streaming.reading.open_shards import own_array
from fkat_data.streaming.stream_plan import StreamPart, batches_together, is_plain

if TYPE_CHECKING:
    from fkat_data.streaming.dataset import StreamingDataset


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

    def rest(self, first: int) -> Iterator[Any]:
        """Yield the batches from a number on, read together; where one fails, those before it come first.

        Raises:
            Exception: What reading their samples raises, or the user's.
        """
        return iter(self._make([self._part.batch(number) for number in range(first, len(self._part))]))

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


def batch_maker(
    dataset: "StreamingDataset", collate: Callable[[list[Any]], Any]
) -> Callable[[Sequence[PickedSamples]], Iterable[Any]]:
    """Return what makes the batches of some picks; where a batch fails, those before it come first."""
    if is_plain(dataset, collate):
        return lambda batches: dataset.collated([picks.ids for picks in batches])
    return lambda batches: _Collated(dataset, collate_of_samples(collate), batches)


def collate_of_samples(
    collate: Callable[[list[Any]], Any], default: Callable[[Any], Any] | None = None
) -> Callable[[list[Any]], Any]:
    """Return a collate function for samples whose arrays may be read-only, as views of a shard are: torch warns of them.

    Args:
        collate: The user's, or torch's.
        default: Does what torch's does; None: torch's itself.
    """
    if collate is not data.default_collate:
        return collate
    stack = default or collated
    return lambda samples: stack([_writable(sample) for sample in samples])


def _writable(sample: Any) -> Any:
    if type(sample) is dict:
        return {name: own_array(value) for name, value in cast("dict[Any, Any]", sample).items()}
    if type(sample) in (list, tuple):
        return type(sample)(map(own_array, sample))
    return own_array(sample)


class _Collated(Sequence[Any]):
    """Batches that a function makes from samples, one when it is indexed."""

    def __init__(
        self, dataset: "StreamingDataset", collate: Callable[[list[Any]], Any], batches: Sequence[PickedSamples]
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: Any) -> Any:
        return self._collate(list(self._dataset.picked(cast("PickedSamples", self._batches[index]))))
