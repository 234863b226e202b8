"""Convert item lengths from a sequence, an array or a dataset to one array."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from fkat_data.errors import ConfigurationError
from fkat_data.interruption import genuine

_EXPECTED = "one integer for each item, or a dataset whose sort_key(index) returns an item's length"


def as_lengths(argument: str, source: object) -> npt.NDArray[np.int64]:
    """Return lengths as one array.

    Args:
        argument: Name of the argument that holds the lengths, for error messages.
        source: A list, an array or a tensor of integers; or a dataset whose ``sort_key(index)`` returns the length of
            an item, and is called once for each.

    Raises:
        ConfigurationError: ``source`` is none of these, or a length is negative or not an integer.
    """
    sort_key: Any = getattr(source, "sort_key", None)
    if callable(sort_key):
        source = [sort_key(index) for index in range(len(cast("Any", source)))]
    if not isinstance(source, (Sequence, np.ndarray, torch.Tensor)) or isinstance(source, (str, bytes)):
        raise ConfigurationError(argument, source, _EXPECTED)
    try:
        lengths: npt.NDArray[Any] = np.asarray(cast("Any", source))
    except genuine(ValueError, TypeError):  # lists of several lengths; a tensor on a device
        lengths = np.empty((0, 0))
    if lengths.shape == (0,):
        lengths = lengths.astype(np.int64)
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise ConfigurationError(argument, cast("object", source), _EXPECTED)
    if len(lengths) and lengths.min() < 0:
        index = int(lengths.argmin())
        raise ConfigurationError(f"{argument}[{index}]", int(lengths[index]), "a length of at least 0")
    return lengths.astype(np.int64)
