"""Count samples, or their lengths, in many processes or on many machines."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fkat_data.background import AnyExecutor, results_of
from fkat_data.datasets.lengths import as_lengths

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
