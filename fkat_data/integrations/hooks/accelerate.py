"""What accelerate finds on a ``fkat_data.DataLoader``: a loader that it leaves alone, saves and loads.

accelerate asks ``_is_accelerate_prepared`` before it makes a loader of its own of this one's parts, and reads no other
attribute of a loader that is prepared. Its settings for loaders belong to the ``Accelerator`` that asks.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Protocol
from weakref import ref

import torch

from fkat_data.errors import ConfigurationError
from fkat_data.errors.tracebacks import caller_of

_logger = logging.getLogger(__name__)

_MODULE = "accelerate.data_loader"
_NOBODY: tuple[str, Mapping[str, Any]] = "", {}


class AcceleratedSession(Protocol):
    """The session of a loader that accelerate may drive.

    Attributes:
        framework_loop: The framework's loop that iterates the loader; None: the program does.
    """

    framework_loop: Any

    def check_parts(self, loader: Any, num_ranks: int, rank: int) -> None:
        """Prepare the loader's parts for a rank's loader that accelerate makes of them; raise ConfigurationError."""
        ...

    def deliver_to(self, loader: Any, device: torch.device) -> None:
        """Deliver to a device from the next microbatch on."""
        ...


class AccelerateLoop:
    """A loader's iterations where accelerate drives the loop: one microbatch ahead, and the position of the loop.

    Args:
        device: Where microbatches go; None: they stay where they are.
        non_blocking: Whether copies to the device are asynchronous.
    """

    def __init__(self, device: torch.device | None, *, non_blocking: bool) -> None:
        self._device = device
        self._non_blocking = non_blocking
        self.saved: Any = None
        """The loader's state behind the last microbatch that the loop has received; None: the loader is there."""

    def copy(self) -> "AccelerateLoop":
        """Return one for a copy of the loader, which begins at this one's position."""
        return AccelerateLoop(self._device, non_blocking=self._non_blocking)

    def microbatches(
        self, begin: Callable[[], Iterator[Any]], state: Callable[[], Any], num_in_last_round: int
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
        self, follow: Any, begin: Callable[[], Iterator[Any]], state: Callable[[], Any]
    ) -> Iterator[tuple[Any, bool]]:
        with_states = ((microbatch, state()) for microbatch in begin())
        for (microbatch, saved), is_last in follow.with_end(with_states):
            # Behind the last one, the loader is in its next epoch already.
            self.saved = None if is_last else saved
            yield microbatch, is_last
        self.saved = None


def is_prepared(loader: Any, session: AcceleratedSession, frame: FrameType | None) -> bool:
    """Return whether accelerate drives a loader's loop; from when an ``Accelerator`` asks, it does.

    Args:
        loader: The loader.
        session: Its session.
        frame: That of the property which the ``Accelerator`` reads.
    """
    accelerator = _accelerator_that_asks(frame)
    if accelerator is not None and session.framework_loop is None:
        _prepare(loader, session, accelerator)
    return session.framework_loop is not None


def gradient_state(session: AcceleratedSession) -> Any:
    """Return the ``GradientState`` of accelerate, which the loaders that accelerate prepares have.

    Raises:
        AttributeError: The loader is not prepared.
    """
    if session.framework_loop is None:
        raise AttributeError("gradient_state")
    return import_module("accelerate.state").GradientState()


def check_question(loader: Any, session: AcceleratedSession, frame: FrameType | None) -> None:
    """Check that no function of accelerate that asks would lose samples.

    Args:
        loader: The loader.
        session: Its session.
        frame: That of a property which functions read that make a torch ``DataLoader`` of a loader's parts.

    Raises:
        ConfigurationError: It is ``skip_first_batches``, whose loader would step over batches that come after the loaded
            position; or a ``prepare_data_loader`` that would deal out again what is this rank's.
    """
    function, its_locals = _asking_function(frame)
    if function == "prepare_data_loader":
        session.check_parts(loader, its_locals["num_processes"], its_locals["process_index"])
    if function == "skip_first_batches":
        raise ConfigurationError(
            function,
            f"a fkat_data.{type(loader).__name__}",
            "no call: after accelerator.load_state() the loader continues with the next microbatch, so "
            "iterate it. If a script skips batches itself, prepare the loader with "
            "fkat_data.huggingface.prepare(accelerator, ...); for the Trainer of transformers, use "
            "fkat_data.huggingface.ExactResumeMixin",
        )


def _prepare(loader: Any, session: AcceleratedSession, accelerator: Any) -> None:
    if accelerator.dispatch_batches:
        raise ConfigurationError(
            "dispatch_batches", True, "None or False: each rank makes its own share of the microbatches"
        )
    num_ranks, rank = import_module("fkat_data.integrations.huggingface.accelerated").data_ranks(accelerator)
    if num_ranks > 1:
        loader.deal_out(num_ranks, rank, even_batches=accelerator.even_batches, split_batches=accelerator.split_batches)
    device: torch.device | None = accelerator.device if accelerator.device_placement else None
    if device is not None and device.type == "cuda" and loader.device is None:
        session.deliver_to(loader, device)
        device = None
    is_moved = device is not None and device.type not in ("cpu", "cuda")
    _watch_checkpoints(loader, accelerator)
    session.framework_loop = AccelerateLoop(device if is_moved else None, non_blocking=accelerator.non_blocking)


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
