"""What is done about a worker that has no memory for its next microbatch: garbage is collected, or an error tells the caller."""

import gc
import logging
import time
from collections.abc import Callable

from fkat_data.errors import MemoryLimitError
from fkat_data.worker.messages import MemoryShortage, Worker

logger: logging.Logger = logging.getLogger(__name__)

# A control group may have no memory for the next microbatch for this long.
_SHORT_OF_MEMORY_S = 10.0
_MOST_OF_TIME = 0.05
_MUCH_S = 1.0


class Shortages:
    """The shortage that the trainer waits behind, if there is one.

    Args:
        release: Releases what only copies to a device still hold: the caller is not to blame for that.
    """

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self._next_full_s = 0.0
        self._rescuing_s = 0.0
        self._has_warned_of_group = False
        self.newest: MemoryShortage | None = None
        """What the worker has reported; None: no shortage is known."""

    def forget(self) -> None:
        """Take the worker to have memory, until it reports again."""
        self.newest = None

    def record(self, shortage: MemoryShortage) -> None:
        """Take a worker's report."""
        self.newest = shortage
        if shortage.group_bytes >= 0 and not self._has_warned_of_group:
            self._has_warned_of_group = True
            logger.warning(
                "the control group of this process leaves %.1f MiB for shared memory, and the next microbatch needs "
                "%.1f MiB: microbatches wait for those before them",
                shortage.group_bytes / (1 << 20),
                shortage.needed_bytes / (1 << 20),
            )

    def error(self, worker: Worker, waited_s: float, *, has_arrived: bool) -> MemoryLimitError | None:
        """Return an error if the worker waits for memory that only the caller, or other processes, can release.

        Args:
            worker: The worker that has reported the newest shortage.
            waited_s: How long the trainer has waited.
            has_arrived: Whether a microbatch can be delivered instead.
        """
        shortage = self.newest
        if shortage is None:
            return None

        def has_room() -> bool:
            return worker.held_bytes + shortage.needed_bytes <= shortage.limit_bytes

        if shortage.group_bytes < 0 and has_room():  # released since the worker asked
            return None
        self._release()
        is_last_resort = not has_arrived and (not has_room() or waited_s > _SHORT_OF_MEMORY_S)
        self._collect(lambda: shortage.group_bytes < 0 and has_room(), is_last_resort=is_last_resort)
        held_bytes = worker.held_bytes
        if not has_room():
            return MemoryLimitError(
                shortage.limit_bytes,
                shortage.needed_bytes,
                held_bytes,
                "by microbatches that the caller keeps. Release some, clone those that you keep, or raise "
                "memory_limit_bytes: each worker has an equal share, and a loop needs room for two microbatches",
            )
        # A microbatch that has arrived is delivered even if it is not known yet whether it is its shard's last.
        if shortage.group_bytes >= 0 and (waited_s > _SHORT_OF_MEMORY_S or has_arrived):
            return MemoryLimitError(
                shortage.limit_bytes,
                shortage.needed_bytes,
                held_bytes,
                f"and the control group of the process leaves {shortage.group_bytes:,} bytes, a tenth of its limit "
                "kept for others. Make smaller microbatches, use fewer workers, or give the group more memory",
            )
        return None

    def _collect(self, is_enough: Callable[[], bool], *, is_last_resort: bool) -> None:
        """Collect until it is enough: young objects first, as all take long where the program has millions of them.

        They are collected where only an error remains, or else for at most a twentieth of the time.

        Args:
            is_enough: Whether it is.
            is_last_resort: Whether the caller raises an error if it is not.
        """
        for generation in (0, 1):
            gc.collect(generation)
            if is_enough():
                return
        began_s = time.monotonic()
        if not is_last_resort and began_s < self._next_full_s:
            return
        gc.collect()
        ended_s = time.monotonic()
        self._next_full_s = ended_s + (ended_s - began_s) / _MOST_OF_TIME
        if is_last_resort and is_enough():
            self._warn(ended_s - began_s)

    def _warn(self, took_s: float) -> None:
        before_s, self._rescuing_s = self._rescuing_s, self._rescuing_s + took_s
        if before_s < _MUCH_S <= self._rescuing_s:
            logger.warning(
                "python's garbage collection has taken %.1f s, as microbatches in reference cycles hold the memory "
                "for the next ones: break the cycles, or raise memory_limit_bytes",
                self._rescuing_s,
            )
