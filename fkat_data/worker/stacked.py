"""Batches of a dataset whose items are rows of one array: read where their microbatch will lie, by no user's code."""

from functools import partial
from typing import Any, cast

import torch
from torch.utils.data import default_collate  # pyright: ignore[reportUnknownVariableType]  # torch leaves its elements open

from fkat_data.errors.sample_errors import note_source_locations
from fkat_data.worker.batches import BatchSequence
from fkat_data.worker.collate import collates_as_known
from fkat_data.worker.fetch import prefetch_items_of
from fkat_data.worker.microbatch_source import Collate, IndexedSource, Opening, ShardProduct


def reads_items_into_batch(dataset: Any, collate_fn: object) -> bool:
    """Return whether a dataset reads its items into a microbatch, and no code of a user's has a part in that."""
    kind = cast("type[object]", type(dataset))
    if collate_fn is not default_collate or not all(hasattr(kind, name) for name in _STACKED):
        return False
    if dataset.item_shape is None:  # its items are no tensors after all
        return False
    # A subclass that makes other items does not say so here; neither does a patch.
    owner = next(base for base in kind.__mro__ if not _ITEMS.isdisjoint(vars(base)))
    return "stack_into" in vars(owner) and _ITEMS.isdisjoint(dataset.__dict__)


_ITEMS = {"stack_into", "__getitem__", "__getitems__"}
# What ``TokenWindows`` has.
_STACKED = ("item_shape", "item_dtype", "stack_into", "__getitems__")


class StackedBatches(ShardProduct):
    """Makes any microbatch of an order of such a dataset.

    Args:
        dataset: The dataset.
        batches: The indices of each.
    """

    def __init__(self, dataset: Any, batches: BatchSequence) -> None:
        self._dataset = dataset
        self._batches = batches

    def microbatch_source(self, opening: Opening) -> IndexedSource:
        """Return the source: nothing is drawn. A microbatch gets memory of its own unless the worker has some for it."""
        prefetch, batches = prefetch_items_of(self._dataset), self._batches
        return IndexedSource(partial(self._made, opening.collate), len(batches), None, batches.batch, prefetch)

    def _made(self, collate: Collate | None, indices: list[int]) -> torch.Tensor:
        if not collates_as_known():
            return default_collate(self._dataset.__getitems__(indices))
        shape = (len(indices), *self._dataset.item_shape)
        made = (torch.empty if collate is None else collate.stack)(shape, dtype=self._dataset.item_dtype)
        try:
            self._dataset.stack_into(indices, made.numpy())
        except Exception as error:
            note_source_locations(error, self._dataset, indices)
            raise
        return made
