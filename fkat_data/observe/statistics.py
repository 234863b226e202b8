"""What a loader has done so far, in numbers."""

from dataclasses import asdict, dataclass

__all__ = ["LoaderStatistics", "Waiting"]


@dataclass(slots=True)
class Waiting:
    """How long a trainer has waited for its workers.

    Attributes:
        total_s: Seconds so far.
    """

    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LoaderStatistics:
    """A snapshot of a loader's counts since it was made.

    Attributes:
        delivered: Microbatches that the caller received.
        delivered_bytes: Bytes of their tensors and arrays that came through shared memory or the pipe; 0 in process.
        waited_s: Seconds that the caller stood still because its microbatch was not there yet; in process, because it
            had to be made.
        held_bytes: Bytes of shared memory whose microbatches are alive now.
        worker_restarts: Workers that were started in the place of dead ones.
        skipped_shards: Shards whose rest was left out, as they failed.
    """

    delivered: int
    delivered_bytes: int
    waited_s: float
    held_bytes: int
    worker_restarts: int
    skipped_shards: int

    def as_dict(self) -> dict[str, float]:
        """Return the numbers by name, for a logger of metrics."""
        return asdict(self)
