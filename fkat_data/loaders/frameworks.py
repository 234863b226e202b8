"""What accelerate and Lightning find on a ``fkat_data.DataLoader``: a loader that they leave alone, save and load.

accelerate asks ``_is_accelerate_prepared`` before it makes a loader of its own of this one's parts, and reads no other
attribute of a loader that is prepared. Its settings for loaders belong to the ``Accelerator`` that asks.
"""

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from inspect import currentframe
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import ref

import torch

from fkat_data.errors import ConfigurationError

_logger = logging.getLogger(__name__)

_MODULE = "accelerate.data_loader"
_NOBODY: tuple[str, Mapping[str, Any]] = "", {}


class DrivenLoop:
    """A loader's iterations where accelerate drives the loop: one microbatch ahead, and the position of the loop.

    Args:
        device: Where microbatches go; None: they stay where they are.
        non_blocking: Whether copies to the device are asynchronous.
    """

    def __init__(self, device: torch.device | None, *, non_blocking: bool) -> None:
        self._device = device
        self._non_blocking = non_blocking
        self.saved: dict[str, Any] | None = None
        """The loader's state behind the last microbatch that the loop has received; None: the loader is there."""

    def copy(self) -> "DrivenLoop":
        """Return one for a copy of the loader, which begins at this one's position."""
        return DrivenLoop(self._device, non_blocking=self._non_blocking)

    def microbatches(
        self, begin: Callable[[], Iterator[Any]], state: Callable[[], dict[str, Any]], num_in_last_round: int
    ) -> Iterator[Any]:
        """Return an epoch, or the rest of one, as accelerate wants it.

        Args:
            begin: Begins it.
            state: Returns the loader's position.
            num_in_last_round: Samples that ``gather_for_metrics`` keeps of the last round; 0: all.
        """
        follow = import_module("fkat_data.integrations.huggingface.accelerated")
        move = follow.mover_to(self._device, non_blocking=self._non_blocking)
        return follow.accelerated(self._followed(follow, begin, state), move, num_in_last_round)

    def _followed(
        self, follow: Any, begin: Callable[[], Iterator[Any]], state: Callable[[], dict[str, Any]]
    ) -> Iterator[tuple[Any, bool]]:
        with_states = ((microbatch, state()) for microbatch in begin())
        for (microbatch, saved), is_last in follow.with_end(with_states):
            # Behind the last one, the loader is in its next epoch already.
            self.saved = None if is_last else saved
            yield microbatch, is_last
        self.saved = None


class AccelerateSide(ABC):
    """The part of a loader that accelerate sees."""

    device: torch.device | str | None
    _driven: DrivenLoop | None = None
    _pin_memory_device: str = ""

    @abstractmethod
    def deal_out(self, num_ranks: int, rank: int, *, even_batches: bool = True, split_batches: bool = False) -> None:
        """Deliver this rank's share of the microbatches."""

    @abstractmethod
    def _deliver_to(self, device: torch.device) -> None:
        """Deliver to a device from the next microbatch on."""

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
            ConfigurationError: accelerate asks: for ``skip_first_batches``, whose loader would step over batches that come
                after the position that this one has loaded, or for a ``prepare_data_loader`` that would lose samples.
        """
        function, its_locals = _asking_function(currentframe())
        if function == "prepare_data_loader":
            self._check_parts(its_locals["num_processes"], its_locals["process_index"])
        if function == "skip_first_batches":
            raise ConfigurationError(
                function,
                f"a fkat_data.{type(self).__name__}",
                "no call: after accelerator.load_state() the loader continues with the next microbatch, so "
                "iterate it. If a script skips batches itself, prepare the loader with "
                "fkat_data.huggingface.prepare(accelerator, ...); for the Trainer of transformers, use "
                "fkat_data.huggingface.ExactResumeMixin",
            )
        return self._pin_memory_device

    @pin_memory_device.setter
    def pin_memory_device(self, pin_memory_device: str) -> None:
        self._pin_memory_device = pin_memory_device

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
        accelerator = _accelerator_that_asks(currentframe())
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
        num_ranks, rank = import_module("fkat_data.integrations.huggingface.accelerated").data_ranks(accelerator)
        if num_ranks > 1:
            self.deal_out(
                num_ranks, rank, even_batches=accelerator.even_batches, split_batches=accelerator.split_batches
            )
        device: torch.device | None = accelerator.device if accelerator.device_placement else None
        if device is not None and device.type == "cuda" and self.device is None:
            self._deliver_to(device)
            device = None
        is_moved = device is not None and device.type not in ("cpu", "cuda")
        _watch_checkpoints(self, accelerator)
        self._driven = DrivenLoop(device if is_moved else None, non_blocking=accelerator.non_blocking)


def caller_of(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the function that called this one, comprehensions left out."""
    caller = None if frame is None else frame.f_back
    while caller is not None and caller.f_code.co_name in ("<dictcomp>", "<listcomp>", "<genexpr>"):
        caller = caller.f_back
    return caller


def _asking_function(frame: FrameType | None) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the variables of accelerate's function that reads the property of this frame, else nothing.

    accelerate's own loaders pass on what they are asked. One without a state of its own has no position to go on from: it
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


def _accelerator_that_asks(frame: FrameType | None) -> Any:
    """Return the ``Accelerator`` whose method reads the property of this frame; None: somebody else does."""
    module = sys.modules.get("accelerate")
    caller = caller_of(frame)
    asks = None if caller is None else caller.f_locals.get("self")
    return asks if module is not None and isinstance(asks, module.Accelerator) else None


def _watch_checkpoints(loader: Any, accelerator: Any) -> None:
    """Have ``accelerator.load_state()`` warn if a checkpoint does not say where this loader goes on.

    Args:
        loader: One that the accelerator saves.
        accelerator: An ``accelerate.Accelerator``.
    """
    accelerator.register_load_state_pre_hook(_hook(ref(loader), ref(accelerator)))


def _hook(loader_of: Callable[[], Any], accelerator_of: Callable[[], Any]) -> Callable[[Any, Any], None]:
    def hook(models: Any, folder: Any) -> None:
        del models
        loader, accelerator = loader_of(), accelerator_of()
        loaders: list[Any] = [] if accelerator is None else accelerator._dataloaders  # noqa: SLF001 - their order is their names
        for index, each in enumerate(loaders):
            name = f"dl_state_dict_{index}.bin" if index else "dl_state_dict.bin"
            if each is loader and not (Path(folder) / name).exists():
                _logger.warning(
                    "%s has no %s with the position of the %s that was prepared as number %d: this loader stays "
                    "where it is, and does not resume",
                    folder,
                    name,
                    type(loader).__name__,
                    index + 1,
                )

    return hook


_PACKAGES = ("lightning.fabric", "lightning_fabric")
_REMAKES = "_reinstantiate_wrapped_cls"


def original_of(loader: object) -> Any:
    """Return the loader that Lightning makes this one of, whose constructor asks; None: somebody else makes it."""
    frame = currentframe() if any(package in sys.modules for package in _PACKAGES) else None
    frame = None if frame is None else frame.f_back
    while frame is not None and frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is loader:
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != _REMAKES or not _is_in(frame, "utilities.data"):
        return None
    return frame.f_locals.get("orig_object")


def is_begun_by_fabric(frame: FrameType | None) -> bool:
    """Return whether the loader of ``Fabric.setup_dataloaders`` begins the iteration that this frame begins."""
    caller = caller_of(frame)
    return caller is not None and _is_in(caller, "wrappers")


def _is_in(frame: FrameType, module: str) -> bool:
    return frame.f_globals.get("__name__") in {f"{package}.{module}" for package in _PACKAGES}
