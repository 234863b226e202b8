"""Warn where accelerate loads a checkpoint that does not have a loader's place: it passes over that in silence."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import ref

__all__ = ["watch_checkpoints"]

_logger = logging.getLogger(__name__)


def watch_checkpoints(loader: Any, accelerator: Any) -> None:
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
                    "%s has no %s, the place of a %s, number %d of the prepared loaders: it stays where it is, and does "
                    "not go on where the run that saved was",
                    folder,
                    name,
                    type(loader).__name__,
                    index + 1,
                )

    return hook
