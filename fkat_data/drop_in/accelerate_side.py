"""What accelerate finds on a ``fkat_data.DataLoader``: a loader that it leaves alone, saves and loads.

accelerate asks ``_is_accelerate_prepared`` before it makes a loader of its own of this one's parts, and reads no other
attribute of a loader that is prepared. Its settings for loaders belong to the ``Accelerator`` that asks.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import currentframe
from typing import Any

import torch

from fkat_data.errors import ConfigurationError
from fkat_data.missing_place import watch_checkpoints
from fkat_data.stepping_over import NotSteppedOver, accelerator_that_asks

__all__ = ["AccelerateSide", "DrivenLoop"]

_logger = logging.getLogger(__name__)


class DrivenLoop:
    """A loader's iterations where accelerate drives the loop: one microbatch ahead, and the place of the loop.

    Args:
        device: Where microbatches go; None: they stay where they are.
        non_blocking: Whether copies to the device are asynchronous.
    """

    def __init__(self, device: torch.device | None, *, non_blocking: bool) -> None:
        self._device = device
        self._non_blocking = non_blocking
        self.place: dict[str, Any] | None = None
        """The loader's state behind the last microbatch that the loop has received; None: the loader is there."""

    def copy(self) -> "DrivenLoop":
        """Return one for a copy of the loader, which begins at this one's place."""
        return DrivenLoop(self._device, non_blocking=self._non_blocking)

    def microbatches(
        self, begin: Callable[[], Iterator[Any]], state: Callable[[], dict[str, Any]], num_in_last_round: int
    ) -> Iterator[Any]:
        """Return an epoch, or the rest of one, as accelerate wants it.

        Args:
            begin: Begins it.
            state: Returns the loader's place.
            num_in_last_round: Samples that ``gather_for_metrics`` keeps of the last round; 0: all.
        """
        follow = import_module("fkat_data.accelerated")
        move = follow.mover_to(self._device, non_blocking=self._non_blocking)
        return follow.accelerated(self._followed(follow, begin, state), move, num_in_last_round)

    def _followed(
        self, follow: Any, begin: Callable[[], Iterator[Any]], state: Callable[[], dict[str, Any]]
    ) -> Iterator[tuple[Any, bool]]:
        placed = ((microbatch, state()) for microbatch in begin())
        for (microbatch, place), is_last in follow.with_end(placed):
            # Behind the last one, the loader is in its next epoch already.
            self.place = None if is_last else place
            yield microbatch, is_last
        self.place = None


class AccelerateSide(NotSteppedOver):
    """The part of a loader that accelerate sees."""

    device: torch.device | str | None
    _driven: DrivenLoop | None = None

    @abstractmethod
    def deal_out(self, num_ranks: int, rank: int, *, even_batches: bool = True, split_batches: bool = False) -> None:
        """Deliver this rank's share of the microbatches."""

    @abstractmethod
    def _deliver_to(self, device: torch.device) -> None:
        """Deliver to a device from the next microbatch on."""

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether the loader has a state of its own, which ``accelerator.save_state`` then saves: True."""
        return True

    @property
    def gradient_state(self) -> Any:
        """The ``GradientState`` of accelerate, which the loaders that accelerate prepares have."""
        if self._driven is None:
            raise AttributeError("gradient_state")
        return import_module("accelerate.state").GradientState()

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Whether accelerate drives the loop; from when an ``Accelerator`` asks, it does."""
        accelerator = accelerator_that_asks(currentframe())
        if accelerator is not None and self._driven is None:
            self._prepare_for(accelerator)
        return self._driven is not None

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, is_prepared: bool) -> None:
        if not is_prepared:
            self._driven = None

    def _prepare_for(self, accelerator: Any) -> None:
        if accelerator.dispatch_batches:
            raise ConfigurationError(
                "dispatch_batches", True, "None or False: each rank makes its own share of the microbatches"
            )
        num_ranks, rank = import_module("fkat_data.accelerated").data_ranks(accelerator)
        if num_ranks > 1:
            self.deal_out(
                num_ranks, rank, even_batches=accelerator.even_batches, split_batches=accelerator.split_batches
            )
        device: torch.device | None = accelerator.device if accelerator.device_placement else None
        if device is not None and device.type == "cuda" and self.device is None:
            self._deliver_to(device)
            device = None
        is_moved = device is not None and device.type not in ("cpu", "cuda")
        watch_checkpoints(self, accelerator)
        self._driven = DrivenLoop(device if is_moved else None, non_blocking=accelerator.non_blocking)
