"""What torch.distributed knows and carries, where it is initialised."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from fkat_data.errors import RankMismatchError

__all__ = ["Exchange", "gather", "group_ranks", "is_initialized", "rank_and_world_size"]

_STATE_TIMEOUT_S = 600.0
_EXCHANGE_TIMEOUT_S = 600.0


def is_initialized() -> bool:
    """Return whether torch.distributed is initialised in this process."""
    return dist.is_available() and dist.is_initialized()


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's rank and the number of ranks: (0, 1) where torch.distributed is not initialised."""
    if not is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def gather(value: Any, timeout_s: float = _STATE_TIMEOUT_S) -> list[Any]:
    """Return every rank's value in the order of ranks; collective, on every rank.

    Works on gloo and on nccl, whose tensors travel on the current CUDA device.

    Args:
        value: Anything that pickles; the ranks of one job trust each other.
        timeout_s: How long to wait for ranks that do not call. Gloo alone can tell which they are; the others wait
            for as long as their process group says.

    Raises:
        RankMismatchError: A rank has not called within ``timeout_s``.
    """
    if not is_initialized():
        return [value]
    if dist.get_backend() == dist.Backend.GLOO:
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=timeout_s), wait_all_ranks=True)
        except RuntimeError as error:
            raise RankMismatchError(
                "state_dict()", f"not every rank called it within {timeout_s:.0f} s ({error})"
            ) from error
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def group_ranks(group: Any) -> list[int]:
    """Return the members of a process group, as ranks of the whole job."""
    return dist.get_process_group_ranks(group)


class Exchange:
    """Numbers of every rank of a group, exchanged in the background over gloo, whatever the trainer's backend is.

    Made on every rank of the group, and used in the same order on each.

    Args:
        ranks: The group's members; None: every rank.
    """

    def __init__(self, ranks: Sequence[int] | None) -> None:
        self.ranks: list[int] = list(ranks) if ranks is not None else list(range(dist.get_world_size()))
        """The group's members."""
        self._group: Any = dist.new_group(
            ranks=self.ranks,
            timeout=timedelta(seconds=_EXCHANGE_TIMEOUT_S),
            backend="gloo",
            use_local_synchronization=ranks is not None,
        )
        self._work: Any = None
        self._gathered: list[torch.Tensor] = []

    @property
    def is_pending(self) -> bool:
        """Whether numbers are on their way."""
        return self._work is not None

    def begin(self, numbers: Sequence[int]) -> None:
        """Send this rank's numbers; does not wait.

        Args:
            numbers: Equally many on each rank; each fits 64 bits.
        """
        sent = torch.tensor(numbers, dtype=torch.int64)
        self._gathered = [torch.empty_like(sent) for _ in self.ranks]
        self._work = dist.all_gather(self._gathered, sent, group=self._group, async_op=True)

    def finish(self) -> list[list[int]]:
        """Return every member's numbers, in the order of ``ranks``; waits for those that have not sent theirs."""
        self._work.wait()
        self._work = None
        return [numbers.tolist() for numbers in self._gathered]
