"""Where an epoch starts or resumes, and a shared page that keeps it for the trainer and its DataLoader's workers.

A worker of torch's DataLoader has a copy of the dataset, and does not tell the trainer when it begins an epoch.
Therefore the resume point is in anonymous memory. Processes inherit it, or receive its descriptor when
they start. It has no name, and the kernel frees it when the last process ends.
"""

import fcntl
import mmap
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import numpy.typing as npt

from fkat_data.dropped import Descriptor
from fkat_data.errors import ConfigurationError, StaleIteratorError
from fkat_data.machine import started_at
from fkat_data.streaming.epoch.torch_iteration import TorchIteration, iteration_that_starts, trainer_here
from fkat_data.streaming.order.partition import Grid
from fkat_data.transport.anonymous import anonymous_file

_NONE = -1
#: The shared page has 64 bits for each number.
LARGEST_NUMBER = (1 << 63) - 1


@dataclass(frozen=True)
class ResumePoint:
    """Where an epoch starts or resumes. A resume point is settled when no field is None.

    Attributes:
        epoch: Index of the epoch, from 0.
        sample_in_epoch: Samples of the epoch that all ranks together have read.
        num_canonical_nodes: Parts of the order; None if not settled yet.
        shuffle_seed: Seed of the shuffle; None for the dataset's.
        initial_physical_nodes: Nodes of the run that began the epoch; None if not settled yet.
        initial_grid: Grid that the epoch began in; None if that is the present one, or does not matter.
    """

    epoch: int = 0
    sample_in_epoch: int = 0
    num_canonical_nodes: int | None = None
    shuffle_seed: int | None = None
    initial_physical_nodes: int | None = None
    initial_grid: Grid | None = None


#: Of one process that iterates, with the workers of its DataLoaders.
_TRAINER = np.dtype(
    [("process", "<i8", 2), ("first_process", "<i8"), ("has_begun", "<i8"), ("current", "<i8", 8), ("next", "<i8", 8)]
)
#: Of one iteration that workers share.
_ITERATION = np.dtype([("process", "<i8", 2), ("key", "<i8"), ("round", "<i8"), ("point", "<i8", 8)])
_NUM_TRAINERS = 128
#: Enough for the epochs that one worker of an iterator may be ahead of another.
_NUM_ITERATIONS = 512
_COUNT_BYTES = 8
# The lock of the page excludes other processes, and not other threads of its own. A signal's handler may come back here.
_thread_turn = [threading.RLock()]
_SIZE_BYTES = _COUNT_BYTES + _NUM_TRAINERS * _TRAINER.itemsize + _NUM_ITERATIONS * _ITERATION.itemsize


class SharedResumePoint:
    """The resume points of the present iteration and of the next one, shared by a process and its workers.

    Processes that hold copies of one dataset, such as ranks, count their iterations for themselves. Threads of a process
    may share it.
    """

    def __init__(self) -> None:
        self._open(anonymous_file())
        self._reset(trainer_here(), ResumePoint())

    def next(self) -> ResumePoint:
        """Return where the next iteration begins."""
        with self._locked():
            return _unpacked(self._trainer()["next"])

    def current(self) -> ResumePoint | None:
        """Return where the present iteration began; None before the first iteration and after ``go_to``."""
        with self._locked():
            trainer = self._trainer()
            return _unpacked(trainer["current"]) if trainer["has_begun"] else None

    def go_to(self, point: ResumePoint) -> None:
        """Make the next iteration begin at a resume point."""
        with self._locked():
            trainer = self._trainer()
            trainer["next"] = _packed(point)
            trainer["has_begun"] = 0

    def begin(self, iteration: TorchIteration | None = None, *, is_order_needed: bool = False) -> ResumePoint:
        """Begin an iteration, or join the one that another worker has begun, and return where it began.

        Args:
            iteration: The iterator that this worker works for; None for a process that iterates alone.
            is_order_needed: Whether it matters which of two iterators begins first, as it does for several ranks.

        Raises:
            StaleIteratorError: A later iterator has begun before this one, or too many others have begun since this
                worker's did.
        """
        if iteration is None:
            with self._locked():
                return self._advance(self._trainer())
        # A worker that begins again begins the next epoch.
        round_index = self._num_begun if self._begun_key == iteration.key else 0
        with self._locked():
            trainer = self._trainer()
            point = self._joined(trainer, iteration.key, round_index)
            if point is None:
                if round_index and self._joined(trainer, iteration.key, round_index - 1) is None:
                    raise StaleIteratorError(f"more than {_NUM_ITERATIONS} other iterations have begun since")
                is_first = round_index == 0
                if is_order_needed and is_first and 0 < iteration.first_process < trainer["first_process"]:
                    raise StaleIteratorError(
                        "a later iterator of a DataLoader has begun its epoch before this one, so that ranks may read "
                        "different epochs: give each DataLoader a StreamingDataset of its own"
                    )
                trainer["first_process"] = max(trainer["first_process"], iteration.first_process)
                point = self._advance(trainer)
                self._record(trainer, iteration.key, round_index, point)
        self._begun_key, self._num_begun = iteration.key, round_index + 1
        return point

    def announce(self, iteration: TorchIteration) -> None:
        """Begin an iteration of which a worker is about to start, unless it has begun."""
        with self._locked():
            self._announce(self._trainer(), iteration)

    def _announce(self, trainer: Any, iteration: TorchIteration) -> None:
        # Iterators begin in the order in which they are made, whichever worker is first.
        if self._joined(trainer, iteration.key, 0) is None:
            self._record(trainer, iteration.key, 0, self._advance(trainer))

    def _advance(self, trainer: Any) -> ResumePoint:
        point = _unpacked(trainer["next"])
        trainer["current"] = trainer["next"]
        trainer["has_begun"] = 1
        # Later epochs keep the settled fields, in every process. They begin in the present grid.
        trainer["next"] = _packed(replace(point, epoch=point.epoch + 1, sample_in_epoch=0, initial_grid=None))
        return point

    def _joined(self, trainer: Any, key: int, round_index: int) -> ResumePoint | None:
        all_of = self._iterations
        is_it = (all_of["key"] == key) & (all_of["round"] == round_index)
        is_it &= (all_of["process"] == trainer["process"]).all(axis=1)
        found = np.flatnonzero(is_it)
        return _unpacked(all_of["point"][found[0]]) if len(found) else None

    def _record(self, trainer: Any, key: int, round_index: int, point: ResumePoint) -> None:
        row = self._iterations[int(self._count[0]) % _NUM_ITERATIONS]
        row["process"], row["key"], row["round"], row["point"] = trainer["process"], key, round_index, _packed(point)
        self._count[0] += 1

    def _trainer(self) -> Any:
        """Return the row of the process that iterates. The caller holds the lock."""
        if self._pid != os.getpid():  # a fork, or nothing was asked for yet
            self._pid, self._process = os.getpid(), trainer_here()
        if tuple(self._trainers["process"][self._row].tolist()) != self._process:
            self._row = self._row_of(self._process)
        return self._trainers[self._row]

    def _row_of(self, process: tuple[int, int]) -> int:
        """Return the row of a process, made as a copy of the row of the process that this object came from."""
        rows = self._trainers
        if (found := self._find(process)) is not None:
            return found
        source = self._find(self._origin)
        row = next((row for row in range(_NUM_TRAINERS) if row != source and _is_free(rows["process"][row])), None)
        if row is None:
            raise ConfigurationError("dataset", f"shared by {_NUM_TRAINERS} processes", "a dataset for each process")
        point = ResumePoint() if source is None else _unpacked(rows["next"][source])
        rows[row] = (process, 0, 0, _packed(point), _packed(point))
        if source is not None:
            rows["current"][row], rows["has_begun"][row] = rows["current"][source], rows["has_begun"][source]
        return row

    def _find(self, process: tuple[int, int]) -> int | None:
        found = np.flatnonzero((self._trainers["process"] == process).all(axis=1))
        return int(found[0]) if len(found) else None

    def _reset(self, process: tuple[int, int], point: ResumePoint) -> None:
        self._origin = process
        self._trainers[0] = (process, 0, 0, _packed(point), _packed(point))

    def _open(self, descriptor: int) -> None:
        self._file = Descriptor(descriptor)
        os.ftruncate(descriptor, _SIZE_BYTES)
        page = mmap.mmap(descriptor, _SIZE_BYTES)
        self._count: npt.NDArray[np.int64] = np.frombuffer(page, np.int64, 1)
        self._trainers: npt.NDArray[Any] = np.frombuffer(page, _TRAINER, _NUM_TRAINERS, _COUNT_BYTES)
        rest = _COUNT_BYTES + self._trainers.nbytes
        self._iterations: npt.NDArray[Any] = np.frombuffer(page, _ITERATION, _NUM_ITERATIONS, rest)
        self._pid = self._row = self._begun_key = self._num_begun = 0
        self._process = (0, 0)

    @contextmanager
    def _locked(self) -> Generator[None]:
        with _thread_turn[0]:
            fcntl.lockf(self._file.fileno(), fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._file.fileno(), fcntl.LOCK_UN)

    def __getstate__(self) -> dict[str, Any]:
        with self._locked():
            trainer = self._trainer()
            if get_spawning_popen() is None:
                return {"row": trainer.tolist()}
            # multiprocessing is starting a process: share the page with it.
            starting = iteration_that_starts()
            if starting is not None:
                self._announce(trainer, starting[0])
            return {"page": DupFd(self._file.fileno()), "origin": self._process}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "page" in state:
            self._open(state["page"].detach())
            self._origin = state["origin"]
        else:
            self._open(anonymous_file())
            self._origin = trainer_here()
            self._trainers[0] = (self._origin, 0, *state["row"][2:])


def _announce_forked() -> None:
    """Begin the iteration of which a worker is about to be forked: nothing of the dataset is pickled then."""
    starting = iteration_that_starts()
    if starting is not None:
        point = getattr(starting[1], "_resume_point", None)
        if isinstance(point, SharedResumePoint):
            point.announce(starting[0])


def _renew_turn() -> None:
    """Let a fork have its turn: the thread that had one at the fork is not there."""
    _thread_turn[0] = threading.RLock()


os.register_at_fork(before=_announce_forked, after_in_child=_renew_turn)


def _is_free(process: npt.NDArray[np.int64]) -> bool:
    pid, started = process.tolist()
    return not pid or started_at(pid) != started


def _packed(point: ResumePoint) -> list[int]:
    grid = (None, None, None) if point.initial_grid is None else astuple(point.initial_grid)
    settled = (point.num_canonical_nodes, point.shuffle_seed, point.initial_physical_nodes)
    values = (point.epoch, point.sample_in_epoch, *settled, *grid)
    return [_NONE if value is None else value for value in values]


def _unpacked(words: npt.NDArray[np.int64]) -> ResumePoint:
    epoch, sample_in_epoch, *rest = words.tolist()
    nodes, seed, first = (None if value == _NONE else value for value in rest[:3])
    return ResumePoint(epoch, sample_in_epoch, nodes, seed, first, None if rest[3] == _NONE else Grid(*rest[3:]))
