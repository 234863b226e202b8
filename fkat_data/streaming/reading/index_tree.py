"""Look up samples by a number, a slice, or a list or array of numbers, nested or not, as NumPy's indexing does."""

import operator
from typing import Any, cast

import numpy as np

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.reading.open_shards import OpenShards

__all__ = ["index_tree"]


def index_tree(index: Any, num_samples: int, shards: OpenShards) -> Any:
    """Return the sample at an index, or lists of samples with the nesting of the index.

    Args:
        index: From ``-num_samples`` to ``num_samples - 1``, or a slice, list, tuple or array.
        num_samples: Number of samples.
        shards: The open shards.

    Raises:
        IndexError: The sample does not exist.
        ConfigurationError: The index has another type.
    """
    if isinstance(index, slice):
        return shards.samples(np.arange(num_samples)[index])
    if isinstance(index, np.ndarray) and index.ndim:
        index = cast("Any", index).tolist()
    if isinstance(index, (list, tuple)):
        items = cast("list[Any]", index)
        if any(isinstance(item, (list, tuple, np.ndarray, slice)) for item in items):
            return [index_tree(item, num_samples, shards) for item in items]
        return shards.samples(np.array([_number(item, num_samples) for item in items], np.int64))
    return shards.sample(_number(index, num_samples))


def _number(index: Any, num_samples: int) -> int:
    if isinstance(index, bool):
        raise ConfigurationError("index", index, "an integer, a slice, or a list or array of integers")
    try:
        number = operator.index(index)
    except TypeError:
        raise ConfigurationError("index", index, "an integer, a slice, or a list or array of integers") from None
    if not -num_samples <= number < num_samples:
        raise IndexError(f"sample {number} of {num_samples}")
    return number % num_samples
