"""Drive a DataLoader's own fetcher."""

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

__all__ = ["direct_fetch"]


def direct_fetch(loader: DataLoader[Any]) -> Callable[[Any], Any] | None:
    """Return a function from a batch of indices to the microbatch; None where only iterating is the same."""
    if loader.num_workers or loader.pin_memory or type(loader).__iter__ is not DataLoader.__iter__:
        return None
    iterator = iter(loader)
    if type(iterator) is not _SingleProcessDataLoaderIter:
        return None
    return iterator._dataset_fetcher.fetch
