"""Look up samples by a number, a slice, or a list or array of numbers, nested or not, as NumPy's indexing does."""

import operator
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError
from fkat_data.interruption import genuine


class Numbered(Protocol):
    """Samples by their numbers."""

    def sample(self, sample_id: int) -> Any:
        """Return a sample."""
        ...

    def samples(self, sample_ids: npt.NDArray[np.int64]) -> list[Any]:
        """Return samples in the order of their numbers."""
        ...


def index_tree(index: Any, num_samples: int, numbered: Numbered) -> Any:
    """Return the sample at an index, or lists of samples with the nesting of the index.

    Args:
        index: From ``-num_samples`` to ``num_samples - 1``, or a slice, list, tuple or array.
        num_samples: Number of samples.
        numbered: Where to read the samples.

    Raises:
        IndexError: The sample does not exist.
        ConfigurationError: The index has another type.
    """
    if isinstance(index, slice):
        return numbered.samples(np.arange(num_samples)[index])
    if isinstance(index, np.ndarray) and index.ndim:
        index = cast("Any", index).tolist()
    if isinstance(index, (list, tuple)):
        items = cast("list[Any]", index)
        if any(isinstance(item, (list, tuple, np.ndarray, slice)) for item in items):
            return [index_tree(item, num_samples, numbered) for item in items]
        return numbered.samples(np.array([_number(item, num_samples) for item in items], np.int64))
    return numbered.sample(_number(index, num_samples))


def _number(index: Any, num_samples: int) -> int:
    if isinstance(index, bool):
        raise ConfigurationError("index", index, "an integer, a slice, or a list or array of integers")
    try:
        number = operator.index(index)
    except genuine(TypeError):
        raise ConfigurationError("index", index, "an integer, a slice, or a list or array of integers") from None
    if not -num_samples <= number < num_samples:
        raise IndexError(f"sample {number} of {num_samples}")
    return number % num_samples
