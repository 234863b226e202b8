"""What is done to each microbatch in the caller's thread: it is copied to page-locked memory, or only counted."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import data as torch_data

_PIN: Any = getattr(getattr(getattr(torch_data, "_utils", None), "pin_memory", None), "pin_memory", None)


def change_of(loader: Any, step: Callable[[], int]) -> Callable[[Any], Any] | None:
    """Return what each microbatch of a DataLoader goes through in this thread; None: nothing.

    Args:
        loader: The DataLoader.
        step: Returns the microbatches of the epoch that were delivered before this one.
    """
    change = None
    if loader._IterableDataset_len_called is not None:  # noqa: SLF001 - an attribute of torch's class
        change = _LengthWarning(loader._IterableDataset_len_called, loader.num_workers, step)  # noqa: SLF001 - as above
    if not (loader.pin_memory and loader.device is None and _can_pin()):
        return change
    return _pinned if change is None else lambda microbatch: _pinned(change(microbatch))


class _LengthWarning:
    """Warns, as torch does, where an iterable dataset has more microbatches than its length says.

    Args:
        num_expected: The length that the caller was given.
        num_workers: The loader's.
        step: Returns the microbatches of the epoch that were delivered before this one.
    """

    def __init__(self, num_expected: int, num_workers: int, step: Callable[[], int]) -> None:
        self._num_expected = num_expected
        self._step = step
        self._cause = (
            " For multiprocessing data-loading, this could be caused by not properly configuring the IterableDataset "
            "replica at each worker: without torch.utils.data.get_worker_info(), each yields the whole dataset."
        )
        if not num_workers:
            self._cause = ""

    def __call__(self, microbatch: Any) -> Any:
        """Warn if there is one microbatch too many; return it."""
        num_seen = self._step() + 1
        if num_seen > self._num_expected:
            warnings.warn(
                f"Length of IterableDataset was reported to be {self._num_expected} (when accessing len(dataloader)), "
                f"but {num_seen} samples have been fetched.{self._cause}",
                stacklevel=3,
            )
        return microbatch


def _can_pin() -> bool:
    """Return whether this machine has a device that page-locked memory is of use for."""
    return torch.cuda.is_available()


def _pinned(microbatch: Any) -> Any:
    """Return a copy in page-locked memory, as torch's ``pin_memory`` makes it."""
    return _PIN(microbatch)
