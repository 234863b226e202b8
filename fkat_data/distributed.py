"""Ranks and collectives of torch.distributed, with defaults for a single process."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from fkat_data.errors import RankMismatchError
from fkat_data.interruption import genuine
from fkat_data.modes import without_modes
from fkat_data.roll_call import roll_call

_STATE_TIMEOUT_S = 600.0
_EXCHANGE_TIMEOUT_S = 600.0
_WARNING_S = 10.0
_HINT = "call it on every rank, also where one rank saves; or use local_state_dict(), which does not communicate"


def is_initialized() -> bool:
    """Return whether torch.distributed is initialised in this process."""
    return dist.is_available() and dist.is_initialized()


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's rank and the number of ranks: (0, 1) if torch.distributed is not initialised."""
    if not is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def gather(value: Any, timeout_s: float = _STATE_TIMEOUT_S, warning_s: float = _WARNING_S) -> list[Any]:
    """Return every rank's value, in order of rank. A collective: every rank must call it.

    Works on gloo, and on nccl over the current CUDA device.

    Args:
        value: Any picklable value; the ranks of one job trust each other.
        timeout_s: How long to wait for the other ranks, in seconds. It applies to gloo, which reports the missing
            ranks. Other backends use the timeout of their process group.
        warning_s: Seconds of waiting before one line of the log names the missing ranks.

    Raises:
        RankMismatchError: A rank did not call within ``timeout_s``.
    """
    if not is_initialized():
        return [value]
    with roll_call("state_dict()", _HINT, warning_s):
        return _gather(value, timeout_s)


def _gather(value: Any, timeout_s: float) -> list[Any]:
    if dist.get_backend() == dist.Backend.GLOO:
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=timeout_s), wait_all_ranks=True)
        except genuine(RuntimeError) as error:
            raise RankMismatchError(
                "state_dict()", f"not every rank called it within {timeout_s:.0f} s ({error})"
            ) from error
    values: list[Any] = [None] * dist.get_world_size()
    with without_modes():
        dist.all_gather_object(values, value)
    return values


def group_ranks(group: Any) -> list[int]:
    """Return the global ranks of a process group."""
    return dist.get_process_group_ranks(group)


class Exchange:
    """Exchanges integers between the ranks of a group in the background, over a gloo group of its own.

    Every rank of the group creates one, and calls its methods in the same order.

    Args:
        ranks: Global ranks of the group; None: every rank.
    """

    def __init__(self, ranks: Sequence[int] | None) -> None:
        self.ranks: list[int] = list(ranks) if ranks is not None else list(range(dist.get_world_size()))
        """Global ranks of the group."""
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
        """Whether an exchange is under way."""
        return self._work is not None

    def begin(self, numbers: Sequence[int]) -> None:
        """Start sending this rank's numbers, without waiting.

        Args:
            numbers: 64-bit integers, the same count on every rank.
        """
        with without_modes():
            sent = torch.tensor(numbers, dtype=torch.int64)
            self._gathered = [torch.empty_like(sent) for _ in self.ranks]
        self._work = dist.all_gather(self._gathered, sent, group=self._group, async_op=True)

    def finish(self) -> list[list[int]]:
        """Wait for every rank, and return the numbers of each in the order of ``ranks``."""
        self._work.wait()
        self._work = None
        return [numbers.tolist() for numbers in self._gathered]
