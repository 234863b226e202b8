"""Arguments of a ``Trainer`` that have no effect on a loader which batches and shuffles for itself."""

import logging
from dataclasses import fields
from typing import Any

__all__ = ["warn_of_idle_arguments"]

_logger = logging.getLogger(__name__)

_ARGUMENTS = {
    "data_seed",
    "dataloader_drop_last",
    "dataloader_in_order",
    "dataloader_multiprocessing_context",
    "dataloader_num_workers",
    "dataloader_persistent_workers",
    "dataloader_prefetch_factor",
    "train_sampling_strategy",
}
_COLLATORS = ("default_data_collator", "DataCollatorWithPadding")  # the Trainer's own choice


def warn_of_idle_arguments(trainer: Any, loader: Any) -> None:
    """Warn of what the caller has set without an effect on this loader, and of a batch size that is not the loader's.

    Args:
        trainer: The Trainer that trains on it.
        loader: A loader of this library.
    """
    args = trainer.args
    if args.process_index:
        return
    kind = type(loader).__name__
    values = ((each.name, getattr(args, each.name), each.default) for each in fields(args) if each.name in _ARGUMENTS)
    idle = [f"{name}={value!r}" for name, value, default in values if value != default]
    collator = trainer.data_collator
    name = getattr(collator, "__name__", type(collator).__name__)
    if name not in _COLLATORS:
        idle.append(f"data_collator={name}")
    if idle:
        _logger.warning("without effect: %s. The %s itself batches, shuffles and loads", ", ".join(idle), kind)
    size = getattr(loader, "batch_size", None)
    if type(size) is int and size != args.per_device_train_batch_size:
        _logger.warning(
            "the Trainer's samples per second count per_device_train_batch_size=%d samples for each microbatch, and the "
            "%s has %d: pass per_device_train_batch_size=%d",
            args.per_device_train_batch_size,
            kind,
            size,
            size,
        )
