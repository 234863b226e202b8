"""Make batches of the samples that a ``StreamingDataLoader`` picks: column by column, or by a collate function."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch.utils import data

from fkat_data.misfit import collated
from fkat_data.streaming.epoch.rank_batches import PickedSamples
from fkat_data.streaming.reading.open_shards import own_array
from fkat_data.streaming.stream_plan import is_plain

if TYPE_CHECKING:
    from fkat_data.streaming.dataset import StreamingDataset

__all__ = ["batch_maker", "collate_of_samples"]


def batch_maker(
    dataset: "StreamingDataset", collate: Callable[[list[Any]], Any]
) -> Callable[[Sequence[PickedSamples]], Iterable[Any]]:
    """Return what makes the batches of some picks; where a batch fails, those before it come first."""
    if is_plain(dataset, collate):
        return lambda batches: dataset.collated([picks.ids for picks in batches])
    return lambda batches: _Collated(dataset, collate_of_samples(collate), batches)


def collate_of_samples(collate: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Return a collate function for samples whose arrays may be read-only."""
    return _collate_copies if collate is data.default_collate else collate


def _collate_copies(samples: list[Any]) -> Any:
    """Collate as torch does, which warns about arrays that are read-only, as views of a shard are."""
    return collated([_writable(sample) for sample in samples])


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
