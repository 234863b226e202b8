"""Iterable datasets: a stream a worker, each an engine of its own, and microbatches in turn as torch takes them.

The turn follows from the engines' positions: of the streams that have something left, the one with the fewest
microbatches delivered is next, and the first of those. So nothing but positions has to be saved.
"""

import logging
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fkat_data.drop_in.stream import Snapshot, Stamped, StreamEnd
from fkat_data.drop_in.stream_plan import StreamPlan
from fkat_data.errors import StaleIteratorError
from fkat_data.interruption import is_interruption
from fkat_data.iteration import Iterations
from fkat_data.loader.sharded import ShardedDataLoader
from fkat_data.observe.statistics import LoaderStatistics
from fkat_data.types import Stateful

__all__ = ["StreamSource", "first_stream_state"]

_logger = logging.getLogger(__name__)


def first_stream_state(num_streams: int, own_dataset: Any) -> dict[str, Any]:
    """Return the position of a loader with this many streams before its first iteration.

    Args:
        num_streams: As for ``StreamSource``.
        own_dataset: As for ``StreamSource``.
    """
    snapshot = _first_snapshot(own_dataset)
    streams = [{"epoch": 0, "step": 0, "snapshot": snapshot} for _ in range(max(1, num_streams))]
    return {"epoch": 0, "step": 0, "num_streams": num_streams, "streams": streams}


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
    """One stream: its plan, and the engine that makes it."""

    def __init__(self, plan: StreamPlan, engine: ShardedDataLoader, dp_rank: int) -> None:
        self.plan = plan
        self.engine = engine
        self._dp_rank = dp_rank

    def go_to(self, epoch: int, step: int) -> None:
        """Go to a place of the stream."""
        place = {"version": 1, "epoch": epoch, "index": -1, "microbatch": step, "step": step}
        self.engine.load_state_dict({**place, "fingerprint": {"dp_rank": self._dp_rank}})

    def leave(self, epoch: int) -> None:
        """Begin the next epoch, unless the stream has."""
        if self.engine.epoch == epoch:
            self.plan.abandon(epoch)
            self.go_to(epoch + 1, 0)


class StreamSource:
    """Makes the microbatches of an iterable dataset.

    Args:
        make_engine: Makes the engine of a plan.
        num_streams: Streams; 0: one, which belongs to no worker.
        dp_rank: The engines'.
        own_dataset: The dataset, if it is iterated in this process; None: workers have it.
        state: Where to begin, as ``state`` returned it; None: at the first epoch's start.
    """

    def __init__(
        self,
        make_engine: Callable[[StreamPlan], ShardedDataLoader],
        num_streams: int,
        dp_rank: int,
        own_dataset: Any,
        state: Mapping[str, Any] | None,
    ) -> None:
        plans = [StreamPlan(index, num_streams) for index in range(max(1, num_streams))]
        self._num_streams = num_streams
        self._own_dataset = own_dataset
        self._iterations = Iterations("loader")
        self._runners: list[_Runner] = []
        self._is_loaded = state is not None
        self._newest: _Turns | None = None
        try:
            for plan in plans:
                self._runners.append(_Runner(plan, make_engine(plan), dp_rank))
            if state is not None:
                self._load(state)
        except BaseException:
            self.close()
            raise

    @property
    def epoch(self) -> int:
        """The epoch of the next microbatch."""
        return min(runner.engine.epoch for runner in self._runners)

    @property
    def step(self) -> int:
        """Microbatches of that epoch that were delivered before it, those of streams that have ended left out."""
        epoch = self.epoch
        return sum(runner.engine.step for runner in self._runners if runner.engine.epoch == epoch)

    def begin(self) -> Iterator[Any]:
        """Begin an epoch, or the rest of a loaded one."""
        self._iterations.begin()
        epoch = self.epoch
        is_begun = any(runner.engine.epoch != epoch or runner.engine.step for runner in self._runners)
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
        streams: list[dict[str, Any]] = []
        for runner in self._runners:
            place = runner.engine.local_state_dict()
            snapshot = runner.plan.snapshot(place["epoch"])
            if snapshot is not None:
                saved = {"step": snapshot.step, **pickle.loads(snapshot.state)}
            else:
                saved = None if place["step"] else _first_snapshot(self._own_dataset)
            streams.append({"epoch": place["epoch"], "step": place["step"], "snapshot": saved})
        return {"epoch": self.epoch, "step": self.step, "num_streams": self._num_streams, "streams": streams}

    def statistics(self) -> LoaderStatistics:
        """Return what was done so far, by all streams together."""
        return LoaderStatistics.together([runner.engine.statistics() for runner in self._runners])

    def close(self) -> None:
        """End the workers."""
        self._iterations.begin()
        for runner in self._runners:
            runner.engine.close()

    def _load(self, state: Mapping[str, Any]) -> None:
        num_again = 0
        for runner, saved in zip(self._runners, state["streams"], strict=True):
            epoch, step, snapshot = saved["epoch"], saved["step"], saved["snapshot"]
            if snapshot is not None:
                rest = {name: value for name, value in snapshot.items() if name != "step"}
                runner.plan.record(epoch, Snapshot(snapshot["step"], pickle.dumps(rest)))
            else:
                num_again += step
            runner.go_to(epoch, step)
        if num_again:
            _logger.warning(
                "%d microbatches are made again and dropped, because the state has none of the dataset: give it "
                "state_dict() and load_state_dict(), as torchdata does",
                num_again,
            )


class _Turns(Iterator[Any]):
    """One epoch of all streams."""

    def __init__(self, source: StreamSource, runners: list[_Runner], iterations: Iterations, *, goes_on: bool) -> None:
        self._source = source  # kept alive: its engines end with it
        self._runners = runners
        self._iterations = iterations
        self._number = iterations.newest
        # Where the dataset of the newest microbatch's stream could go on before it.
        self._before: Snapshot | None = None
        self._is_over = False
        self._began_mid_epoch = goes_on
        self._begin()

    def __next__(self) -> Any:
        self._check()
        while not self._is_over:
            runner = self._turns[0]
            if runner.engine.step != self._step or runner.engine.epoch != self._epoch:
                self._began_mid_epoch = False
                self._turns.rotate(-1)
                runner = self._turns[0]
            self._step = runner.engine.step
            try:
                taken = runner.engine.load_batch_sync()
            except StopIteration:
                self._end(runner)
                continue
            except StaleIteratorError:
                self._check()
                raise
            if not isinstance(taken, (Stamped, StreamEnd)):
                return taken
            self._before = runner.plan.snapshot(self._epoch)
            try:
                if isinstance(taken, Stamped):
                    runner.plan.record(self._epoch, Snapshot(self._step + 1, taken.state))
                    return taken.microbatch
                runner.plan.record(self._epoch + 1, Snapshot(0, taken.state))
            except BaseException:
                self.take_back()
                raise
            self._step = runner.engine.step
        raise StopIteration

    def take_back(self) -> None:
        """Count the last microbatch as not delivered."""
        runner = self._turns[0]
        if runner.engine.take_back():
            runner.plan.record(self._epoch, self._before)

    def _check(self) -> None:
        self._iterations.check(self._number)

    def _begin(self) -> None:
        self._epoch = self._source.epoch
        active = [runner for runner in self._runners if runner.engine.epoch == self._epoch]
        self._turns = deque(sorted(active, key=lambda runner: runner.engine.step))
        self._step = self._turns[0].engine.step
        for runner in active:
            iter(runner.engine)

    def _end(self, runner: _Runner) -> None:
        self._turns.remove(runner)
        if self._turns:
            self._step = self._turns[0].engine.step
        elif self._began_mid_epoch:
            # Resumed where nothing was left: the caller gets the next epoch, not an empty one.
            self._began_mid_epoch = False
            self._begin()
        else:
            self._is_over = True
