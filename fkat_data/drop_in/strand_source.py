"""Iterable datasets: a strand a worker, each a loader of its own, and microbatches in turn as torch takes them.

The turn follows from the positions of those loaders: of the strands that have something left, the one with the fewest
microbatches delivered is next, and the first of those. So nothing but positions has to be saved.
"""

import logging
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fkat_data.drop_in.strand import Snapshot, Stamped, StrandEnd
from fkat_data.drop_in.strand_plan import StrandPlan
from fkat_data.errors import StaleIteratorError
from fkat_data.interruption import is_interruption
from fkat_data.iteration import Iterations
from fkat_data.loader.sharded import ShardedDataLoader
from fkat_data.observe.statistics import LoaderStatistics
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
    strands = [{"epoch": 0, "step": 0, "snapshot": snapshot} for _ in range(max(1, num_strands))]
    return {"epoch": 0, "step": 0, "num_strands": num_strands, "strands": strands}


def _first_snapshot(own_dataset: Any) -> dict[str, Any] | None:
    """Return the state of a dataset of this process before an epoch's first microbatch; None: it has none yet."""
    if not isinstance(own_dataset, Stateful):
        return None
    try:
        return {"step": 0, "dataset": own_dataset.state_dict(), "iterator": None}
    except Exception as error:
        if is_interruption(error):
            raise
        return None  # it has a state once it is iterated


class _Runner:
    """One strand: its plan, and the loader that makes it."""

    def __init__(self, plan: StrandPlan, inner: ShardedDataLoader, dp_rank: int) -> None:
        self.plan = plan
        self.inner = inner
        self._dp_rank = dp_rank

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
        self._is_loaded = state is not None
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
        return min(runner.inner.epoch for runner in self._runners)

    @property
    def step(self) -> int:
        """Microbatches of that epoch that were delivered before it, those of strands that have ended left out."""
        epoch = self.epoch
        return sum(runner.inner.step for runner in self._runners if runner.inner.epoch == epoch)

    def begin(self) -> Iterator[Any]:
        """Begin an epoch, or the rest of a loaded one."""
        self._iterations.begin()
        epoch = self.epoch
        is_begun = any(runner.inner.epoch != epoch or runner.inner.step for runner in self._runners)
        goes_on, self._is_loaded = is_begun and self._is_loaded, False
        if is_begun and not goes_on:
            for runner in self._runners:
                runner.leave(epoch)
        self._newest = _Turns(self, self._runners, self._iterations, goes_on=goes_on)
        return self._newest

    def take_back(self) -> None:
        """Count the last microbatch as not delivered: the next call delivers it again."""
        if self._newest is not None:
            self._newest.take_back()

    def state(self) -> dict[str, Any]:
        """Return the position as plain values."""
        strands: list[dict[str, Any]] = []
        for runner in self._runners:
            place = runner.inner.local_state_dict()
            snapshot = runner.plan.snapshot(place["epoch"])
            if snapshot is not None:
                saved = {"step": snapshot.step, **pickle.loads(snapshot.state)}
            else:
                saved = None if place["step"] else _first_snapshot(self._own_dataset)
            strands.append({"epoch": place["epoch"], "step": place["step"], "snapshot": saved})
        return {"epoch": self.epoch, "step": self.step, "num_strands": self._num_strands, "strands": strands}

    def statistics(self) -> LoaderStatistics:
        """Return what was done so far, by all strands together."""
        return LoaderStatistics.together([runner.inner.statistics() for runner in self._runners])

    def close(self) -> None:
        """End the workers."""
        self._iterations.begin()
        for runner in self._runners:
            runner.inner.close()

    def _load(self, state: Mapping[str, Any]) -> None:
        num_again = 0
        for runner, saved in zip(self._runners, state["strands"], strict=True):
            epoch, step, snapshot = saved["epoch"], saved["step"], saved["snapshot"]
            if snapshot is not None:
                rest = {name: value for name, value in snapshot.items() if name != "step"}
                runner.plan.record(epoch, Snapshot(snapshot["step"], pickle.dumps(rest)))
            else:
                num_again += step
            runner.go_to(epoch, step)
        if num_again:
            _logger.warning(
                "%d microbatches are made again and dropped: no state of the dataset was saved, which takes its own "
                "state_dict() and load_state_dict(), and snapshot_every_n_steps",
                num_again,
            )


class _Turns(Iterator[Any]):
    """One epoch of all strands."""

    def __init__(self, source: StrandSource, runners: list[_Runner], iterations: Iterations, *, goes_on: bool) -> None:
        self._source = source  # kept alive: its loaders end with it
        self._runners = runners
        self._iterations = iterations
        self._number = iterations.newest
        # Where the dataset of the newest microbatch's strand could go on before it.
        self._before: Snapshot | None = None
        self._is_over = False
        self._goes_on = goes_on
        self._begin()

    def __next__(self) -> Any:
        self._check()
        while not self._is_over:
            runner = self._turns[0]
            if runner.inner.step != self._step or runner.inner.epoch != self._epoch:
                self._turns.rotate(-1)
                runner = self._turns[0]
            self._step = runner.inner.step
            self._before = runner.plan.snapshot(self._epoch)
            try:
                taken = runner.inner.load_batch_sync()
            except StopIteration:
                self._end(runner)
                continue
            except StaleIteratorError:
                self._check()
                raise
            try:
                if isinstance(taken, StrandEnd):
                    runner.plan.record(self._epoch + 1, Snapshot(0, taken.state))
                    self._step = runner.inner.step
                    continue
                self._goes_on = False
                if isinstance(taken, Stamped):
                    runner.plan.record(self._epoch, Snapshot(self._step + 1, taken.state))
                    return taken.microbatch
                return taken  # noqa: TRY300 - what is raised here has to take it back
            except BaseException:  # an interruption: the caller gets nothing, and it again with the next call
                self.take_back()
                raise
        raise StopIteration

    def take_back(self) -> None:
        """Count the last microbatch as not delivered."""
        runner = self._turns[0]
        if runner.inner.take_back():
            runner.plan.record(self._epoch, self._before)

    def _check(self) -> None:
        self._iterations.check(self._number)

    def _begin(self) -> None:
        self._epoch = self._source.epoch
        active = [runner for runner in self._runners if runner.inner.epoch == self._epoch]
        self._turns = deque(sorted(active, key=lambda runner: runner.inner.step))
        self._step = self._turns[0].inner.step
        for runner in active:
            iter(runner.inner)

    def _end(self, runner: _Runner) -> None:
        self._turns.remove(runner)
        if self._turns:
            self._step = self._turns[0].inner.step
        elif self._goes_on:
            # Resumed where nothing was left: the caller gets the next epoch, not an empty one.
            self._goes_on = False
            self._begin()
        else:
            self._is_over = True
