"""What is done about a worker that has no memory for its next microbatch: garbage is collected, or an error tells the caller."""

import gc
import logging
import time
from collections.abc import Callable

from fkat_data.errors import MemoryLimitError
from fkat_data.transport.memory_limit import group_bytes, sufficient_limit
from fkat_data.worker.messages import MemoryShortage
from fkat_data.worker.worker import PipedWorker, Worker

logger: logging.Logger = logging.getLogger(__name__)

# A control group may have no memory for the next microbatch for this long.
_SHORT_OF_MEMORY_S = 10.0
_MOST_OF_TIME = 0.05
_MUCH_S = 1.0
# What a worker may take grows by so much where the caller keeps its microbatches.
_GROWTH = 1.5


def _limiting(process: str) -> str:
    """Return what leaves too little memory."""
    return "this machine" if group_bytes() is None else f"the control group of {process}"


class Shortages:
    """The shortage that the trainer waits behind, if there is one.

    Args:
        release: Releases what only copies to a device still hold: the caller is not to blame for that.
        num_workers: Workers of the loader.
    """

    def __init__(self, release: Callable[[], None], num_workers: int) -> None:
        self._release = release
        self._num_workers = num_workers
        self._next_full_s = 0.0
        self._rescuing_s = 0.0
        self._has_warned = False
        self.newest: MemoryShortage | None = None
        """What the worker has reported; None: no shortage is known."""

    def forget(self) -> None:
        """Take the worker to have memory, until it reports again."""
        self.newest = None

    def record(self, shortage: MemoryShortage) -> None:
        """Take a worker's report."""
        self.newest = shortage
        if shortage.left_bytes >= 0 and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s leaves %.1f MiB for shared memory, and the next microbatch needs %.1f MiB: microbatches wait for "
                "those before them",
                _limiting("this process"),
                shortage.left_bytes / (1 << 20),
                shortage.needed_bytes / (1 << 20),
            )

    def error(self, worker: Worker, waited_s: float, *, has_arrived: bool) -> MemoryLimitError | None:
        """Return an error if the worker waits for memory that only the caller, or other processes, can release.

        A worker that may take more than it does gets more instead.

        Args:
            worker: The worker that has reported the newest shortage.
            waited_s: How long the trainer has waited.
            has_arrived: Whether a microbatch can be delivered instead.
        """
        shortage = self.newest
        if shortage is None or not isinstance(worker, PipedWorker):
            return None

        def has_room(limit_bytes: int) -> bool:
            return worker.report().held_bytes + shortage.needed_bytes <= limit_bytes

        is_lent = not has_room(shortage.limit_bytes) and has_room(shortage.limit_bytes + worker.report().lent_bytes)
        # Another rank releases some, which is behind and named in the log; or it was released since the worker asked.
        if is_lent or (shortage.left_bytes < 0 and has_room(shortage.allowed_bytes)):
            return None
        self._release()
        is_last_resort = not has_arrived and (not has_room(shortage.limit_bytes) or waited_s > _SHORT_OF_MEMORY_S)
        self._collect(
            lambda: shortage.left_bytes < 0 and has_room(shortage.allowed_bytes), is_last_resort=is_last_resort
        )
        held_bytes = worker.report().held_bytes
        if shortage.left_bytes < 0 and not has_room(shortage.allowed_bytes) and has_room(shortage.limit_bytes):
            least_bytes = shortage.held_bytes + 2 * shortage.needed_bytes
            worker.allow_memory(max(least_bytes, int(_GROWTH * shortage.allowed_bytes)))
            return None
        if not has_room(shortage.limit_bytes):
            sufficient = sufficient_limit(
                shortage.needed_bytes, self._num_workers, max(held_bytes, shortage.limit_bytes)
            )
            return MemoryLimitError(
                shortage.limit_bytes,
                shortage.needed_bytes,
                held_bytes,
                "by microbatches that the caller keeps. Release some, clone those that you keep, or raise "
                f"memory_limit_bytes, of which each worker has an equal share: {sufficient} has room for two microbatches "
                "more of each worker",
            )
        # A microbatch that has arrived is delivered even if it is not known yet whether it is its task's last.
        if shortage.left_bytes >= 0 and (waited_s > _SHORT_OF_MEMORY_S or has_arrived):
            return MemoryLimitError(
                shortage.limit_bytes,
                shortage.needed_bytes,
                held_bytes,
                f"and {_limiting('the process')} leaves {shortage.left_bytes:,} bytes, apart from what is kept for "
                "others. Make smaller microbatches, use fewer workers, or give it more memory",
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
