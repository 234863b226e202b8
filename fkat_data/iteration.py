"""One iteration after the other over a loader: of its iterators, only the newest goes on."""

from collections.abc import Callable, Iterator

from fkat_data.errors import StaleIteratorError
from fkat_data.types import Microbatch

__all__ = ["EpochIterator", "Iterations"]


class Iterations:
    """Numbers a loader's iterations.

    Args:
        loader_name: What messages call the loader.
    """

    def __init__(self, loader_name: str) -> None:
        self._loader_name = loader_name
        self.newest = 0
        """The number of the newest iteration."""

    def begin(self) -> None:
        """End the iteration under way, and number the next one."""
        self.newest += 1

    def check(self, number: int) -> None:
        """Return if this iteration is still the newest: a stop must look neither like an end nor like a fault.

        Raises:
            StaleIteratorError: A newer one has begun, or the loader was stopped.
        """
        if number != self.newest:
            raise StaleIteratorError(
                f"this iterator has ended: the {self._loader_name} began a newer iteration, loaded a state, or was closed"
            ) from None


class EpochIterator(Iterator[Microbatch]):
    """One epoch of a loader.

    Args:
        take: Returns the next microbatch, or raises StopIteration at the epoch's end.
        iterations: The loader's iterations, of which this is the newest.
        loader: Kept alive for as long as this iterator is: a loader that dies ends its workers.
    """

    def __init__(self, take: Callable[[], Microbatch], iterations: Iterations, loader: object) -> None:
        self._take = take
        self._iterations = iterations
        self._number = iterations.newest
        self._loader = loader
        self._is_over = False

    def __next__(self) -> Microbatch:
        if self._is_over:
            raise StopIteration
        if self._number != self._iterations.newest:
            self._iterations.check(self._number)
        try:
            return self._take()
        except Exception as error:
            self._iterations.check(self._number)  # another thread may have closed the loader while this one waited
            self._is_over = isinstance(error, StopIteration)
            raise
