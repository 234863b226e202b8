"""Epochs of unknown length that end together on all ranks: after the last microbatch of the rank that has fewest."""

import _thread
import logging
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from fkat_data.errors import RankMismatchError
from fkat_data.errors.wording import add_note
from fkat_data.runtime.distributed import Exchange, job_store, rank_and_world_size
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.runtime.lifetime import on_collected

_logger = logging.getLogger(__name__)


_Round = tuple[int, int, int, bool]
_MOST_KEPT = 8
_RECHECK_S = 0.05
_WAITED = (
    "fkat_data: while ranks exchanged how many microbatches their windows have. If another rank has failed, its own "
    "error says why"
)


# How long the thread sleeps between two looks at a round.
_SHORTEST_S, _LONGEST_S = 5e-5, 2e-3
_STOPPED_WITHIN_S = 1.0
# A group that dies in a thread while the interpreter ends aborts the process, and so does a wait in torch there: it takes
# the lock of Python again. So groups die with this module, and the thread waits by itself and is stopped before.
_exchanges: list[Exchange] = []


class _Rounds:
    """Exchanges numbers between ranks in a thread of its own.

    No signal's handler runs there: whatever interrupts its caller, who asks again then, a round is begun once.
    """

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[_Round, list[int]] | None] = SimpleQueue()
        self._rung: SimpleQueue[None] = SimpleQueue()
        self._heard: dict[_Round, list[list[int]] | BaseException] = {}
        running = _thread.allocate_lock()
        running.acquire()
        stopped: list[bool] = []
        on_collected(self, partial(_stop, self._asked, stopped, running), at_exit=True)
        _exchanges.append(Exchange(None))
        arguments = (_exchanges[-1], self._asked, self._heard, self._rung, stopped, running)
        _thread.start_new_thread(_exchange, arguments)

    def ask(self, name: _Round, numbers: list[int]) -> None:
        """Begin a round, unless it has begun; do not wait."""
        self._asked.put((name, numbers))

    def heard(self, name: _Round) -> list[list[int]]:
        """Wait for a round, one of the last that were begun, and return the numbers of each rank.

        Raises:
            Exception: The ranks cannot exchange anything.
        """
        while name not in self._heard:
            # The ring may be lost with a call that was interrupted.
            with suppress(Empty):
                self._rung.get(timeout=_RECHECK_S)
        found = self._heard[name]
        if isinstance(found, BaseException):
            raise found
        return found


def _exchange(
    exchange: Exchange,
    asked: "SimpleQueue[tuple[_Round, list[int]] | None]",
    heard: "dict[_Round, list[list[int]] | BaseException]",
    rung: "SimpleQueue[None]",
    stopped: list[bool],
    running: _thread.LockType,
) -> None:
    while (request := asked.get()) is not None:
        name, numbers = request
        if name in heard:
            continue
        try:
            exchange.begin(numbers)
            pause_s = _SHORTEST_S
            while not exchange.is_done and not stopped:
                time.sleep(pause_s)
                pause_s = min(1.5 * pause_s, _LONGEST_S)
            if stopped:
                break
            heard[name] = exchange.finish()
        except BaseException as error:  # noqa: BLE001 - raised where the round is waited for
            add_note(error, _WAITED)
            heard[name] = error
        while len(heard) > _MOST_KEPT:
            del heard[next(iter(heard))]
        rung.put(None)
    running.release()


def _stop(
    asked: "SimpleQueue[tuple[_Round, list[int]] | None]", stopped: list[bool], running: _thread.LockType
) -> None:
    """End the thread: another rank may never take part in the round under way."""
    stopped.append(True)
    asked.put(None)
    running.acquire(timeout=_STOPPED_WITHIN_S)


class ShortestRank:
    """Agrees with the other ranks how many microbatches of an epoch the rank with the fewest has.

    Each rank says how many it is certain to have, and all deliver the smallest of these numbers before they say it again:
    in the background, once they are halfway there. Only where that has not shown more do they wait for one another, in
    the caller's thread, until each has made its next microbatch or knows that there is none. Then the epoch is over for
    all, and what the others have left is left out.
    """

    def __init__(self) -> None:
        self._rounds = _Rounds()
        self._num_iterations = 0
        self._ahead: _Round | None = None
        # Up to which step of which epoch all ranks have microbatches: kept until the next iteration for a call that an
        # interruption has kept from returning it.
        self._agreed = -1, 0

    def begin(self) -> None:
        """Forget an iteration that was left. A collective.

        Raises:
            RankMismatchError: Ranks have left it at different positions.
        """
        self._look()
        self._agreed = -1, 0
        self._num_iterations += 1

    def look_ahead(self, epoch: int, step: int, num_certain: int) -> None:
        """Say how many microbatches this rank is certain to have from a step on; do not wait. A collective."""
        name = (self._num_iterations, epoch, step, True)
        self._rounds.ask(name, [epoch, step, num_certain])
        self._ahead = name

    def agree(self, epoch: int, step: int, num_certain: int) -> int:
        """Return how many microbatches each rank is certain to have from a step on. A collective.

        Args:
            epoch: The epoch.
            step: Microbatches of it that each rank has delivered.
            num_certain: Microbatches that this rank is certain to have behind them; 0: its epoch is over.

        Raises:
            RankMismatchError: Ranks are at different positions.
        """
        self._look()
        while self._agreed[0] != epoch or self._agreed[1] <= step:
            name = (self._num_iterations, epoch, step, False)
            self._rounds.ask(name, [epoch, step, num_certain])
            if self._hear(name):
                break
            self._num_iterations += 1  # as another round
        return self._agreed[1] - step

    def _look(self) -> None:
        """Learn what the other ranks have said ahead, if that was asked for."""
        if self._ahead is not None:
            self._hear(self._ahead)
            self._ahead = None

    def _hear(self, name: _Round) -> bool:
        """Learn what the ranks have said; return False if others end the epoch before this rank's first."""
        found = self._rounds.heard(name)
        positions = [(each[0], each[1]) for each in found]
        first = min(positions)
        if self._agreed == (-1, 0) and {*positions} == {first, (first[0] + 1, 0)}:
            # A state behind an epoch's last microbatch: where nothing was left, it says that the next one begins.
            if (name[1], name[2]) != first:
                return False
            self._agreed = first
            return True
        if len(set(positions)) > 1:
            self._ahead = None
            per_rank = ", ".join(f"epoch {at[0]} step {at[1]} on rank {rank}" for rank, at in enumerate(positions))
            raise RankMismatchError("the microbatches that were delivered", per_rank)
        _, epoch, step, _ = name
        self._agreed = epoch, step + min(each[2] for each in found)
        return True


class ShortestRankOfJob:
    """Makes the ``ShortestRank`` of a job: once, since a process group stays until the program ends."""

    def __init__(self) -> None:
        self._made: tuple[Any, ShortestRank | None] | None = None

    def get(self, *, has_rank: bool = True) -> ShortestRank | None:
        """Return it; None, with a warning, where ranks cannot ask one another. A collective when it is made.

        Args:
            has_rank: Whether the loader was given its rank.
        """
        job = job_store()
        if self._made is None or self._made[0] is not job:
            is_of_ranks = has_rank and rank_and_world_size()[1] > 1
            self._made = job, ShortestRank() if is_of_ranks else None
            if not is_of_ranks:
                _logger.warning(
                    "%s, so each ends its epoch alone: window_fn may make more rows on one rank than on another",
                    "torch.distributed does not know these ranks" if has_rank else "these ranks were given no dp_rank=",
                )
        return self._made[1]

    def __reduce__(self) -> tuple[type["ShortestRankOfJob"], tuple[()]]:
        return ShortestRankOfJob, ()


class TakeUntilShortestRank:
    """Takes microbatches until one of the ranks has none. An interrupted call can be made again.

    Args:
        take: Takes this rank's next one, or raises StopIteration.
        shortest_rank: Asks the ranks. An iteration begins here, in a collective.
        position: Returns the epoch, and the microbatches of it before the next one.
        num_certain: Returns how many microbatches are certain to come, that which was just taken included.
        cut: Ends the epoch here, and returns what is left out, in words.
        engine: Begins the next epoch where the loaded one is over for all.
    """

    def __init__(
        self,
        take: Callable[[], Any],
        shortest_rank: ShortestRank,
        position: Callable[[], tuple[int, int]],
        num_certain: Callable[[], int],
        cut: Callable[[], str],
        engine: Any,
    ) -> None:
        shortest_rank.begin()
        self._take = take
        self._shortest_rank = shortest_rank
        self._position = position
        self._num_certain = num_certain
        self._cut = cut
        self._engine = engine
        self._epoch = self._next_step = self._agreed_up_to = self._halfway = -1
        # Whether the next microbatch is the first behind a loaded position within an epoch.
        self._is_within = False

    def __call__(self) -> Any:
        """Return the next microbatch; raise StopIteration where a rank has none."""
        here, step = self._position()
        if self._epoch < 0:
            self._epoch, self._next_step, self._is_within = here, step, self._engine.position.step > 0
        if here != self._epoch:
            step = self._next_step  # behind an epoch's last microbatch, a position is in the next one
        microbatch, has_one = self._next()
        if step >= self._agreed_up_to or not has_one:
            # Where nothing was left at a loaded position, the next epoch has begun.
            is_of_epoch = has_one and self._position()[0] == self._epoch
            num_agreed = self._shortest_rank.agree(self._epoch, step, self._num_certain() if is_of_epoch else 0)
            if not num_agreed and self._is_within:
                # Nor is anything left for all together: this rank goes on with the next epoch, as the others do.
                if is_of_epoch:
                    self._engine.skip_epoch()
                    microbatch, has_one = self._next()
                self._epoch, step, self._is_within = self._epoch + 1, 0, False
                num_agreed = self._shortest_rank.agree(self._epoch, step, self._num_certain() if has_one else 0)
            if not num_agreed:
                self._end(step, is_cut=has_one)
            self._agreed_up_to, self._halfway = step + num_agreed, step + num_agreed // 2
        if step == self._halfway:
            self._shortest_rank.look_ahead(self._epoch, step, self._num_certain())
        self._next_step, self._is_within = step + 1, False
        return microbatch

    def _next(self) -> tuple[Any, bool]:
        """Return what this rank has next, and whether it has one."""
        try:
            return self._take(), True
        except genuine(StopIteration):
            return None, False

    def _end(self, step: int, *, is_cut: bool) -> None:
        """End the epoch, in which another rank has no more.

        Raises:
            StopIteration: Always.
        """
        if is_cut:
            left = self._cut()
            _logger.warning("epoch %d ends after step %d, where another rank has no more: %s", self._epoch, step, left)
        raise StopIteration
