"""Iterable datasets of the library ``datasets``, whose ``state_dict`` says less than torchdata's protocol asks for.

- A state that was loaded stays: each later iteration of the object begins there again, and behind an epoch's end it has
  nothing left.
- What the buffer of ``shuffle()`` holds is not in it.
- It counts only if the dataset's epoch is the same.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np

_MODULE = "datasets.iterable_dataset"


def is_of_datasets(dataset: object) -> bool:
    """Return whether a dataset is an ``IterableDataset`` of that library."""
    return any((base.__module__, base.__name__) == (_MODULE, "IterableDataset") for base in type(dataset).__mro__)


def has_whole_state(dataset: object) -> bool:
    """Return whether nothing is missing in a dataset's state, should it have one: that of a shuffle's buffer is."""
    if not is_of_datasets(dataset):
        return True
    sources = [type(source).__name__ for source in _sources(dataset)]
    return bool(sources) and "BufferShuffledExamplesIterable" not in sources


def order_of(dataset: Any) -> dict[str, Any] | None:
    """Return what the order of a dataset of that library depends on, besides its data; None: it is of another.

    Returns:
        A dictionary with the ``"epoch"``, and with a digest of its generators, ``"shuffle"``.
    """
    if not is_of_datasets(dataset):
        return None
    digest = hashlib.blake2b(digest_size=8)
    for source in _sources(dataset):
        for value in vars(source).values():
            if isinstance(value, np.random.Generator):
                digest.update(repr(value.bit_generator.state).encode())
    return {"epoch": int(dataset.epoch), "shuffle": digest.hexdigest()}


def _sources(value: object) -> Iterator[object]:
    """Yield what a dataset is made of, from the outermost to the innermost."""
    for part in vars(value).values():
        parts = cast("Iterable[Any]", part) if isinstance(part, (list, tuple)) else (part,)
        for each in parts:
            if type(each).__module__ == _MODULE and hasattr(each, "__dict__") and not is_of_datasets(each):
                yield each
                yield from _sources(each)
