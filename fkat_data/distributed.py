"""What torch.distributed knows, where it is initialised."""

from typing import Any

import torch.distributed

__all__ = ["gather", "rank_and_world_size"]


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's rank and the number of ranks: (0, 1) where torch.distributed is not initialised."""
    if not _is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def gather(value: Any) -> list[Any]:
    """Return every rank's value in the order of ranks; collective, on every rank.

    Works on gloo and on nccl, whose tensors travel on the current CUDA device.

    Args:
        value: Anything that pickles; the ranks of one job trust each other.
    """
    if not _is_initialized():
        return [value]
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def _is_initialized() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
