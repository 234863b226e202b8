"""Which ranks have come to a collective call: a warning names those that the others wait for.

Each rank counts its calls in the store of its process group. A rank that waits for long reads the counts of the others.
The store is a connection of its own beside the backend's, so this works with any backend, and takes no part in the call.
"""

import logging
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from fkat_data.interruption import suppress
from fkat_data.job_store import job_store

_log = logging.getLogger(__name__)

_COUNT = "fkat_data/calls/{}"
_CLAIM = "fkat_data/reported/{}"
_MOST_NAMED = 8


@contextmanager
def roll_call(call: str, hint: str, warning_s: float) -> Generator[None]:
    """Log one line if the call inside takes long because other ranks have not made it; every rank of the job uses this.

    One rank logs for all: rank 0 if it waits.

    Args:
        call: What the ranks call, for the log.
        hint: What the user can do, for the log.
        warning_s: Seconds before the line.
    """
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    if num_ranks == 1:
        yield
        return
    store = job_store()
    number = _counted(store, rank, 1)

    def warn() -> None:
        with suppress(RuntimeError):
            missing = [] if number is None else _missing(store, number, rank, num_ranks)
            if missing:
                text = "rank %d has waited %.0f s in %s for %s: %s"
                _log.warning(text, rank, warning_s, call, named_ranks(missing), hint)

    timer = threading.Timer(warning_s, warn)
    timer.daemon = True
    try:
        timer.start()
        yield
    except BaseException:
        _counted(store, rank, -1)
        raise
    finally:
        timer.cancel()


def named_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as a text, such as ``"ranks 1, 3"``; a long list is cut."""
    text = ", ".join(map(str, ranks[:_MOST_NAMED]))
    if len(ranks) == 1:
        return f"rank {text}"
    return f"ranks {text}{f' and {len(ranks) - _MOST_NAMED} more' if len(ranks) > _MOST_NAMED else ''}"


def _counted(store: Any, rank: int, amount: int) -> int | None:
    """Add to a rank's calls; None if the store cannot be reached, which must not end a call that does without it."""
    with suppress(RuntimeError):
        return None if store is None else store.add(_COUNT.format(rank), amount)
    return None


def _missing(store: Any, number: int, rank: int, num_ranks: int) -> list[int]:
    """Return the ranks that have not made a call; none if another rank reports them."""
    # The calling thread may be waiting in an operation of the store, which serves one at a time.
    with suppress(RuntimeError, AttributeError):
        store = store.clone()

    def is_here(other: int) -> bool:
        return store.add(_COUNT.format(other), 0) >= number

    if rank and (is_here(0) or store.add(_CLAIM.format(number), 1) > 1):
        return []
    return [other for other in range(num_ranks) if not is_here(other)]
