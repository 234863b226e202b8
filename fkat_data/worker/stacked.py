"""Batches of a dataset whose items are rows of one array: read where their microbatch will lie, by no user's code."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt
import torch
from torch.utils.data import default_collate  # pyright: ignore[reportUnknownVariableType]  # torch leaves its elements open

from fkat_data.sample_errors import note_places
from fkat_data.worker.batches import NumberedBatches
from fkat_data.worker.collate import collates_as_known


@runtime_checkable
class StackedItems(Protocol):
    """A dataset whose items are tensors of one shape and dtype, which it reads into any memory."""

    @property
    def item_shape(self) -> tuple[int, ...] | None:
        """The shape of an item; None: items are no such tensors after all."""
        ...

    @property
    def item_dtype(self) -> torch.dtype:
        """The dtype of an item."""
        ...

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        """Return the items at some indices."""
        ...

    def stack_into(self, indices: Sequence[int], out: npt.NDArray[Any]) -> None:
        """Read the items at some indices, each into a row of an array."""
        ...


def stacks_items(dataset: object, collate_fn: object) -> bool:
    """Return whether a dataset reads its items into a microbatch, and no code of a user's has a part in that."""
    if collate_fn is not default_collate or not isinstance(dataset, StackedItems) or dataset.item_shape is None:
        return False
    # A subclass that makes other items does not say so here; neither does a patch.
    kind = next(kind for kind in type(dataset).__mro__ if not _ITEMS.isdisjoint(vars(kind)))
    return "stack_into" in vars(kind) and _ITEMS.isdisjoint(vars(dataset))


_ITEMS = {"stack_into", "__getitem__", "__getitems__"}


class Stack(Protocol):
    """Returns memory for a microbatch."""

    def __call__(self, shape: tuple[int, ...], *, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of any content."""
        ...


class StackedBatches:
    """Makes any microbatch of an order of such a dataset.

    Args:
        dataset: The dataset.
        batches: The indices of each.
    """

    is_plain = stacks_items = True

    def __init__(self, dataset: StackedItems, batches: NumberedBatches) -> None:
        self._dataset = dataset
        self._batches = batches

    @property
    def num_microbatches(self) -> int:
        """Microbatches of the order."""
        return len(self._batches)

    def microbatch(self, index: int, stack: Stack | None = None) -> torch.Tensor:
        """Return a microbatch by its number.

        Args:
            index: The number.
            stack: Returns the memory for it; None: it gets memory of its own.

        Raises:
            Exception: What the dataset raises.
        """
        indices: list[int] = self._batches.batch(index)
        if not collates_as_known():
            return default_collate(self._dataset.__getitems__(indices))
        shape = (len(indices), *(self._dataset.item_shape or ()))
        made = (torch.empty if stack is None else stack)(shape, dtype=self._dataset.item_dtype)
        try:
            self._dataset.stack_into(indices, made.numpy())
        except Exception as error:
            note_places(error, self._dataset, indices)
            raise
        return made
