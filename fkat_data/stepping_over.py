"""What accelerate makes of a loader's parts: another loader, which does not have its place."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from inspect import currentframe
from types import FrameType
from typing import Any

from fkat_data.errors import ConfigurationError

__all__ = ["NotSteppedOver", "accelerator_that_asks", "caller_of"]

_MODULE = "accelerate.data_loader"
_NOBODY: tuple[str, Mapping[str, Any]] = "", {}


class NotSteppedOver(ABC):
    """The part of a loader whose parts accelerate reads."""

    _pin_memory_device: str = ""

    @property
    @abstractmethod
    def use_stateful_dataloader(self) -> bool:
        """Whether the loader has a state of its own."""

    @abstractmethod
    def _check_parts(self, num_ranks: int, rank: int) -> None:
        """Prepare the parts for ``prepare_data_loader`` of accelerate, which makes a rank's loader of them.

        Raises:
            ConfigurationError: Samples would be lost, or come again.
        """

    @property
    def pin_memory_device(self) -> str:
        """The argument of torch's ``DataLoader``.

        Whatever makes a torch ``DataLoader`` of this one's parts reads it, functions of accelerate first of all.

        Raises:
            ConfigurationError: accelerate asks a loader that has a state of its own: for ``skip_first_batches``, whose
                loader would step over batches that come after the place that this one has loaded, or for a
                ``prepare_data_loader`` that would lose samples.
        """
        function, its_locals = _asking_function(currentframe()) if self.use_stateful_dataloader else _NOBODY
        if function == "prepare_data_loader":
            self._check_parts(its_locals["num_processes"], its_locals["process_index"])
        if function == "skip_first_batches":
            raise ConfigurationError(
                function,
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


def _asking_function(frame: FrameType | None) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the variables of accelerate's function that reads the property of this frame, else nothing.

    accelerate's own loaders pass on what they are asked. One without a state of its own has no place to go on from: it
    may be stepped over.
    """
    caller = caller_of(frame)
    if caller is not None and caller.f_code.co_name == "__getattr__" and _is_of_accelerate(caller):
        if not caller.f_locals["self"].use_stateful_dataloader:
            return _NOBODY
        caller = caller_of(caller)
    return (caller.f_code.co_name, caller.f_locals) if caller is not None and _is_of_accelerate(caller) else _NOBODY


def _is_of_accelerate(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == _MODULE


def accelerator_that_asks(frame: FrameType | None) -> Any:
    """Return the ``Accelerator`` whose method reads the property of this frame; None: somebody else does."""
    module = sys.modules.get("accelerate")
    caller = caller_of(frame)
    asks = None if caller is None else caller.f_locals.get("self")
    return asks if module is not None and isinstance(asks, module.Accelerator) else None
