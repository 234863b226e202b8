"""Ranks and collectives of torch.distributed, with defaults for a single process; the job's store, and who is missing."""

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from fkat_data.errors import ConfigurationError, RankMismatchError
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.runtime.machine import call_in_forks
from fkat_data.runtime.modes import without_modes

_log = logging.getLogger(__name__)
Asked = TypeVar("Asked")

_COUNT = "fkat_data/calls/{}"
_CLAIM = "fkat_data/reported/{}"
_MOST_NAMED = 8


@contextmanager
def roll_call(warning_s: float, call: str) -> Generator[None]:
    """Log one line if gathering takes long because other ranks have not called; every rank of the job uses this.

    One rank logs for all: rank 0 if it waits.

    Args:
        warning_s: Seconds before the line.
        call: What this rank has called.
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
                hint = f"call it on every rank{_HINT if call == _STATE else ''}"
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


_STATE_TIMEOUT_S = 600.0
_EXCHANGE_TIMEOUT_S = 600.0
_WARNING_S = 10.0
_STATE = "state_dict()"
_HINT = ", also where one rank saves; or use local_state_dict(), which does not communicate"


def is_initialized() -> bool:
    """Return whether torch.distributed is initialised in this process."""
    return dist.is_available() and dist.is_initialized()


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's rank and the number of ranks: (0, 1) if torch.distributed is not initialised."""
    if not is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def gather(
    value: Any, timeout_s: float = _STATE_TIMEOUT_S, warning_s: float = _WARNING_S, call: str = _STATE
) -> list[Any]:
    """Return every rank's value, in order of rank. A collective: every rank must call it.

    Works on gloo, and on nccl over the current CUDA device.

    Args:
        value: Any picklable value; the ranks of one job trust each other.
        timeout_s: How long to wait for the other ranks, in seconds. It applies to gloo, which reports the missing
            ranks. Other backends use the timeout of their process group.
        warning_s: Seconds of waiting before one line of the log names the missing ranks.
        call: What the caller has called, for that line and for errors.

    Raises:
        RankMismatchError: A rank did not call within ``timeout_s``, or has called something else.
    """
    if not is_initialized():
        return [value]
    with roll_call(warning_s, call):
        found = _gather((call, value), timeout_s)
    if any(other != call for other, _ in found):
        called = "; ".join(f"rank {rank} has called {other}" for rank, (other, _) in enumerate(found))
        raise RankMismatchError(call, called)
    return [each for _, each in found]


def agreed(call: str, epoch: int, step: int, check: Callable[[], Asked]) -> Asked:
    """Return what all ranks ask for by a call at one position. A collective, as ``gather``.

    Args:
        call: The call.
        epoch: This rank's epoch.
        step: Its step there.
        check: Returns what this rank asks for, or refuses it.

    Raises:
        RankMismatchError: They ask for something else, or at other positions, or only some refuse.
        ConfigurationError: All refuse it.
    """
    try:
        asked = check()
    except ConfigurationError as refusal:
        _compare(call, epoch, step, refusal)  # else the others would wait
        raise
    _compare(call, epoch, step, asked)
    return asked


def _compare(call: str, epoch: int, step: int, asked: object) -> None:
    of_ranks = gather((epoch, step, str(asked)), call=call)
    if any(found != of_ranks[0] for found in of_ranks):
        places = (f"step {at[1]} of epoch {at[0]}, {at[2]} on rank {rank}" for rank, at in enumerate(of_ranks))
        raise RankMismatchError(f"{call}, which all make at the same step", "; ".join(places))


def _gather(value: tuple[str, Any], timeout_s: float) -> list[tuple[str, Any]]:
    if dist.get_backend() == dist.Backend.GLOO:
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=timeout_s), wait_all_ranks=True)
        except genuine(RuntimeError) as error:
            raise RankMismatchError(value[0], f"not every rank called it within {timeout_s:.0f} s ({error})") from error
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

    @property
    def is_done(self) -> bool:
        """Whether ``finish`` returns at once: every rank has sent its numbers, or cannot."""
        return self._work is not None and self._work.is_completed()

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
