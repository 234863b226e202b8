"""One microbatch over and over: how fast everything behind the loader is, when the loader costs nothing."""

import copy
import time
from typing import Any

import torch

from fkat_data.loader.delivery import Delivery
from fkat_data.loader.worker_pool import WorkerPool
from fkat_data.plan.cursor import Cursor
from fkat_data.tree import map_tensors
from fkat_data.types import Microbatch

__all__ = ["MicrobatchReplay"]


class MicrobatchReplay:
    """Takes the first microbatch as a loader does, ends the workers, and delivers it again and again.

    The tensors are the same each time, on the device that they were delivered to; the containers around them are new,
    so that a caller may take things out of them. The position stays where it is.

    Args:
        delivery: Gives the first microbatch, and counts all.
        cursor: Where the loader is.
        crew: The workers; they end when there is a microbatch, and the caller has the machine for itself.
    """

    def __init__(self, delivery: Delivery, cursor: Cursor, crew: WorkerPool) -> None:
        self._delivery = delivery
        self._cursor = cursor
        self._crew = crew
        self._kept: tuple[Any, int] | None = None
        self.num_delivered = 0
        """How often it was delivered in the iteration under way."""

    @property
    def is_ready(self) -> bool:
        """Whether there is a microbatch to deliver; otherwise an iteration has to begin."""
        return self._kept is not None

    def restart(self) -> None:
        """Take note that another iteration begins."""
        self.num_delivered = 0

    def forget(self) -> None:
        """Let go of the microbatch: the next one is taken from the workers again."""
        self._kept = None

    def next(self) -> Microbatch:
        """Return the microbatch.

        Raises:
            StopIteration: The epoch has none.
            BaseException: What the making of it raises.
        """
        self.num_delivered += 1
        if self._kept is None:
            return self._first()
        microbatch, size_bytes = self._kept
        self._delivery.delivered += 1
        self._delivery.delivered_bytes += size_bytes
        self._delivery.delivered_at_s = time.perf_counter()
        return map_tensors(_same, microbatch)

    def _first(self) -> Microbatch:
        if self._delivery.is_over:  # the microbatch was let go of in the midst of an iteration
            self._crew.start()
            self._delivery.begin()
        delivery, place = self._delivery, self._cursor.position
        bytes_before = delivery.delivered_bytes
        microbatch = delivery.next()
        self._kept = microbatch, delivery.delivered_bytes - bytes_before
        delivery.stop()
        self._cursor.load(place)
        self._crew.close()
        return map_tensors(_same, microbatch)


def _same(value: Any) -> Any:
    return value if isinstance(value, torch.Tensor) else copy.copy(value)
