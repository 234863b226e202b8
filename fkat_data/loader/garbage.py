"""Collection of garbage for memory that a worker waits for: microbatches in dead reference cycles still hold some."""

import gc
import logging
import time
from collections.abc import Callable

__all__ = ["GarbageCollection"]

logger: logging.Logger = logging.getLogger(__name__)

_MOST_OF_TIME = 0.05
_MUCH_S = 1.0


class GarbageCollection:
    """Collects young objects first. All objects take long where the program has millions of them.

    They are collected where only an error remains, or else for at most a twentieth of the time.
    """

    def __init__(self) -> None:
        self._next_full_s = 0.0
        self._rescuing_s = 0.0

    def collect(self, is_enough: Callable[[], bool], *, is_last_resort: bool) -> None:
        """Collect until it is enough.

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
