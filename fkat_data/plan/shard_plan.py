"""The plan of a rank: which shard comes at which index, according to a sampler."""

import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import zip_longest
from operator import length_hint
from typing import Any, cast

from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.errors.arguments import copied_state
from fkat_data.plan.growth import Growth, sampler_with
from fkat_data.plan.position import Position, Reshard, ResumeState, Task, TaskOrigin
from fkat_data.plan.resharding import first_step, of_epoch
from fkat_data.samplers.base import ShardSampler, check_shard, check_shards, has_own_iteration, shard_identity
from fkat_data.samplers.sequence import as_shard_sampler
from fkat_data.types import ResplittableSampler, Shard, Stateful, num_listed_of, tell_epoch


def _is_replayed(sampler: object) -> bool:
    """Return whether a sampler's shards are known only by iterating over this very object."""
    if isinstance(sampler, ShardSampler):
        kind = type(sampler)
        has_own_state = kind.state_dict is not ShardSampler.state_dict
        return has_own_iteration(sampler) and has_own_state and kind.load_state_dict is not ShardSampler.load_state_dict
    return isinstance(sampler, Iterable) and not isinstance(sampler, (str, bytes, Sequence, AbstractSet, Mapping))


class Plan(ABC):
    """The ordered tasks of a rank: each has an epoch and an index. Answers depend only on (epoch, index)."""

    has_leftover_rows: bool = False
    """Whether each task leaves something for the one behind it."""
    takes_updates: bool = False
    """Whether an update that comes with a microbatch is for ``record``; else it says which samples were left out."""
    num_skipped_samples: int = 0
    """Samples that were left out since the plan was made."""
    _shard_sampler: Any = None  # whose list is known, if it has one
    growth: Growth | None = None
    """How the list has grown since epochs that are under way were begun; None: it has not."""

    @abstractmethod
    def payload(self, epoch: int, index: int) -> Any:
        """Return what the worker gets for the task at an index, or None past the epoch's end."""

    @abstractmethod
    def num_tasks(self, epoch: int) -> int | None:
        """Return the number of tasks in an epoch, or None if unknown."""

    def origin(self, epoch: int, index: int) -> TaskOrigin | None:
        """Return where the random numbers of the task at an index come from; None: from this rank and the index."""
        return None

    def first_step(self, epoch: int) -> int:
        """Return the step at which this rank's part of an epoch begins."""
        return 0

    def digest(self, epoch: int) -> str | None:
        """Return 16 hexadecimal digits that identify the epoch's order, or None if it is not known in advance."""
        return None

    def plan_state(self, epoch: int) -> dict[str, Any] | None:
        """Return the state that a new process needs to reproduce the epoch's order, or None if it needs none."""
        return None

    def load_plan_state(self, epoch: int, state: dict[str, Any] | None) -> None:
        """Restore what ``plan_state`` returned for an epoch."""

    def adopt(self, state: ResumeState) -> None:
        """Become the plan of a saved state."""
        self.load_plan_state(state.position.epoch, state.sampler)

    @property
    def num_listed(self) -> int | None:
        """Shards of the list that its sampler has, to know whether it has grown; None: that is not known."""
        return num_listed_of(self._shard_sampler)

    def with_growth(self, growth: Growth | None) -> "Plan":
        """Return the plan of a list that has grown: epochs that were begun are over its first shards."""
        return self

    def renew(self, epoch: int, step: int) -> None:
        """Look again at what may have changed since the iteration before: another one begins.

        Args:
            epoch: The epoch of the caller's position.
            step: Microbatches of it that the caller has.
        """

    def begin_at(self, position: Position) -> Position:
        """Return where tasks begin for a position: an iteration begins there, or is begun again."""
        return position

    def interleaved(self, position: Position) -> Sequence[tuple[int, int]] | None:
        """Return the tasks that take turns from a position on, each microbatch by another one.

        Returns:
            Index and first microbatch of each, in turn; each has the group of workers of that index. None: one task
            follows the other.
        """
        return None

    def leave(self, position: Position) -> None:
        """Forget what was read of an epoch behind a position, because the epoch was left there."""

    def wrapped_take(self, take: Callable[[], Any], engine: Any) -> Callable[[], Any]:
        """Return a function to call instead of ``take``, which returns an engine's next microbatch."""
        return take

    def tasks_of(self, task: Task, position: Position) -> tuple[Task, ...]:
        """Return tasks whose first microbatch is the one at a position, which a task has made and is about to be delivered.

        Where there are several, each but the last makes none, and leaves rows for the one behind it.
        """
        before = TaskOrigin(0, 0, 0) if task.origin is None else task.origin
        number = before.first_microbatch + position.microbatch
        left_out = before.left_out + position.left_out
        return (task._replace(first_microbatch=number, left_out=left_out, fingerprint=None),)

    def saved_payload(self, payload: Any, number: int) -> Any:
        """Return what a task's payload says of its microbatch ``number``, as plain values."""
        return payload

    def loaded_payload(self, saved: Any, number: int) -> Any:
        """Return a payload that has the microbatch ``number`` of what ``saved_payload`` returned, on any rank."""
        return saved

    def record(self, task: Task, num_made: int, update: bytes) -> None:
        """Take what a task gave with its microbatch before ``num_made``, which the caller does not have yet."""

    def end_task(self, task: Task, trailer: bytes) -> None:
        """Take what a task gave behind its last microbatch, before the caller has that one."""


class PureShardPlan(Plan):
    """The plan of a sampler whose order is a pure function of the epoch.

    Args:
        sampler: Has ``shards(epoch)``.
        epoch: Epoch to read first, in the constructor; None: none.

    Raises:
        ConfigurationError: That epoch has no shards.
    """

    def __init__(self, sampler: Any, epoch: int | None = 0) -> None:
        self._shard_sampler = sampler
        self._epoch = -1
        self._shards: Sequence[Shard] = ()
        self._digest = ""
        if epoch is not None:
            self._go_to(epoch)

    def adopt(self, state: ResumeState) -> None:
        """Become the plan of a saved state."""
        self.growth = state.growth
        self._shard_sampler, self._epoch = sampler_with(self._shard_sampler, state.growth), -1

    def with_growth(self, growth: Growth | None) -> "PureShardPlan":
        """Return the plan of a list that has grown: epochs that were begun are over its first shards."""
        return PureShardPlan(sampler_with(self._shard_sampler, growth), None)

    def payload(self, epoch: int, index: int) -> Shard | None:
        """Return the shard at an index, or None past the epoch's end."""
        self._go_to(epoch)
        return self._shards[index] if index < len(self._shards) else None

    def num_tasks(self, epoch: int) -> int | None:
        """Return the number of shards in an epoch."""
        self._go_to(epoch)
        return len(self._shards)

    def digest(self, epoch: int) -> str | None:
        """Return 16 hexadecimal digits that identify the epoch's order."""
        self._go_to(epoch)
        if not self._digest:
            digest = hashlib.blake2b(digest_size=8, person=b"fkat_data plan")
            for shard in self._shards:
                digest.update(shard_identity(shard).encode())
            self._digest = digest.hexdigest()
        return self._digest

    def _go_to(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch = -1  # an interruption may come between the next two lines
            self._shards, self._digest = check_shards("shard_sampler", self._shard_sampler.shards(epoch)), ""
            self._epoch = epoch


class ReplayedShardPlan(Plan):
    """The plan of a user's own iterable, which may be endless: an epoch is one iteration, and a resume repeats it.

    If the iterable has ``set_epoch``, the plan calls it when an epoch begins. If it has ``state_dict`` and
    ``load_state_dict``, the plan saves its state when an epoch begins and restores it when that epoch is resumed.

    Args:
        iterable: Yields the shards of one epoch each time it is iterated.
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable: Any = iterable
        self._epoch = -1
        self._iterator: Iterator[Any] = iter(())
        self._begin_state: dict[str, Any] | None = None
        self._loaded: tuple[int, dict[str, Any]] | None = None
        self._next_index = 0
        self._was_begun = False
        self._has_failed = False
        self._recent: dict[int, Shard] = {}
        # States of an iterable that is its own iterator, before each shard was read.
        self._is_own_iterator = False
        self._states: dict[int, dict[str, Any]] = {}
        self._num_shards: int | None = None

    def payload(self, epoch: int, index: int) -> Shard | None:
        """Return the shard at an index, or None past the epoch's end.

        Raises:
            ConfigurationError: An item is not a shard, or the iterable can be read only once.
        """
        if epoch != self._epoch or self._has_failed or (index < self._next_index and index not in self._recent):
            self._begin(epoch)
        if index in self._recent:
            return self._recent[index]
        while self._next_index <= index:
            if self._is_own_iterator:
                self._states[self._next_index] = copied_state(self._iterable.state_dict())
            # After an error the iterator is over, or has gone past the shard that is missing here.
            self._has_failed = True
            shard = next(self._iterator, _OVER)
            if shard is not _OVER:
                self._recent[self._next_index] = check_shard(f"shard_sampler[{self._next_index}]", shard)
                self._next_index += 1
            self._has_failed = False
            if shard is _OVER:
                break
        if index >= self._next_index:
            self._end()
            return None
        # The sampler may be endless: drop shards that are too old to be asked for again.
        for old in [known for known in self._recent if known < index - _RECENT_SHARDS]:
            del self._recent[old]
            self._states.pop(old, None)
        return self._recent[index]

    def num_tasks(self, epoch: int) -> int | None:
        """Return the number of shards in an epoch, or None before it has been read to the end."""
        return self._num_shards if epoch == self._epoch else None

    def plan_state(self, epoch: int) -> dict[str, Any] | None:
        """Return the iterable's state at the start of an epoch."""
        if not isinstance(self._iterable, Stateful):
            return None
        if epoch != self._epoch:
            self._begin(epoch)
        return self._begin_state

    def load_plan_state(self, epoch: int, state: dict[str, Any] | None) -> None:
        """Restore the iterable's state when the epoch next begins."""
        self._loaded = None if state is None else (epoch, state)
        self._epoch = -1

    def leave(self, position: Position) -> None:
        """Rewind an iterable that is its own iterator from the prefetched shard to the caller's."""
        num_begun = position.task_index + (position.microbatch > 0)
        if position.epoch == self._epoch and num_begun in self._states:
            self._iterable.load_state_dict(copied_state(self._states[num_begun]))

    def _begin(self, epoch: int) -> None:
        if self._was_begun and _is_spent_by_reading(self._iterable):
            raise ConfigurationError(
                "shard_sampler",
                self._iterable,
                f"an iterable that can be iterated again, for epoch {epoch}: an iterator can be read only once",
            )
        self._was_begun = True
        is_stateful = isinstance(self._iterable, Stateful)
        if is_stateful:
            if self._loaded is not None and self._loaded[0] == epoch:
                self._iterable.load_state_dict(copied_state(self._loaded[1]))
            elif epoch == self._epoch and self._begin_state is not None:
                self._iterable.load_state_dict(copied_state(self._begin_state))
            self._begin_state = copied_state(self._iterable.state_dict())
        tell_epoch([self._iterable], epoch)
        self._iterator = iter(cast("Iterable[Any]", self._iterable))
        self._is_own_iterator = is_stateful and self._iterator is self._iterable
        self._states.clear()
        self._epoch, self._next_index, self._num_shards, self._has_failed = epoch, 0, None, False
        self._recent.clear()

    def _end(self) -> None:
        if self._next_index == 0:
            raise ConfigurationError(
                "shard_sampler",
                self._iterable,
                f"at least one shard in epoch {self._epoch}, but it yielded none",
            )
        self._num_shards = self._next_index


_RECENT_SHARDS = 1024
_OVER = object()


def _is_spent_by_reading(iterable: Iterable[Any]) -> bool:
    """Return whether it is a generator or another built-in iterator; a user's own iterator may be able to restart."""
    return isinstance(iterable, Iterator) and type(iterable).__module__ in ("builtins", "itertools")


def elastic_shard_plan(sampler: Any) -> Plan:
    """Return the plan of a sampler: an elastic one if the sampler can split its shards over any number of ranks.

    Raises:
        ConfigurationError: The sampler is not an iterable of shards, or its first epoch is empty.
    """
    if _is_replayed(sampler):
        # A sampler that is empty is refused before its first epoch; one whose length is not known is not.
        if hasattr(sampler, "__len__") and length_hint(sampler, 1) == 0:
            raise ConfigurationError("shard_sampler", sampler, "at least one shard")
        return ReplayedShardPlan(sampler)
    plan = PureShardPlan(as_shard_sampler("shard_sampler", sampler))
    if isinstance(sampler, ShardSampler) and isinstance(sampler, ResplittableSampler) and sampler.dp_size is not None:
        return ElasticShardPlan(sampler, plan, sampler.dp_size)
    return plan


class ElasticShardPlan(Plan):
    """A rank's plan when the number of ranks may change within an epoch.

    Args:
        sampler: Returns the shards of this rank and of any other.
        plan: Plan of the sampler for epochs that were not resharded.
        dp_size: Number of data-parallel ranks that the sampler splits its shards over.
        dp_rank: Rank whose plan this is; unused as long as there are no reshards.
        reshards: Earlier reshards.
    """

    def __init__(
        self,
        sampler: ResplittableSampler,
        plan: Plan,
        dp_size: int,
        dp_rank: int = 0,
        reshards: tuple[Reshard, ...] = (),
    ) -> None:
        self._shard_sampler = sampler
        self.dp_size = dp_size
        self._dp_rank = dp_rank
        self.reshards: tuple[Reshard, ...] = reshards
        self.own: Plan = plan
        """Plan of this rank's sampler, for epochs that were not resharded."""
        self._epoch = -1
        self._origins: Sequence[TaskOrigin] | None = None
        self._begun: dict[int, PureShardPlan] = {}
        self._digest = ""

    def for_rank(
        self, dp_size: int, dp_rank: int, epoch: int, reshards: tuple[Reshard, ...] = ()
    ) -> "ElasticShardPlan":
        """Return the plan of rank ``dp_rank`` of ``dp_size`` after some reshards.

        Raises:
            StateMismatchError: The epoch has fewer shards than ranks.
        """
        # What was begun may have fewer shards than there are ranks now.
        sampler, own = self._of_rank(dp_size, dp_rank, None if of_epoch(reshards, epoch) else epoch)
        return ElasticShardPlan(sampler, own, dp_size, dp_rank, reshards)

    def adopt(self, state: ResumeState) -> None:
        """Become the plan of a saved state, after its reshards."""
        self._dp_rank, self.reshards = state.dp_rank or 0, state.reshards
        self.growth = state.growth
        self._shard_sampler = sampler_with(self._shard_sampler, state.growth)
        self.own.adopt(state)
        self._epoch = -1

    def growth_since(self, epoch: int) -> Growth | None:
        """Return how long the list is, and how much of it the epochs from one on have that were begun before it grew.

        None where this rank has the whole list, or it is not known.
        """
        if self.num_listed is None:
            return None
        found = (self.growth or Growth(self.num_listed)).within(range(epoch, sys.maxsize))
        is_whole = not of_epoch(self.reshards, epoch) and found == Growth(self.num_tasks(epoch) or 0)
        return None if is_whole else found

    def with_growth(self, growth: Growth | None) -> "ElasticShardPlan":
        """Return the plan of a list that has grown: epochs that were begun are over its first shards."""
        own, sampler = self.own.with_growth(growth), sampler_with(self._shard_sampler, growth)
        return ElasticShardPlan(sampler, own, self.dp_size, self._dp_rank, self.reshards)

    def payload(self, epoch: int, index: int) -> Shard | None:
        """Return the shard at an index, or None past the epoch's end."""
        origin = self.origin(epoch, index)
        if self._origins is None:
            return self.own.payload(epoch, index)
        return None if origin is None else self._begun[origin.dp_rank].payload(epoch, origin.task_index)

    def origin(self, epoch: int, index: int) -> TaskOrigin | None:
        """Return the origin of the task at an index of an epoch that was resharded; None in other epochs."""
        self._go_to(epoch)
        return self._origins[index] if self._origins is not None and index < len(self._origins) else None

    def num_tasks(self, epoch: int) -> int | None:
        """Return the number of shards in an epoch; it may be 0 if the epoch was resharded."""
        self._go_to(epoch)
        return self.own.num_tasks(epoch) if self._origins is None else len(self._origins)

    def first_step(self, epoch: int) -> int:
        """Return the step at which this rank's part of an epoch begins."""
        return first_step(self.reshards, epoch)

    def digest(self, epoch: int) -> str | None:
        """Return 16 hexadecimal digits that identify the epoch's order and the origin of its tasks."""
        self._go_to(epoch)
        if self._origins is None:
            return self.own.digest(epoch)
        if not self._digest:
            digest = hashlib.blake2b(digest_size=8, person=b"fkat_data pieces")
            for origin in self._origins:
                shard = self._begun[origin.dp_rank].payload(epoch, origin.task_index)
                digest.update(f"({origin[:3]!r}, {shard_identity(shard)})".encode())
            self._digest = digest.hexdigest()
        return self._digest

    def _go_to(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        begun: dict[int, PureShardPlan] = {}

        def num_tasks(dp_size: int, dp_rank: int) -> int:
            begun[dp_rank] = self._of_rank(dp_size, dp_rank, epoch)[1]
            return begun[dp_rank].num_tasks(epoch) or 0

        dealt = _deal(epoch, self.reshards, self.dp_size, num_tasks)
        self._epoch = -1  # an interruption may come between the next lines
        self._origins = None if dealt is None else dealt[self._dp_rank]
        self._begun = (
            {} if self._origins is None else {origin.dp_rank: begun[origin.dp_rank] for origin in self._origins}
        )
        self._digest = ""
        self._epoch = epoch

    def _of_rank(self, dp_size: int, dp_rank: int, epoch: int | None) -> tuple[ResplittableSampler, PureShardPlan]:
        try:
            sampler = self._shard_sampler.for_rank(dp_size, dp_rank)
            return sampler, PureShardPlan(sampler, epoch)
        except ConfigurationError as error:
            raise StateMismatchError("dp_size", dp_size, self.dp_size, f"the shards have changed: {error}") from error


def _deal(
    epoch: int, reshards: Sequence[Reshard], dp_size: int, num_tasks: Callable[[int, int], int]
) -> list[list[TaskOrigin]] | None:
    """Return each rank's tasks of an epoch, by their origins, or None if the epoch had not begun at any reshard.

    Args:
        epoch: The epoch.
        reshards: All reshards so far, in order.
        dp_size: Current number of data-parallel ranks.
        num_tasks: Called with a number of ranks and a rank; returns the rank's number of tasks in the epoch.
    """
    known = of_epoch(reshards, epoch)
    if not known:
        return None
    sizes = [*(len(reshard.positions) for reshard in known), dp_size]
    origins = [[TaskOrigin(rank, index, 0) for index in range(num_tasks(sizes[0], rank))] for rank in range(sizes[0])]
    for reshard, size in zip(known, sizes[1:], strict=True):
        left = [_left_at(position, own, epoch) for own, position in zip(origins, reshard.positions, strict=True)]
        # By their index in a rank's list, then by rank, so that begun ones come first.
        order = [origin for row in zip_longest(*left) for origin in row if origin is not None]
        origins = [order[rank::size] for rank in range(size)]
    return origins


def _left_at(position: Position, origins: Sequence[TaskOrigin], epoch: int) -> list[TaskOrigin]:
    """Return a rank's tasks of an epoch, by their origins, that were not delivered in full at a position."""
    if position.epoch != epoch:
        return list(origins) if position.epoch < epoch else []
    left = list(origins[position.task_index :])
    if left:
        begun = left[0]
        left[0] = begun._replace(
            first_microbatch=begun.first_microbatch + position.microbatch, left_out=begun.left_out + position.left_out
        )
    return left
