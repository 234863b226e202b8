"""Make microbatches with a plain torch DataLoader as its iterator does, without the cost of iterating it.

torch's iterator enters a profiler's range and counts for each microbatch, which takes longer than to make a small one.
What it draws and calls besides is the same here: torch makes its iterator, and this module calls the parts of it. The
parts are private to torch. Where they are not those that this module knows, a DataLoader is iterated.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import dataloader as torch_dataloader

from fkat_data.errors.sample_errors import early_end, note_source_locations
from fkat_data.runtime.interruption import genuine, is_interruption
from fkat_data.seeding import enter_rng_scope, microbatch_seed, shares_generators
from fkat_data.types import Prefetching

_SINGLE: Any = getattr(torch_dataloader, "_SingleProcessDataLoaderIter", None)
_FETCH: Any = getattr(getattr(torch_dataloader, "_utils", None), "fetch", None)
_MAP_FETCHER: Any = getattr(_FETCH, "_MapDatasetFetcher", None)
# What these methods refer to: they do something else where that differs.
_NAMES_OF_PINNING = {"_pin_memory", "_utils", "pin_memory", "_pin_memory_device"}
_KNOWN: tuple[tuple[Any, str, set[str]], ...] = (
    (_SINGLE, "_next_data", {"_next_index", "_dataset_fetcher", "fetch", *_NAMES_OF_PINNING}),
    (_SINGLE, "_next_index", {"next", "_sampler_iter"}),
    (_MAP_FETCHER, "fetch", {"auto_collation", "hasattr", "dataset", "__getitems__", "collate_fn"}),
)


def direct_fetch(loader: "DataLoader[Any]", collate: Callable[[Any], Any] | None = None) -> Callable[[Any], Any] | None:
    """Return a function that makes the microbatch of a batch of indices, or of one index where nothing is batched.

    torch draws a number for each new iterator, from the DataLoader's generator or the global one; so does this call, but in
    a thread that shares the global one with the program.
    The DataLoader's own sampler is not asked for anything.

    Args:
        loader: Stays as it is.
        collate: Is used instead of ``default_collate``.

    Returns:
        The function; None, and nothing is drawn, where only iterating over the DataLoader does the same.
    """
    if isinstance(loader.dataset, IterableDataset) or not iterates_as_torch(loader):
        return None
    loader = _with_collate(loader, collate)
    object.__setattr__(loader, "sampler" if loader.batch_sampler is None else "batch_sampler", ())
    return _fetch_of(iter(loader))


def direct_iteration(loader: "DataLoader[Any]", collate: Callable[[Any], Any] | None = None) -> Iterator[Any]:
    """Return an iterator over what ``iter(loader)`` yields, which costs less where that is the same thing.

    Args:
        loader: Stays as it is.
        collate: Is used instead of ``default_collate``, where iterating costs less.
    """
    is_direct = iterates_as_torch(loader)
    iterator: Any = _iterator_of(_with_collate(loader, collate) if is_direct else loader)
    # torch warns where an iterable dataset has more samples than it said.
    if not is_direct or getattr(iterator, "_IterableDataset_len_called", None) is not None:
        return iterator
    return map(_fetch_of(iterator), _indices_of(iterator))


def _with_collate(loader: "DataLoader[Any]", collate: Callable[[Any], Any] | None) -> "DataLoader[Any]":
    loader = copy.copy(loader)
    # DataLoader guards attributes against changes that contradict others; this is a copy, and none does.
    if collate is not None and loader.collate_fn is torch_dataloader.default_collate:
        object.__setattr__(loader, "collate_fn", collate)
    # torch draws a number that nothing here depends on.
    if shares_generators() and loader.generator is None:
        object.__setattr__(loader, "generator", torch.Generator())
    return loader


def call_collate(collate: Callable[[Any], Any], samples: Any) -> Any:
    """Call a ``collate_fn``, whose StopIteration does not pass for the end of the samples."""
    try:
        return collate(samples)
    except genuine(StopIteration) as error:
        raise early_end("collate_fn") from error


def _iterator_of(loader: "DataLoader[Any]") -> Iterator[Any]:
    """Return an iterator over a DataLoader that takes no StopIteration of ``collate_fn`` for the dataset's."""
    collate = cast("Any", loader.collate_fn)
    if not isinstance(loader.dataset, IterableDataset) or getattr(collate, "func", None) is call_collate:
        return iter(loader)
    # Not of a copy, which would start nested workers again that this DataLoader keeps.
    object.__setattr__(loader, "collate_fn", functools.partial(call_collate, collate))
    try:
        return iter(loader)
    finally:
        # A class's own __iter__ may ask for torch's iterator later, when its first microbatch is asked for.
        if type(loader).__iter__ is DataLoader.__iter__:
            object.__setattr__(loader, "collate_fn", collate)


def iterates_as_torch(loader: "DataLoader[Any]") -> bool:
    """Return whether torch's iterator over the DataLoader does no more than fetch by the sampler's indices."""
    kind = cast("Any", type(loader))
    return (
        loader.num_workers == 0
        and not loader.pin_memory
        and all(
            getattr(kind, name, None) is getattr(DataLoader, name, loader)
            for name in ("__iter__", "_get_iterator", "_index_sampler", "_auto_collation")
        )
        and "_get_iterator" not in vars(loader)
        and all(_names_in(owner, method) == names for owner, method, names in _KNOWN)
    )


def _names_in(kind: Any, method: str) -> set[str]:
    return set(getattr(getattr(getattr(kind, method, None), "__code__", None), "co_names", ()))


def _fetch_of(iterator: Any) -> Callable[[Any], Any]:
    fetcher = _fetcher_of(iterator)
    if type(fetcher) is not _MAP_FETCHER or not fetcher.auto_collation:
        return fetcher.fetch
    dataset, collate = fetcher.dataset, fetcher.collate_fn

    def fetch(indices: Any) -> Any:
        samples = None
        try:
            if gives_items_together(dataset):
                return fetcher.fetch(indices)
            samples = items_in_turn(dataset, indices)
            return collate(samples)
        except Exception as error:
            note_source_locations(error, dataset, indices)
            if samples is not None and isinstance(error, StopIteration) and not is_interruption(error):
                raise early_end("collate_fn") from error
            raise

    return fetch


def items_in_turn(dataset: Any, indices: Iterable[Any]) -> list[Any]:
    """Return the items at the indices, made one after the other, each in its own scope of random generators.

    Raises:
        Exception: Whatever the dataset raises.
    """
    seed = microbatch_seed()
    items: list[Any] = []
    for position, index in enumerate(indices):
        enter_rng_scope(seed, position)
        items.append(dataset[index])
    enter_rng_scope(seed)
    return items


def gives_items_together(dataset: Any) -> bool:
    """Return whether torch asks the dataset for all items of a batch at once."""
    return hasattr(dataset, "__getitems__") and bool(dataset.__getitems__)


MOST_PREFETCHED = 4
"""Microbatches of a worker that are begun to be read while it makes another one, if they are small."""
#: The items of all that are begun, and the fewest microbatches of any size: each item may take a connection of its own.
_MOST_ITEMS, _FEWEST = 256, 2


def num_prefetched(num_items: int, num_makers: int = 1) -> int:
    """Return how many microbatches are begun to be read while others are made.

    Args:
        num_items: The items of a microbatch.
        num_makers: How many microbatches are made at a time.
    """
    return max(_FEWEST, num_makers, min(MOST_PREFETCHED * num_makers, _MOST_ITEMS // max(1, num_items)))


def prefetch_of(loader: "DataLoader[Any]") -> Callable[[Sequence[int]], int] | None:
    """Return what begins to read the items of a batch of indices; None: the dataset has nothing to begin."""
    is_batched = loader.batch_sampler is not None and gives_items_together(loader.dataset)
    return prefetch_items_of(loader.dataset) if is_batched else None


def prefetch_items_of(dataset: object) -> Callable[[Sequence[int]], int] | None:
    """Return what begins to read items at indices, and returns how many; None: the dataset has nothing to begin."""
    begin = dataset.prefetch_items if isinstance(dataset, Prefetching) else None

    def prefetch(indices: Sequence[int]) -> int:
        if begin is not None:
            begin(indices)
        return len(indices)

    return None if begin is None else prefetch


_fetcher_of, _indices_of = attrgetter("_dataset_fetcher"), attrgetter("_sampler_iter")
