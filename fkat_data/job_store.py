"""The key-value store that the ranks of a job share: each rank writes and reads there without waiting for the others."""

from typing import Any, NamedTuple

import torch.distributed as dist

from fkat_data.interruption import suppress
from fkat_data.machine import call_in_forks

_KEY = "fkat_data/first/{}"

#: The store of the process that this one was forked from. Its connection belongs to that process.
_inherited: list[Any] = []


class RankValue(NamedTuple):
    """A value, and the rank that knew it first.

    Attributes:
        rank: The rank.
        value: The value.
    """

    rank: int
    value: str


def job_store() -> Any:
    """Return the store of the default process group; None without a group, and in a process forked from a rank."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    # torch has no public name for it.
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return None if any(store is other for other in _inherited) else store


def first_value(key: str, value: str) -> RankValue | None:
    """Return the value that the job's ranks share under a key: the first one that any rank passes. No rank waits.

    Args:
        key: What the value is.
        value: What this rank knows; it becomes the shared value if no rank was earlier.

    Returns:
        The shared value; None where ranks cannot talk: torch.distributed is not initialised, or its store is lost.
    """
    store = _own_connection()
    with suppress(RuntimeError):
        if store is not None:
            return _read(store.compare_set(_KEY.format(key), "", f"{dist.get_rank()} {value}"))
    return None


def known_value(key: str) -> RankValue | None:
    """Return the value that the job's ranks share under a key; None if there is none yet, or ranks cannot talk."""
    store = _own_connection()
    with suppress(RuntimeError):
        if store is not None and store.check([_KEY.format(key)]):
            return _read(store.get(_KEY.format(key)))
    return None


def _own_connection() -> Any:
    """Return a connection of the caller's own: a store serves one thread at a time, and one may be waiting in it."""
    store = job_store()
    with suppress(RuntimeError, AttributeError):
        return store.clone()
    return store


def _read(found: bytes) -> RankValue:
    rank, _, value = found.decode().partition(" ")
    return RankValue(int(rank), value)


def _remember_inherited() -> None:
    store = job_store()
    if store is not None:
        _inherited.append(store)


call_in_forks(_remember_inherited)
