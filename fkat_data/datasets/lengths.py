"""The lengths of items as one array: given, or counted in threads."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from fkat_data.errors import ConfigurationError
from fkat_data.files.opening import Locations, RangedFile, locations_of
from fkat_data.files.sidecar import read_sidecar, write_sidecar
from fkat_data.runtime.background import AnyExecutor, results_of
from fkat_data.runtime.interruption import genuine

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


_Item = TypeVar("_Item")


def count_parallel(
    count_of: Callable[[_Item], int | Sequence[int] | npt.NDArray[Any]],
    items: Iterable[_Item],
    *,
    executor: AnyExecutor,
) -> npt.NDArray[np.int64]:
    """Return the counts of many items, each counted in its own call, as one array in the order of the items.

    An executor may run a call again when a worker is lost. So ``count_of`` must return the same each time.

    Args:
        count_of: Function from an item to its count, such as the number of samples of a file; or to several counts,
            such as the number of tokens of each sample. If the executor uses processes or machines, the function and
            the items must be picklable.
        items: The items to count. All are consumed up front, so keep them small, such as file names.
        executor: The executor of the calls: any object with a ``submit`` as of ``concurrent.futures.Executor``.

    Raises:
        ConfigurationError: A count is negative or not an integer.
        Exception: A call failed. This is the error of the first one in the order of the items. Calls that have not
            started are cancelled.
    """
    calls = [(item, count_of, (item,)) for item in items]
    counts = [
        as_lengths(f"count_of(items[{number}])", found if _are_several(found) else [found])
        for number, found in enumerate(results_of(executor, calls, "counting"))
    ]
    return np.concatenate(counts) if counts else np.zeros(0, np.int64)


def _are_several(found: object) -> bool:
    return hasattr(found, "__len__") and getattr(found, "shape", None) != ()


_SIDECAR = "lengths"


def write_lengths(path: str, lengths: Any, *, storage_options: Mapping[str, Any] | None = None) -> str:
    """Write the lengths of a file's samples beside it, once for all who read it; return where.

    Args:
        path: The file: a local path, or a URI that fsspec supports. Of a file that changes while they are counted, they
            are wrong.
        lengths: A list, an array or a tensor of integers, one for each sample.
        storage_options: Options for fsspec, for a file that is not local.

    Raises:
        ConfigurationError: They are no lengths, or the file's store does not say when its content is another one.
        ShardNotFoundError: There is no such file.
        OSError: They cannot be written.
    """
    options = storage_options or {}
    found = as_lengths("lengths", lengths)
    is_small = not len(found) or found.max() < 1 << 31
    values = found.astype(np.int32) if is_small else found
    before = RangedFile(path, options).identity()
    return write_sidecar(path, _SIDECAR, values, {"num_samples": len(found)}, before, options)


def read_lengths(paths: Locations, *, storage_options: Mapping[str, Any] | None = None) -> npt.NDArray[np.int64]:
    """Return the lengths of the samples of files, which ``write_lengths`` or ``fkat-data index --lengths`` has written.

    Args:
        paths: The files, in the order of their samples.
        storage_options: Options for fsspec, for files that are not local.

    Raises:
        ConfigurationError: A file has no such lengths, or was changed since they were counted.
    """
    found: list[npt.NDArray[Any]] = []
    for path in locations_of("paths", paths):
        sidecar = read_sidecar(path, _SIDECAR, storage_options or {})
        if sidecar is None:
            expected = "a file whose lengths lie beside it: run `fkat-data index --lengths MODULE:FUNCTION` on it, again if it was changed"
            raise ConfigurationError("paths", path, expected)
        found.append(sidecar.values)
    return np.concatenate(found).astype(np.int64) if found else np.zeros(0, np.int64)
