"""The plan of an iterable dataset: one task for each worker, whose microbatches are interleaved, as torch does it.

The dataset's iterator in one worker yields a *strand*: that worker's part of the dataset. Which strand is next follows from
the position: of those that have not ended, the one with the fewest microbatches delivered, and the first of those. So a
position needs no more than the step, and which strands have ended.
"""

import logging
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeGuard, cast

from fkat_data.errors import StateMismatchError
from fkat_data.errors.wording import counted
from fkat_data.loaders.loader_plan import LoaderPlan
from fkat_data.loaders.loader_state import LoaderState
from fkat_data.loaders.rank_states import state_at_epoch
from fkat_data.loaders.shortest_rank import ShortestRank, TakeUntilShortestRank
from fkat_data.plan.position import Position, ResumeState, Task, TaskOrigin
from fkat_data.runtime.interruption import genuine
from fkat_data.types import Stateful
from fkat_data.worker.epoch_factory import Snapshot, Strand, is_of_datasets

_logger = logging.getLogger(__name__)

# Microbatches are made ahead, and frameworks ask for the position of a batch or two ago.
_MOST_BEHIND = 4


class StrandPlan(LoaderPlan):
    """The plan of an iterable dataset's epochs: each task is one worker's iterator over the dataset, a strand.

    Args:
        num_strands: Strands, one for each worker; 0: there is no worker, and the only strand is the caller's.
        dp_rank: The loader's data-parallel rank.
        own_dataset: The dataset, if it is iterated in this process; None: workers have it.
        of_ranks: From a state, where strands are numbered over all ranks: which of them are this rank's; empty: this loader
            has all.
        shortest_rank: Gives by what ranks ask one another before each microbatch whether all have one; None: they do not.
    """

    def __init__(
        self,
        num_strands: int,
        dp_rank: int,
        own_dataset: Any,
        of_ranks: Mapping[str, Any] | None = None,
        *,
        shortest_rank: Callable[[], ShortestRank | None] | None = None,
    ) -> None:
        self._shortest_rank = shortest_rank
        self._of_ranks = dict(of_ranks or {})
        self.counts_all_ranks: bool = bool(self._of_ranks)
        # What other ranks had of each strand when this one took it over, in the epoch that was under way and the next.
        self._taken_over = {each["epoch"]: each["counts"] for each in self._of_ranks.get("taken_over", ())}
        self.num_strands: int | None = num_strands
        self._dp_rank = dp_rank
        self._own_dataset = own_dataset
        self._snapshots = [_Snapshots() for _ in range(max(1, num_strands))]
        # What the dataset of this process was when an epoch began: afterwards, it is ahead of the caller.
        self._begun: tuple[int, dict[str, Any] | None] = (-1, None)

    def payload(self, epoch: int, index: int) -> Strand:
        """Return an epoch of a strand."""
        number, num_strands = index, self.num_strands or 0
        if self._of_ranks:
            number, num_strands = self._of_ranks["strand_numbers"][index], self._of_ranks["all_strands"]
        return Strand(epoch, number, num_strands, self._snapshots[index].newest(epoch))

    def origin(self, epoch: int, index: int) -> TaskOrigin:
        """Return what says where random streams come from: a strand has its own, whichever rank takes it over."""
        if not self._of_ranks:
            return TaskOrigin(self._dp_rank, index, 0)
        first_rank, number = divmod(self._of_ranks["strand_numbers"][index], self._of_ranks["strands_per_rank"])
        return TaskOrigin(first_rank, number, 0)

    def interleaved(self, position: Position) -> Sequence[tuple[int, int]]:
        """Return the strands that have something left, and their first microbatches."""
        if self._begun[0] != position.epoch:
            self._begun = position.epoch, _first_snapshot(self._own_dataset)
        left = self._left(position)
        for index, delivered in left.items():
            # What was made behind a position has not reached the caller.
            self._snapshots[index].forget_past(position.epoch, delivered)
        had = self._counts_taken_over(position.epoch)
        return sorted(left.items(), key=lambda item: item[1] - had[item[0]])

    def record(self, task: Task, num_made: int, update: bytes) -> None:
        """Remember the dataset's state behind a microbatch."""
        self._snapshots[task.task_index].record(task.epoch, Snapshot(num_made, update))

    def end_task(self, task: Task, trailer: bytes) -> None:
        """Remember how the dataset begins the next epoch: it stays as this one has left it."""
        self._snapshots[task.task_index].record(task.epoch + 1, Snapshot(0, trailer))

    def leave(self, position: Position) -> None:
        """Begin the next epoch as this one began, in the strands that the caller has left."""
        epoch = position.epoch
        if self._begun[0] == epoch:
            self._begun = epoch + 1, self._begun[1]
        for index in self._left(position):
            self._snapshots[index].abandon(epoch)

    def wrapped_take(self, take: Callable[[], Any], engine: Any) -> Callable[[], Any]:
        """Return what takes microbatches as long as every rank has one, where ranks make rows of windows."""
        shortest_rank = None if self._shortest_rank is None else self._shortest_rank()
        if shortest_rank is None:
            return take
        begun: list[Position] = []

        def reached() -> tuple[int, int]:
            position = engine.position
            begun.extend([] if begun else [position])
            # Ranks that took strands over are at several steps, and go on in step.
            before = begun[0].step if begun[0].epoch == position.epoch else 0
            return position.epoch, position.step - before

        def cut() -> str:
            engine.cut_epoch()
            return "one microbatch or more left out on this rank"

        return TakeUntilShortestRank(take, shortest_rank, reached, lambda: 1 + engine.count_ahead(), cut, engine)

    def num_batches(self, epoch: int) -> int:
        """Raise.

        Raises:
            TypeError: A strand's end is not known before it comes.
        """
        raise TypeError("the number of an iterable dataset's microbatches is not known")

    def saved(self, position: Position) -> dict[str, Any]:
        """Return the plan's part of a state at a position."""
        left, ended = self._left(position), dict(position.ended)
        strands: list[dict[str, Any]] = []
        for index, snapshots in enumerate(self._snapshots):
            epoch = position.epoch + (index in ended)
            step = left[index] if index in left else self._counts_taken_over(epoch)[index]
            snapshot = snapshots.at(epoch, step)
            saved = self._snapshot_of_begin(epoch) if snapshot is None else _saved(snapshot)
            strand = {"epoch": epoch, "step": step, "delivered": ended.get(index, step), "snapshot": saved}
            if saved is not None and saved["step"]:
                # A loop that leaves the rest of a resumed epoch begins the next one as that one has begun.
                strand["begun"] = self._snapshot_at_start(snapshots, epoch)
            strands.append(strand)
        of_ranks = self._of_ranks
        if position.epoch > max(self._taken_over, default=-1):
            of_ranks = {name: value for name, value in of_ranks.items() if name != "taken_over"}
        return {"num_strands": self.num_strands, "strands": strands, **of_ranks}

    def read_state(self, state: LoaderState) -> ResumeState:
        """Return where an engine goes on after a state.

        Raises:
            StateMismatchError: The strands have not had their turns.
        """
        strands = state.strands
        epoch = min(saved["epoch"] for saved in strands)
        ended = {index: saved.get("delivered", 0) for index, saved in enumerate(strands) if saved["epoch"] > epoch}
        left = {index: saved["step"] for index, saved in enumerate(strands) if index not in ended}
        step = sum(left.values()) + sum(ended.values()) - self._step_offset(epoch)
        position = Position(epoch, 0, step, step, tuple(ended.items()))
        if self._left(position) != left:
            expected = f"<turns of the strands at step {step}>"
            raise StateMismatchError("strands", strands, expected, "the state is damaged: fkat_data never saves this")
        return ResumeState(position, sampler={"strands": strands})

    def load_plan_state(self, epoch: int, state: Mapping[str, Any] | None) -> None:
        """Remember the saved states of the dataset."""
        strands: Sequence[dict[str, Any]] = () if state is None else state["strands"]
        num_again = 0
        for snapshots, saved in zip(self._snapshots, strands, strict=state is not None):
            snapshot = saved["snapshot"]
            if "begun" in saved:
                self._begun = saved["epoch"], saved["begun"] if _keeps_position(self._own_dataset) else None
                if saved["begun"] is not None:
                    snapshots.record(saved["epoch"], _loaded(saved["begun"]))
            if snapshot is None:
                num_again += saved["step"]
            else:
                snapshots.record(saved["epoch"], _loaded(snapshot))
        if num_again:
            _logger.warning(
                "making %s again up to the saved position, because the saved state has none of the dataset. A "
                "dataset with state_dict() and load_state_dict() resumes at once",
                counted(num_again, "microbatch"),
            )

    def epoch_again(self, state: LoaderState) -> LoaderState:
        """Return the start of a state's epoch, in the same order; the state itself where that start is not known."""
        epoch = state.epoch
        if epoch in self._taken_over:
            return state
        return state_at_epoch(state, epoch, [self._snapshot_at_start(each, epoch) for each in self._snapshots])

    def _left(self, position: Position) -> dict[int, int]:
        """Return how many microbatches were delivered of each strand that has not ended."""
        had = self._counts_taken_over(position.epoch)
        num_delivered = position.step + self._step_offset(position.epoch) - sum(had)
        ended = tuple((index, count - had[index]) for index, count in position.ended)
        left = left_in_turns(len(self._snapshots), num_delivered, ended)
        return {index: had[index] + count for index, count in left.items()}

    def _step_offset(self, epoch: int) -> int:
        """Return what other ranks had of an epoch's strands that its step does not count, as it began at 0."""
        return 0 if epoch == min(self._taken_over, default=-1) else sum(self._counts_taken_over(epoch))

    def _counts_taken_over(self, epoch: int) -> Sequence[int]:
        return self._taken_over.get(epoch) or [0] * len(self._snapshots)

    def _snapshot_at_start(self, snapshots: "_Snapshots", epoch: int) -> dict[str, Any] | None:
        """Return the state of a strand's dataset when an epoch began; None: it has none, or it is not known."""
        begun = snapshots.at(epoch, 0)
        return self._snapshot_of_begin(epoch) if begun is None else _saved(begun)

    def _snapshot_of_begin(self, epoch: int) -> dict[str, Any] | None:
        return self._begun[1] if self._begun[0] == epoch else _first_snapshot(self._own_dataset)


class _Snapshots:
    """A strand's states of the dataset.

    They belong to positions. So one that was recorded for a microbatch that did not reach the caller says nothing about
    the caller's position.
    """

    def __init__(self) -> None:
        # By epoch, and in order: those at the beginnings of the last epochs, the newest, and some before it.
        self._recorded: tuple[tuple[int, Snapshot], ...] = ()

    def newest(self, epoch: int) -> Snapshot | None:
        """Return the newest state, if it is of an epoch."""
        newest = self._recorded[-1] if self._recorded else None
        return newest[1] if newest is not None and newest[0] == epoch else None

    def at(self, epoch: int, step: int) -> Snapshot | None:
        """Return the newest state at a position or before it, in the same epoch."""
        known = [snapshot for at, snapshot in self._recorded if at == epoch and snapshot.step <= step]
        return known[-1] if known else None

    def record(self, epoch: int, snapshot: Snapshot) -> None:
        """Remember where the dataset can go on in an epoch."""
        position = epoch, snapshot.step
        before = [known for known in self._recorded if (known[0], known[1].step) < position]
        after = [known for known in self._recorded if (known[0], known[1].step) > position]
        begun = [known for known in before[:-_MOST_BEHIND] if known[1].step == 0 and known[0] >= epoch - 1]
        self._recorded = (*begun, *before[-_MOST_BEHIND:], (epoch, snapshot), *after)

    def forget_past(self, epoch: int, step: int) -> None:
        """Forget the states of positions past this one."""
        self._recorded = tuple(known for known in self._recorded if (known[0], known[1].step) <= (epoch, step))

    def abandon(self, epoch: int) -> None:
        """Begin the next epoch as this one began."""
        self._recorded = tuple(known for known in self._recorded if known[0] <= epoch)
        begun = [snapshot for at, snapshot in self._recorded if at == epoch and snapshot.step == 0]
        if begun:
            self.record(epoch + 1, begun[0])


def left_in_turns(num_strands: int, num_delivered: int, ended: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return how many microbatches were delivered of each strand that has not ended.

    Args:
        num_strands: Strands.
        num_delivered: Microbatches that were delivered of all.
        ended: The strands that have ended, and the microbatches of each.
    """
    left_out = dict(ended)
    active = [index for index in range(num_strands) if index not in left_out]
    if not active:
        return {}
    rounds, num_ahead = divmod(num_delivered - sum(left_out.values()), len(active))
    return {index: rounds + (turn < num_ahead) for turn, index in enumerate(active)}


def _first_snapshot(own_dataset: Any) -> dict[str, Any] | None:
    """Return the state of a dataset of this process before an epoch's first microbatch; None: it has none yet."""
    if not _keeps_position(own_dataset):
        return None
    try:
        state = own_dataset.state_dict()
    except genuine(Exception):
        return None  # it has a state once it is iterated
    # A copy: what a dataset returns may move with it.
    return {"step": 0, "dataset": pickle.loads(pickle.dumps(state)), "iterator": None}


def _keeps_position(own_dataset: Any) -> TypeGuard[Stateful]:
    """Return whether a dataset of this process stays where an iteration has left it, and can be put elsewhere."""
    return isinstance(own_dataset, Stateful) and not is_of_datasets(own_dataset)


def _saved(snapshot: Snapshot) -> dict[str, Any]:
    return {"step": snapshot.step, **pickle.loads(snapshot.state)}


def _loaded(saved: Mapping[str, Any]) -> Snapshot:
    rest = {name: value for name, value in saved.items() if name != "step"}
    return Snapshot(saved["step"], pickle.dumps(rest))


_UNGATHERED = (
    "the state of one rank has its own strands alone. Save what state_dict() returns on every rank after deal_out(), where "
    "torch.distributed is initialised, or what merge_state_dicts() makes of each rank's local_state_dict()"
)


class StrandRanks(NamedTuple):
    """The ranks that have strands, and which of them this one is."""

    num_ranks: int = 1
    rank: int = 0

    def numbers(self, num_strands: int) -> list[int]:
        """Return this rank's strands of those of all ranks."""
        first, end = (rank * num_strands // self.num_ranks for rank in (self.rank, self.rank + 1))
        return [*range(first, end)]


def counts_all_ranks(dataset: object) -> bool:
    """Return whether a dataset takes its part from ``get_worker_info()`` alone, as one of the workers of all ranks."""
    return getattr(dataset, "counts_workers_of_all_ranks", False) is True


def own_strands(states: Sequence[LoaderState], ranks: StrandRanks) -> LoaderState:
    """Return where a rank goes on: at its own position, or with its strands of those of other ranks.

    Args:
        states: A state, or those of all ranks.
        ranks: The present ones.

    Raises:
        StateMismatchError: They do not have all strands, or there are more ranks than strands; or they were saved before
            the dataset counted the workers of all ranks.
    """
    of_plans = [state.plan_state for state in states]
    if len(states) == 1 and "strand_numbers" not in of_plans[0] and ranks.num_ranks == 1:
        numbers = [*range(max(1, of_plans[0]["num_strands"]))]
        of_one = {"strand_ranks": [1, 0], "all_strands": len(numbers), "strands_per_rank": len(numbers)}
        return replace(states[0], plan_state={**of_plans[0], "strand_numbers": numbers, **of_one})
    if not all("strand_numbers" in each for each in of_plans):
        hint = "the state was saved before the dataset had counts_workers_of_all_ranks: finish the epoch without it"
        raise StateMismatchError("strand_numbers", "<missing>", "<this rank's strands>", hint)
    for state in states:
        if [*state.plan_state["strand_ranks"]] == [*ranks]:
            return state
    return _taken_over(states, ranks)


def _taken_over(states: Sequence[LoaderState], ranks: StrandRanks) -> LoaderState:
    num_strands = cast("int", states[0].plan_state["all_strands"])
    strands: dict[int, Mapping[str, Any]] = {}
    for state in states:
        strands |= zip(state.plan_state["strand_numbers"], state.strands, strict=True)
    if set(strands) != set(range(num_strands)):
        found = f"<{len(strands)} of {num_strands} strands>"
        raise StateMismatchError("strand_numbers", found, f"<all {num_strands} strands>", _UNGATHERED)
    if num_strands < ranks.num_ranks:
        hint = "a strand is not divided: go on with fewer ranks, or begin again with more workers"
        raise StateMismatchError("all_strands", num_strands, f"<one for each of {ranks.num_ranks} ranks>", hint)
    numbers = ranks.numbers(num_strands)
    own = [dict(strands[number]) for number in numbers]
    epoch = min(strand["epoch"] for strand in own)
    if max(strand["epoch"] for strand in own) > epoch + 1:
        epochs = [strand["epoch"] for strand in own]
        raise StateMismatchError("epoch", epochs, "<two epochs at most>", "ranks that far apart cannot be in one epoch")
    for strand in own:
        if strand["epoch"] > epoch and strand["step"]:
            strand["delivered"] = 0  # it was that of the epoch ahead
    had = [strand["step"] if strand["epoch"] == epoch else strand.get("delivered", 0) for strand in own]
    ahead = [strand["step"] if strand["epoch"] > epoch else 0 for strand in own]
    of_ranks = {
        "num_strands": len(own),
        "strands": own,
        "strand_numbers": numbers,
        "strand_ranks": [*ranks],
        "taken_over": [{"epoch": epoch, "counts": had}, {"epoch": epoch + 1, "counts": ahead}],
    }
    return replace(states[0], epoch=epoch, step=sum(had), plan_state={**states[0].plan_state, **of_ranks})
