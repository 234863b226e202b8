"""Iterable datasets: a strand a worker, each a loader of its own, and microbatches in turn as torch takes them.

The turn follows from the positions of those loaders: of the strands that have something left, the one with the fewest
microbatches delivered is next, and the first of those. So nothing but positions has to be saved.
"""

import logging
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard, cast

from fkat_data.drop_in.datasets_library import is_of_datasets
from fkat_data.drop_in.own_terms import DataLoaderStatistics
from fkat_data.drop_in.saved_state import state_at_epoch
from fkat_data.drop_in.strand import Snapshot, Stamped
from fkat_data.drop_in.strand_plan import StrandPlan
from fkat_data.errors import StaleIteratorError
from fkat_data.interruption import genuine
from fkat_data.iteration import Iterations
from fkat_data.loader.sharded import ShardedDataLoader
from fkat_data.observe.statistics import LoaderStatistics
from fkat_data.quantities import counted
from fkat_data.torch_iterator import TorchIterator
from fkat_data.types import Stateful

__all__ = ["StrandSource", "first_strand_state"]

_logger = logging.getLogger(__name__)


def first_strand_state(num_strands: int, own_dataset: Any) -> dict[str, Any]:
    """Return the position of a loader with this many strands before its first iteration.

    Args:
        num_strands: As for ``StrandSource``.
        own_dataset: As for ``StrandSource``.
    """
    snapshot = _first_snapshot(own_dataset)
    strands = [{"epoch": 0, "step": 0, "delivered": 0, "snapshot": snapshot} for _ in range(max(1, num_strands))]
    return {"epoch": 0, "step": 0, "num_strands": num_strands, "strands": strands}


def _first_snapshot(own_dataset: Any) -> dict[str, Any] | None:
    """Return the state of a dataset of this process before an epoch's first microbatch; None: it has none yet."""
    if not _has_place(own_dataset):
        return None
    try:
        state = own_dataset.state_dict()
    except genuine(Exception):
        return None  # it has a state once it is iterated
    # A copy: what a dataset returns may move with it.
    return {"step": 0, "dataset": pickle.loads(pickle.dumps(state)), "iterator": None}


def _has_place(own_dataset: Any) -> TypeGuard[Stateful]:
    """Return whether a dataset of this process stays where an iteration has left it, and can be put elsewhere."""
    return isinstance(own_dataset, Stateful) and not is_of_datasets(own_dataset)


def _saved(snapshot: Snapshot) -> dict[str, Any]:
    return {"step": snapshot.step, **pickle.loads(snapshot.state)}


def _loaded(saved: Mapping[str, Any]) -> Snapshot:
    rest = {name: value for name, value in saved.items() if name != "step"}
    return Snapshot(saved["step"], pickle.dumps(rest))


class _Runner:
    """One strand: its plan, and the loader that makes it."""

    def __init__(self, plan: StrandPlan, inner: ShardedDataLoader, dp_rank: int) -> None:
        self.plan = plan
        self.inner = inner
        # An epoch, and how many microbatches of it are delivered as soon as the loader is past it.
        self._at_end = (0, 0)
        self._dp_rank = dp_rank
        # What was taken before its turn, and the place that it is for.
        self._kept: tuple[tuple[int, int], Any] | None = None

    def begin(self) -> None:
        """Begin an iteration of the loader."""
        self._kept = None
        iter(self.inner)

    def has_more(self, epoch: int) -> bool:
        """Wait until it is known whether an epoch has anything left; the loader's place does not move if it has."""
        while self.inner.epoch == epoch:
            place = epoch, self.inner.step
            if self._kept is not None and self._kept[0] == place:
                return True
            try:
                self._kept = place, self.take()
            except genuine(StopIteration):
                if self.inner.epoch == epoch:
                    self.begin()  # which an interrupted call has not done
            except genuine(Exception):
                return True  # it stays where it is, and comes when it is its turn
        return False

    def take(self) -> Any:
        """Return what comes at the loader's place, which does not move.

        Raises:
            StopIteration: The epoch has ended.
        """
        kept, self._kept = self._kept, None
        if kept is not None and kept[0] == (self.inner.epoch, self.inner.step):
            return kept[1]
        self.plan.forget_past(self.inner.epoch, self.inner.step)
        return self.inner.take()

    def expect_end(self, epoch: int, num_delivered: int) -> None:
        """Note what is delivered of an epoch if its end comes next."""
        self._at_end = epoch, num_delivered

    def delivered(self, epoch: int) -> int:
        """Return the microbatches of an epoch that were delivered."""
        at, step = self.inner.epoch, self.inner.step
        if at == epoch:
            return step
        return self._at_end[1] if at > epoch == self._at_end[0] else 0

    def go_to(self, epoch: int, step: int) -> None:
        """Go to a place of the strand."""
        place = {"version": 1, "epoch": epoch, "index": -1, "microbatch": step, "step": step}
        self.inner.load_state_dict({**place, "fingerprint": {"dp_rank": self._dp_rank}})

    def leave(self, epoch: int) -> None:
        """Begin the next epoch, unless the strand has."""
        if self.inner.epoch == epoch:
            self.plan.abandon(epoch)
            self.go_to(epoch + 1, 0)


class StrandSource:
    """Makes the microbatches of an iterable dataset.

    Args:
        make_inner: Makes the loader of a plan.
        num_strands: Strands; 0: one, which belongs to no worker.
        dp_rank: Of those loaders.
        own_dataset: The dataset, if it is iterated in this process; None: workers have it.
        state: Where to begin, as ``state`` returned it; None: at the first epoch's start.
    """

    def __init__(
        self,
        make_inner: Callable[[StrandPlan], ShardedDataLoader],
        num_strands: int,
        dp_rank: int,
        own_dataset: Any,
        state: Mapping[str, Any] | None,
    ) -> None:
        plans = [StrandPlan(index, num_strands) for index in range(max(1, num_strands))]
        self._num_strands = num_strands
        self._own_dataset = own_dataset
        self._iterations = Iterations("loader")
        self._runners: list[_Runner] = []
        # The place of a loaded state: as long as nothing was delivered, an iteration begins there.
        self._loaded: tuple[int, int] | None = None
        # What the dataset of this process was when an epoch began: afterwards, it is ahead of the caller.
        self._begun: tuple[int, dict[str, Any] | None] = (-1, None)
        # The epoch of a loaded state that does not say with which state of the dataset it began, as older ones do not.
        self._unsaid_epoch: int | None = None
        # An epoch that all strands leave: an interrupted call has left it to the next one.
        self._left: int | None = None
        self._newest: _Turns | None = None
        try:
            for plan in plans:
                self._runners.append(_Runner(plan, make_inner(plan), dp_rank))
            if state is not None:
                self._load(state)
        except BaseException:
            self.close()
            raise

    @property
    def epoch(self) -> int:
        """The epoch of the next microbatch."""
        self._finish_leaving()
        return min(runner.inner.epoch for runner in self._runners)

    @property
    def step(self) -> int:
        """Microbatches of that epoch that were delivered before it."""
        return self.delivered(self.epoch)

    def delivered(self, epoch: int) -> int:
        """Return the microbatches of an epoch that were delivered."""
        return sum(runner.delivered(epoch) for runner in self._runners)

    def begin(self, change: Callable[[Any], Any] | None = None) -> Iterator[Any]:
        """Begin an epoch, or the rest of a loaded one."""
        self._iterations.begin()
        epoch = self.epoch
        is_begun = any(runner.inner.epoch != epoch or runner.inner.step for runner in self._runners)
        if is_begun and (epoch, self.step) != self._loaded:
            self._leave(epoch)
        self._begun = self.epoch, self._first_snapshot(self.epoch)
        self._newest = _Turns(self, self._runners, self._iterations, change)
        return self._newest

    def end_epoch(self) -> None:
        """Count the rest of the epoch as delivered; change nothing where nothing of it was delivered."""
        if self.step:
            self._iterations.begin()
            self._leave(self.epoch)

    def take_back(self) -> bool:
        """Count the last microbatch as not delivered: the next call delivers it again."""
        return self._newest is not None and self._newest.take_back()

    def state(self) -> dict[str, Any]:
        """Return the position as plain values."""
        epoch = self.epoch
        strands: list[dict[str, Any]] = []
        for runner in self._runners:
            place = runner.inner.local_state_dict()
            snapshot = runner.plan.snapshot(place["epoch"], place["step"])
            saved = self._first_snapshot(place["epoch"]) if snapshot is None else _saved(snapshot)
            strand = {"epoch": place["epoch"], "step": place["step"], "delivered": runner.delivered(epoch)}
            strand["snapshot"] = saved
            if saved is not None and saved["step"]:
                # A loop that leaves the rest of a resumed epoch begins the next one as that one has begun.
                begun = self._snapshot_at_start(runner, place["epoch"])
                strand |= {} if begun is None and self._unsaid_epoch == place["epoch"] else {"begun": begun}
            strands.append(strand)
        return {"epoch": epoch, "step": self.step, "num_strands": self._num_strands, "strands": strands}

    def epoch_again(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the start of a state's epoch, in the same order; the state itself where that start is not known."""
        epoch = state["epoch"]
        snapshots: list[dict[str, Any] | None] = []
        for runner in self._runners:
            begun = self._snapshot_at_start(runner, epoch)
            if begun is None and self._unsaid_epoch == epoch and _has_place(self._own_dataset):
                return dict(state)
            snapshots.append(begun)
        return state_at_epoch(state, epoch, snapshots)

    def statistics(self) -> LoaderStatistics:
        """Return what was done so far, by all strands together."""
        found = [cast("DataLoaderStatistics", runner.inner.statistics()) for runner in self._runners]
        return DataLoaderStatistics.together(found)

    def close(self) -> None:
        """End the workers."""
        self._iterations.begin()
        for runner in self._runners:
            runner.inner.close()

    def _load(self, state: Mapping[str, Any]) -> None:
        num_again = 0
        for runner, saved in zip(self._runners, state["strands"], strict=True):
            epoch, step, snapshot = saved["epoch"], saved["step"], saved["snapshot"]
            if "begun" in saved:
                self._begun = epoch, saved["begun"] if _has_place(self._own_dataset) else None
                if saved["begun"] is not None:
                    runner.plan.record(epoch, _loaded(saved["begun"]))
            elif snapshot is not None and snapshot["step"]:
                self._unsaid_epoch = epoch
            if snapshot is not None:
                runner.plan.record(epoch, _loaded(snapshot))
            else:
                num_again += step
            runner.expect_end(state["epoch"], saved.get("delivered", 0))
            runner.go_to(epoch, step)
        self._loaded = self.epoch, self.step
        if num_again:
            _logger.warning(
                "making %s again up to the saved place: the state has none of the dataset. A dataset with state_dict() and "
                "load_state_dict() resumes at once",
                counted(num_again, "microbatch"),
            )

    def _first_snapshot(self, epoch: int) -> dict[str, Any] | None:
        return self._begun[1] if self._begun[0] == epoch else _first_snapshot(self._own_dataset)

    def _snapshot_at_start(self, runner: _Runner, epoch: int) -> dict[str, Any] | None:
        """Return the state of a strand's dataset when an epoch began; None: it has none, or it is not known."""
        begun = runner.plan.snapshot(epoch, 0)
        if begun is not None:
            return _saved(begun)
        return None if self._unsaid_epoch == epoch else self._first_snapshot(epoch)

    def _leave(self, epoch: int) -> None:
        if self._begun[0] == epoch:  # the next epoch begins as this one did
            self._begun = epoch + 1, self._begun[1]
        self._left = epoch
        self._finish_leaving()

    def _finish_leaving(self) -> None:
        epoch = self._left
        if epoch is not None:
            for runner in self._runners:
                runner.leave(epoch)
            self._left = None


class _Turns(TorchIterator):
    """One epoch of all strands.

    An inner loader's position moves with the last instruction of a call, and the rest follows from the positions. So
    an interrupted call has delivered nothing.
    """

    def __init__(
        self,
        source: StrandSource,
        runners: list[_Runner],
        iterations: Iterations,
        change: Callable[[Any], Any] | None,
    ) -> None:
        self._source = self._loader = source  # kept alive: its loaders end with it
        self._runners = runners
        self._iterations = iterations
        self._change = change
        self._number = iterations.newest
        # The last microbatch's strand and its place before it, and the same of the one before that.
        self._last: tuple[_Taken | None, _Taken | None] = (None, None)
        self._is_over = False
        self._begin()

    def __next__(self) -> Any:
        self._check()
        while (runner := self._turn()) is not None:
            epoch, step = self._began[0], self._step
            try:
                taken = runner.take()
            except genuine(StopIteration):
                if runner.inner.epoch == epoch:
                    runner.begin()  # which an interrupted call has not done
                else:
                    self._end(runner)
                continue
            except StaleIteratorError:
                self._check()
                raise
            if len(self._turns) > 1 and runner.inner.is_ending:
                # The others may have nothing, and then the epoch ends with this microbatch.
                any(other.has_more(epoch) for other in list(self._turns)[1:])
            return runner.inner.hand_over(self._prepared(taken, _Taken(runner, epoch, step)))
        raise StopIteration

    def _prepared(self, taken: Any, place: "_Taken") -> Any:
        """Return what the caller gets, and note what holds as soon as it is delivered."""
        microbatch = taken
        if isinstance(taken, Stamped):
            place.runner.plan.record(place.epoch, Snapshot(place.step + 1, taken.state))
            microbatch = taken.microbatch
        if self._change is not None:
            microbatch = self._change(microbatch)
        place.runner.expect_end(place.epoch, place.step + 1)
        if place != self._last[1]:  # otherwise an interrupted call has taken it before
            self._last = self._last[1], place
        return microbatch

    def _turn(self) -> _Runner | None:
        """Return the strand whose turn it is; None: the epoch is over."""
        if self._is_torn:
            self._find_turns()
        if self._is_over:
            return None
        runner = self._turns[0]
        if runner.inner.step != self._step or runner.inner.epoch != self._began[0]:
            self._is_torn = True
            self._turns.rotate(-1)
            runner = self._turns[0]
            self._step = runner.inner.step
            self._is_torn = False
        return runner

    def take_back(self) -> bool:
        """Count the last microbatch as not delivered."""
        before, newest = self._last
        last = newest if newest is not None and newest.is_delivered else before
        self._last = None, last
        return last is not None and last.is_delivered and last.runner.inner.take_back()

    def _check(self) -> None:
        self._iterations.check(self._number)

    def _begin(self) -> None:
        self._is_torn = True
        self._began = epoch, _ = self._source.epoch, self._source.step
        for runner in self._runners:
            if runner.inner.epoch == epoch:
                runner.begin()
        self._find_turns()

    def _find_turns(self) -> None:
        """Find whose turn it is from the positions."""
        self._is_torn = True
        active = [runner for runner in self._runners if runner.inner.epoch == self._began[0]]
        self._turns = deque(sorted(active, key=lambda runner: runner.inner.step))
        if active:
            self._step = self._turns[0].inner.step
        elif self._began[1] and self._source.delivered(self._began[0]) == self._began[1]:
            # Resumed where nothing was left: the caller gets the next epoch, not an empty one.
            self._begin()
        else:
            self._is_over = True
        self._is_torn = False

    def _end(self, runner: _Runner) -> None:
        self._is_torn = True
        self._turns.remove(runner)
        if self._turns:
            self._step = self._turns[0].inner.step
            self._is_torn = False
        else:
            self._find_turns()


class _Taken(NamedTuple):
    """A microbatch of a strand, and the place before it."""

    runner: _Runner
    epoch: int
    step: int

    @property
    def is_delivered(self) -> bool:
        """Whether the strand's place is past it."""
        return (self.runner.inner.epoch, self.runner.inner.step) > (self.epoch, self.step)
