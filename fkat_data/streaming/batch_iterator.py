"""The iterator that a ``StreamingDataLoader`` hands out."""

from collections.abc import Iterator
from itertools import chain
from typing import Any, Self

from fkat_data.torch_iterator import TorchIterator

__all__ = ["BatchIterator"]


class BatchIterator(chain[Any], TorchIterator):
    """The batches of one epoch.

    Where a generator has counted a batch as delivered, a ``chain`` hands it to the caller without an instruction of
    Python between, in which a signal's handler could raise.

    Args:
        batches: The batches.
        loader: The loader, which knows how many there are.
    """

    def __new__(cls, batches: Iterator[Any], loader: object) -> Self:
        """Make the chain of one part."""
        del loader
        return super().__new__(cls, batches)

    def __init__(self, batches: Iterator[Any], loader: object) -> None:
        del batches  # the chain has them
        self._loader = loader

    __reduce__ = TorchIterator.__reduce__
