"""A rank's view of a dataset: the items that are its own, by index."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Self, TypeVar

from torch.utils.data import Dataset

from fkat_data.arguments import boolean, choice, integer
from fkat_data.datasets.dataset_state import checked_state, load_state_below, state_below
from fkat_data.datasets.item_index import counted_from_start, is_map_style, items_at
from fkat_data.errors import ConfigurationError

__all__ = ["ShardIndexingMode", "ShardedDataset"]

_Item_co = TypeVar("_Item_co", covariant=True)
_STATE_VERSION = 1


class ShardIndexingMode(StrEnum):
    """Which items a view has.

    Attributes:
        sequential: In turn: the second of four views has 1, 5, 9, …
        chunked: A block: the second of four views of 14 items has 4, 5, 6, 7, and the last one 12, 13.
    """

    sequential = "sequential"
    chunked = "chunked"


class ShardedDataset(Dataset[_Item_co]):
    """The part of a dataset that one of several ranks sees.

    With padding, each view has ``ceil(items / total_shards)`` items, and the dataset's last item stands where its own
    have run out: ranks take equally many steps. Without, the views are disjoint and together have every item once;
    with fewer items than views, some are empty.

    Args:
        dataset: Any dataset with a length; it is asked for it each time, as it may grow.
        total_shards: Number of views, at least 1: the number of data-parallel ranks.
        current_shard: This view, from 0 to ``total_shards - 1``.
        indexing_mode: Which items a view has, as ``ShardIndexingMode`` or as text.
        pad_to_equal_size_across_shards: Whether all views are equally long.

    Raises:
        ConfigurationError: An argument is none of these.
    """

    def __init__(
        self,
        dataset: Dataset[_Item_co],
        total_shards: int,
        current_shard: int,
        indexing_mode: ShardIndexingMode | str,
        pad_to_equal_size_across_shards: bool,
    ) -> None:
        if not is_map_style(dataset):
            raise ConfigurationError("dataset", dataset, "a dataset with __len__() and __getitem__(index)")
        self._dataset: Any = dataset
        self._total_shards = integer("total_shards", total_shards, minimum=1)
        self._current_shard = integer("current_shard", current_shard, minimum=0, maximum=self._total_shards - 1)
        self._indexing_mode = ShardIndexingMode(choice("indexing_mode", indexing_mode, list(ShardIndexingMode)))
        self._is_padded = boolean("pad_to_equal_size_across_shards", pad_to_equal_size_across_shards)

    @classmethod
    def from_mesh(
        cls,
        dataset: Dataset[_Item_co],
        device_mesh: Any,
        dim: str = "dp",
        indexing_mode: ShardIndexingMode | str = ShardIndexingMode.sequential,
        pad_to_equal_size_across_shards: bool = True,
    ) -> Self:
        """Return this process's view by its place along one dimension of a ``torch.distributed`` device mesh.

        Args:
            dataset: As in the constructor, and so are the last two.
            device_mesh: A ``DeviceMesh`` with names.
            dim: The name of the data-parallel dimension, which may be a flattened one.
            indexing_mode: See the constructor.
            pad_to_equal_size_across_shards: See the constructor.

        Raises:
            ConfigurationError: The mesh has no such dimension, or another argument is wrong.
        """
        names = getattr(device_mesh, "mesh_dim_names", None)
        if not names:
            raise ConfigurationError("device_mesh", device_mesh, "a DeviceMesh whose dimensions have names")
        try:
            along = device_mesh[dim]
            total_shards, current_shard = int(along.size()), int(along.get_local_rank())
        except (KeyError, RuntimeError, TypeError) as error:
            raise ConfigurationError("dim", dim, f"a dimension of the mesh, which has {names}: {error}") from error
        return cls(dataset, total_shards, current_shard, indexing_mode, pad_to_equal_size_across_shards)

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
            IndexError: There is no such item.
        """
        return items_at(self._dataset, self._indices(indices))

    def state_dict(self) -> dict[str, Any]:
        """Return which view this is as plain values, and the dataset's state if it keeps one."""
        return {
            "version": _STATE_VERSION,
            "total_shards": self._total_shards,
            "current_shard": self._current_shard,
            "indexing_mode": self._indexing_mode.value,
            "pad_to_equal_size_across_shards": self._is_padded,
            **state_below(self._dataset),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that the state is this view's, and set the dataset below to its own.

        Raises:
            StateMismatchError: It is another view's.
        """
        load_state_below(self._dataset, checked_state(state_dict, self.state_dict()))

    def set_epoch(self, epoch: int) -> None:
        """Tell the dataset below, if it has ``set_epoch``."""
        tell = getattr(self._dataset, "set_epoch", None)
        if callable(tell):
            tell(epoch)

    def _indices(self, indices: Sequence[int]) -> list[int]:
        own, length = len(self), len(self._dataset)
        if self._indexing_mode is ShardIndexingMode.sequential:
            first, step = self._current_shard, self._total_shards
        else:
            first, step = self._current_shard * -(-length // self._total_shards), 1
        return [min(first + step * counted_from_start(index, own), length - 1) for index in indices]
