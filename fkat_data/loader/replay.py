"""One microbatch again and again: how fast training is with a loader that costs nothing."""

import copy
from collections.abc import Callable
from typing import Any

import torch

from fkat_data.device.host import Mover
from fkat_data.iteration import Cursor
from fkat_data.loader.delivery import Delivery, DeliveryProgress
from fkat_data.tree import map_tensors
from fkat_data.types import Microbatch


class MicrobatchReplay:
    """Takes the first microbatch of a delivery, ends the workers, and delivers it again and again, with the interface of a delivery.

    The tensors are the same each time, on the device that they were delivered to. The containers around them are new,
    so that a caller may take things out of them. The position stays; an iteration has no end.

    Args:
        delivery: Gives the first microbatch, and counts all.
        cursor: The loader's position.
        end_workers: Ends the workers, so that the caller has the machine to itself.
    """

    def __init__(self, delivery: Delivery, cursor: Cursor, end_workers: Callable[[], None]) -> None:
        self._delivery = delivery
        self._cursor = cursor
        self._end_workers = end_workers
        self._kept: tuple[Any, int] | None = None
        self._num_delivered = 0

    @property
    def is_over(self) -> bool:
        """Whether an iteration has to begin before there is a microbatch to deliver."""
        return self._kept is None and self._delivery.is_over

    @property
    def step(self) -> int:
        """The position's, and the deliveries of the iteration under way."""
        return self._delivery.step + self._num_delivered

    def begin(self) -> None:
        """Begin an iteration."""
        self._num_delivered = 0
        if self._kept is None:
            self._delivery.begin()

    def next(self) -> Microbatch:
        """Return the microbatch.

        Raises:
            StopIteration: The epoch has none.
            BaseException: The user's.
        """
        if self._kept is None:
            self._kept = self._first()
        else:
            self._delivery.count_again(self._kept[1])
        self._cursor.stay()
        microbatch = map_tensors(_same, self._kept[0])
        self._num_delivered += 1
        return microbatch

    def prefetch(self) -> None:
        """Start to move the first microbatch to the device."""
        self._delivery.prefetch()

    def extend(self, num_shards: int) -> None:
        """Do nothing: one microbatch is enough."""

    def load_to(self, mover: Mover) -> None:
        """Take a microbatch from the workers again, and move it by another mover."""
        self._delivery.load_to(mover)
        self._kept = None

    def stop(self) -> None:
        """End the iteration, and drop the microbatch."""
        self._delivery.stop()
        self._kept = None

    def progress(self) -> DeliveryProgress:
        """Return what was delivered so far."""
        return self._delivery.progress()

    def _first(self) -> tuple[Microbatch, int]:
        """Take a microbatch, and end the workers; an interrupted call is done again from the same position."""
        if self._delivery.is_over:  # the microbatch was dropped during an iteration
            self._delivery.begin()
        place = self._cursor.position
        bytes_before = self._delivery.progress().delivered_bytes
        microbatch = self._delivery.next()
        size_bytes = self._delivery.progress().delivered_bytes - bytes_before
        self._cursor.load(place)
        self._delivery.stop()
        self._end_workers()
        return microbatch, size_bytes


def _same(value: Any) -> Any:
    return value if isinstance(value, torch.Tensor) else copy.copy(value)
