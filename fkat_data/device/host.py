"""The mover for microbatches that stay where they are: views of the memory that the worker wrote."""

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["HostMover", "Mover"]


class Mover(Protocol):
    """Takes microbatches to where the caller computes.

    ``begin`` is called when a microbatch has arrived, at times before the caller wants it; ``finish`` when it is
    delivered.
    """

    @property
    def copied_s(self) -> float:
        """Seconds in which copies were under way, as far as they have been looked at."""
        ...

    @property
    def waited_s(self) -> float:
        """Seconds in which the host waited for copies before it issued more."""
        ...

    on_copied: Callable[[float, float], None] | None
    """Told from when to when a microbatch's copies were under way."""

    def begin(self, microbatch: Any) -> Any:
        """Start to move a microbatch; return what ``finish`` needs."""
        ...

    def finish(self, moving: Any) -> Any:
        """Return the microbatch, where the caller may use it."""
        ...

    def wait(self) -> None:
        """Have the host wait until all that ``begin`` was given may be let go of, and let go of it."""
        ...


class HostMover:
    """Leaves a microbatch as it is."""

    copied_s = waited_s = 0.0
    """Nothing is copied, nor waited for."""
    on_copied: Callable[[float, float], None] | None = None
    """Told nothing."""

    def begin(self, microbatch: Any) -> Any:
        """Return the microbatch."""
        return microbatch

    def finish(self, moving: Any) -> Any:
        """Return the microbatch."""
        return moving

    def wait(self) -> None:
        """Do nothing: nothing is kept."""
