"""A rank's view of a dataset: the items that belong to the rank, by index."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Literal, Self, TypeVar

from torch.utils.data import Dataset

from fkat_data.arguments import boolean, choice, integer
from fkat_data.datasets.dataset_state import base_state, checked_state, is_foreign, load_base_state
from fkat_data.datasets.item_index import counted_from_start, is_map_style, items_at
from fkat_data.errors import ConfigurationError
from fkat_data.interruption import genuine
from fkat_data.wording import Described

_Item_co = TypeVar("_Item_co", covariant=True)
_STATE_VERSION = 1
#: Fields that a state of d9d does not have, and the names of others there.
_NOT_IN_D9D = frozenset({"version", "indexing_mode", "pad_to_equal_size_across_shards"})
_FROM_D9D = {"dataset": "base_dataset"}


class ShardIndexingMode(StrEnum):
    """How items are assigned to views.

    Attributes:
        sequential: In turn: the second of four views has items 1, 5, 9, …
        chunked: In blocks: the second of four views of 14 items has items 4, 5, 6, 7, and the last one 12, 13.
    """

    sequential = "sequential"
    chunked = "chunked"


class ShardedDataset(Described, Dataset[_Item_co]):
    """One rank's view of a dataset.

    With padding, each view has ``ceil(items / total_shards)`` items: missing ones repeat the dataset's last item, so
    that all ranks take the same number of steps. Without padding, the views are disjoint and together have every item
    once; with fewer items than views, some views are empty.

    Args:
        dataset: Any map-style dataset. Its length is read on each access, because it may grow.
        total_shards: Number of views, at least 1: the number of data-parallel ranks.
        current_shard: Index of this view, from 0 to ``total_shards - 1``.
        indexing_mode: How items are assigned to views, as ``ShardIndexingMode`` or its name.
        pad_to_equal_size_across_shards: Whether to give all views the same length.

    Raises:
        ConfigurationError: An argument is invalid.
    """

    def __init__(
        self,
        dataset: Dataset[_Item_co],
        total_shards: int,
        current_shard: int,
        indexing_mode: ShardIndexingMode | Literal["sequential", "chunked"],
        pad_to_equal_size_across_shards: bool,
    ) -> None:
        if not is_map_style(dataset):
            raise ConfigurationError("dataset", dataset, "a dataset with __len__() and __getitem__(index)")
        self._dataset: Any = dataset
        self._total_shards = integer("total_shards", total_shards, minimum=1)
        self._current_shard = integer("current_shard", current_shard, minimum=0, maximum=self._total_shards - 1)
        self._indexing_mode = ShardIndexingMode(choice("indexing_mode", indexing_mode, list(ShardIndexingMode)))
        self._is_padded = boolean("pad_to_equal_size_across_shards", pad_to_equal_size_across_shards)

    def _repr_facts(self) -> Iterable[tuple[str, object]]:
        return [
            ("current_shard", self._current_shard),
            ("total_shards", self._total_shards),
            ("indexing_mode", self._indexing_mode.value),
            ("dataset", self._dataset),
        ]

    @classmethod
    def from_mesh(
        cls,
        dataset: Dataset[_Item_co],
        device_mesh: Any,
        dim: str = "dp",
        indexing_mode: ShardIndexingMode | Literal["sequential", "chunked"] = ShardIndexingMode.sequential,
        pad_to_equal_size_across_shards: bool = True,
    ) -> Self:
        """Return this process's view by its rank along one dimension of a ``torch.distributed`` device mesh.

        Args:
            dataset: As in the constructor.
            device_mesh: A ``DeviceMesh`` with named dimensions.
            dim: Name of the data-parallel dimension, which may be a flattened one.
            indexing_mode: As in the constructor.
            pad_to_equal_size_across_shards: As in the constructor.

        Raises:
            ConfigurationError: The mesh has no such dimension, or another argument is invalid.
        """
        names = getattr(device_mesh, "mesh_dim_names", None)
        if not names:
            raise ConfigurationError("device_mesh", device_mesh, "a DeviceMesh with named dimensions")
        try:
            along = device_mesh[dim]
            total_shards, current_shard = int(along.size()), int(along.get_local_rank())
        except genuine(KeyError, RuntimeError, TypeError) as error:
            raise ConfigurationError("dim", dim, f"a dimension of the mesh, one of {names}: {error}") from error
        return cls(dataset, total_shards, current_shard, indexing_mode, pad_to_equal_size_across_shards)

    @property
    def dataset(self) -> Dataset[_Item_co]:
        """The dataset that this is a view of."""
        return self._dataset

    def __len__(self) -> int:
        length = len(self._dataset)
        whole = -(-length // self._total_shards)
        if self._is_padded:
            return whole
        if self._indexing_mode is ShardIndexingMode.sequential:
            return -(-(length - self._current_shard) // self._total_shards) if length > self._current_shard else 0
        return min(whole, max(0, length - self._current_shard * whole))

    def __getitem__(self, index: int) -> _Item_co:
        return self._dataset[self._indices([index])[0]]

    def __getitems__(self, indices: Sequence[int]) -> list[_Item_co]:
        """Return the items at ``indices``, in one call of the dataset if it has ``__getitems__``.

        Raises:
            IndexError: An index is out of range.
        """
        return items_at(self._dataset, self._indices(indices))

    def state_dict(self) -> dict[str, Any]:
        """Return the view's settings as plain values, and the dataset's state if it has one."""
        return {
            "version": _STATE_VERSION,
            "total_shards": self._total_shards,
            "current_shard": self._current_shard,
            "indexing_mode": self._indexing_mode.value,
            "pad_to_equal_size_across_shards": self._is_padded,
            **base_state(self._dataset),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that the state belongs to this view, and restore the dataset's state.

        A state of d9d's ``ShardedDataset`` belongs to this view if it has its ``total_shards`` and ``current_shard``:
        it has no ``indexing_mode`` and no padding.

        Raises:
            StateMismatchError: The state belongs to another view.
        """
        present = self.state_dict()
        if is_foreign(state_dict, "total_shards"):
            present = {name: value for name, value in present.items() if name not in _NOT_IN_D9D}
            state_dict = {_FROM_D9D.get(name, name): value for name, value in state_dict.items()}
        load_base_state(self._dataset, checked_state(state_dict, present))

    def set_epoch(self, epoch: int) -> None:
        """Call ``set_epoch`` of the dataset if it has one."""
        set_base_epoch = getattr(self._dataset, "set_epoch", None)
        if callable(set_base_epoch):
            set_base_epoch(epoch)

    def _indices(self, indices: Sequence[int]) -> list[int]:
        own, length = len(self), len(self._dataset)
        if self._indexing_mode is ShardIndexingMode.sequential:
            first, step = self._current_shard, self._total_shards
        else:
            first, step = self._current_shard * -(-length // self._total_shards), 1
        return [min(first + step * counted_from_start(index, own), length - 1) for index in indices]
