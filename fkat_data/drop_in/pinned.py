"""Microbatches in page-locked memory, as ``pin_memory=True`` asks for them."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import data as torch_data

__all__ = ["PinnedIterator", "can_pin"]

_PIN: Any = getattr(getattr(getattr(torch_data, "_utils", None), "pin_memory", None), "pin_memory", None)


def can_pin() -> bool:
    """Return whether this machine has a device that page-locked memory is of use for."""
    return torch.cuda.is_available()


class PinnedIterator(Iterator[Any]):
    """Copies each microbatch to page-locked memory, in the caller's thread, as torch's function does.

    Args:
        microbatches: One epoch.
        take_back: Counts the last microbatch as not delivered.
    """

    def __init__(self, microbatches: Iterator[Any], take_back: Callable[[], object]) -> None:
        self._microbatches = microbatches
        self._take_back = take_back

    def __next__(self) -> Any:
        microbatch = next(self._microbatches)
        try:
            return _PIN(microbatch)
        except BaseException:
            self._take_back()
            raise
