"""Refuse to be stepped over: a loader that keeps its place goes on there by itself."""

import sys
from abc import ABC, abstractmethod
from inspect import currentframe
from types import FrameType
from typing import Any

from fkat_data.errors import ConfigurationError

__all__ = ["NotSteppedOver", "accelerator_that_asks", "caller_of"]


class NotSteppedOver(ABC):
    """The part of a loader that accelerate's ``skip_first_batches`` reads."""

    _pin_memory_device: str = ""

    @property
    @abstractmethod
    def use_stateful_dataloader(self) -> bool:
        """Whether the loader has a state of its own."""

    @property
    def pin_memory_device(self) -> str:
        """The argument of torch's ``DataLoader``.

        Whatever makes a torch ``DataLoader`` of this one's parts reads it, accelerate's ``skip_first_batches`` first of
        all. The new loader would step over batches that come after the place that this one has loaded.

        Raises:
            ConfigurationError: accelerate asks a loader that has a state of its own.
        """
        caller = caller_of(currentframe()) if self.use_stateful_dataloader else None
        if caller is not None and caller.f_globals.get("__name__") == "accelerate.data_loader":
            raise ConfigurationError(
                caller.f_code.co_name,
                f"a fkat_data.{type(self).__name__}",
                "no call: after accelerator.load_state() the loader itself goes on with the next microbatch, so iterate "
                "it. For scripts that step over what they had, prepare it with fkat_data.huggingface.prepare("
                "accelerator, ...); for the Trainer of transformers, use fkat_data.huggingface.ExactResumeMixin",
            )
        return self._pin_memory_device

    @pin_memory_device.setter
    def pin_memory_device(self, pin_memory_device: str) -> None:
        self._pin_memory_device = pin_memory_device


def caller_of(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the function that called this one, comprehensions left out."""
    caller = None if frame is None else frame.f_back
    while caller is not None and caller.f_code.co_name in ("<dictcomp>", "<listcomp>", "<genexpr>"):
        caller = caller.f_back
    return caller


def accelerator_that_asks(frame: FrameType | None) -> Any:
    """Return the ``Accelerator`` whose method reads the property of this frame; None: somebody else does."""
    module = sys.modules.get("accelerate")
    caller = caller_of(frame)
    asks = None if caller is None else caller.f_locals.get("self")
    return asks if module is not None and isinstance(asks, module.Accelerator) else None
