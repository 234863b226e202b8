"""What makes a DataLoader's microbatches: one face for map-style and iterable datasets."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from fkat_data.observe.statistics import LoaderStatistics

__all__ = ["Source"]


class Source(Protocol):
    """The loader, or the loaders, behind a DataLoader."""

    @property
    def epoch(self) -> int:
        """The epoch of the next microbatch."""
        ...

    @property
    def step(self) -> int:
        """Microbatches of that epoch that were delivered before it."""
        ...

    def begin(self, change: Callable[[Any], Any] | None = None) -> Iterator[Any]:
        """Begin an epoch, or the rest of a loaded one; deliver what ``change`` makes of each microbatch."""
        ...

    def end_epoch(self) -> None:
        """Count the rest of the epoch as delivered; change nothing where nothing of it was delivered."""
        ...

    def take_back(self) -> bool:
        """Count the last microbatch as not delivered: the next call delivers it again."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the position as plain values."""
        ...

    def epoch_again(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the start of a state's epoch, in the same order; the state itself where that start is not known."""
        ...

    def statistics(self) -> LoaderStatistics:
        """Return what was done so far."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...
