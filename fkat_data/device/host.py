"""What moves microbatches to the caller's device; on the host they stay in the memory that the worker wrote."""

from typing import Any, Protocol


class Mover(Protocol):
    """Takes microbatches to the caller's device.

    ``begin`` is called when a microbatch has arrived, which may be before the caller wants it; ``finish`` when it is
    delivered.
    """

    @property
    def copies(self) -> bool:
        """Whether anything is copied; if not, ``begin`` and ``finish`` return what they are given."""
        ...

    @property
    def copied_s(self) -> float:
        """Seconds in which copies were under way, those that are known to be complete."""
        ...

    def begin(self, microbatch: Any) -> Any:
        """Start to move a microbatch; return what ``finish`` needs."""
        ...

    def finish(self, moving: Any) -> Any:
        """Return the microbatch, where the caller may use it."""
        ...

    def wait(self) -> None:
        """Wait until the copies have read everything that ``begin`` was given, and release it."""
        ...


class HostMover:
    """Leaves a microbatch as it is."""

    copies = False
    """Nothing is copied."""
    copied_s: float = 0.0
    """0: nothing is copied."""

    def begin(self, microbatch: Any) -> Any:
        """Return the microbatch."""
        return microbatch

    def finish(self, moving: Any) -> Any:
        """Return the microbatch."""
        return moving

    def wait(self) -> None:
        """Do nothing: nothing is kept."""
