"""What a loader has done so far, in numbers."""

from dataclasses import asdict, dataclass

__all__ = ["LoaderStatistics"]


@dataclass(frozen=True, slots=True)
class LoaderStatistics:
    """A snapshot of a loader's counts since it was made.

    Attributes:
        delivered: Microbatches that the caller received.
        delivered_bytes: Bytes of their tensors and arrays that came through shared memory or the pipe; 0 in process.
        waited_s: Seconds that the caller spent inside ``next`` until its microbatch was there.
        held_bytes: Bytes of shared memory whose microbatches are alive now.
    """

    delivered: int
    delivered_bytes: int
    waited_s: float
    held_bytes: int

    def as_dict(self) -> dict[str, float]:
        """Return the numbers by name, for a logger of metrics."""
        return asdict(self)
