"""Rounds over several loaders: each takes one microbatch of every loader, as a mode of Lightning's says."""

from collections.abc import Iterable, Sequence
from typing import Any

from fkat_data.interruption import genuine


class Rounds:
    """One epoch of a ``CombinedLoader``, instead of the iterator that it makes.

    Lightning's own iterator cannot go on in the middle of an epoch: which loaders have ended is in no state. In the
    mode ``max_size_cycle`` it begins the next epoch of a loader before it knows that the others end as well, and drops
    what it got. This one looks at all of them first.

    Args:
        iterator: Lightning's iterator, which has begun every loader and counts the length.
        mode: ``"min_size"``, ``"max_size_cycle"`` or ``"max_size"``.
        loaders: The loaders, to begin them again.
        ended: Which loaders have ended in this epoch already.

    Attributes:
        ended: Which loaders have ended in this epoch.
    """

    def __init__(self, iterator: Any, mode: str, loaders: Sequence[Iterable[Any]], ended: Sequence[bool]) -> None:
        self._iterator = iterator
        self._iterators: list[Any] = list(iterator.iterators)
        self._mode = mode
        self._loaders = loaders
        self._num_rounds = 0
        self.ended = list(ended)

    def __next__(self) -> tuple[list[Any], int, int]:
        """Return a microbatch of every loader, the number of the round, and 0.

        Raises:
            StopIteration: The epoch has ended, as the mode says.
        """
        taken = [] if self._is_over else [self._take(index) for index in range(len(self._loaders))]
        if self._is_over:
            raise StopIteration
        found = [one[0] if one else self._begin_again(index) for index, one in enumerate(taken)]
        self._num_rounds += 1
        return found, self._num_rounds - 1, 0

    def __len__(self) -> int:
        return len(self._iterator)

    def reset(self) -> None:
        """End the iteration, as Lightning does after training."""
        self._iterator.reset()
        self._iterators = []

    @property
    def _is_over(self) -> bool:
        return any(self.ended) if self._mode == "min_size" else all(self.ended)

    def _take(self, index: int) -> tuple[Any] | None:
        """Return the next microbatch of a loader; None where it has none in this round."""
        if self.ended[index] and self._mode != "max_size_cycle":
            return None
        if self._is_over:
            return None
        try:
            return (next(self._iterators[index]),)
        except genuine(StopIteration):
            self.ended[index] = True
            return None

    def _begin_again(self, index: int) -> Any:
        if self._mode == "max_size":
            return None
        self._iterators[index] = iter(self._loaders[index])
        return next(self._iterators[index])
