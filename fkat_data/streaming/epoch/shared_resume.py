"""The point where an epoch starts or resumes, and a shared page that holds it for the trainer and its DataLoader's workers.

A worker of torch's DataLoader has a copy of the dataset, and does not tell the trainer when it begins an epoch.
Therefore the resume point is in anonymous memory. Processes inherit it, or receive its descriptor when they start. It
has no name, and the kernel frees it when the last process ends.

The queue into which the workers of an iterator put their batches tells it from the next iterator: the kernel numbers
the pipe behind it. The base seed repeats with ``torch.manual_seed``, and worker ids with every iterator. The queue is
private to torch. For a loader that has none, the base seed stands in, with a warning.
"""

import fcntl
import inspect
import logging
import mmap
import multiprocessing
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from multiprocessing.context import get_spawning_popen
from multiprocessing.queues import Queue
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from torch.utils.data import dataloader, get_worker_info

from fkat_data.errors import StaleIteratorError
from fkat_data.runtime.lifetime import Descriptor
from fkat_data.runtime.machine import started_at
from fkat_data.streaming.order.partition import Grid
from fkat_data.transport.anonymous import anonymous_file

_logger = logging.getLogger(__name__)

_BASE_ITERATOR: Any = getattr(dataloader, "_BaseDataLoaderIter", None)
_ITERABLE: Any = getattr(getattr(dataloader, "_DatasetKind", None), "Iterable", None)


class TorchIteration(NamedTuple):
    """An iterator of a DataLoader, as its workers know it.

    Attributes:
        key: A number that no other iterator has; above 0.
        first_process: Number of its first worker among the processes of the trainer, which grows from iterator to
            iterator; 0 if unknown.
    """

    key: int
    first_process: int = 0


def iteration_here() -> TorchIteration | None:
    """Return the iterator that this process works for; None if it is no worker of a DataLoader."""
    info = get_worker_info()
    if info is None:
        return None
    process: Any = multiprocessing.current_process()
    # The first queue is the worker's own: it receives the indices.
    queues: list[Any] = [item for item in getattr(process, "_args", ()) if isinstance(item, Queue)]
    if not queues:
        _logger.warning(
            "a DataLoader of an unknown kind reads this dataset: its base seed alone identifies an iteration, so epochs "
            "repeat where torch.manual_seed repeats it"
        )
        return TorchIteration((info.seed - info.id) | 1)
    number = (getattr(process, "_identity", ()) or (0,))[-1]
    return TorchIteration(_key_of(queues[-1]), max(0, number - info.id))


def iteration_that_starts() -> tuple[TorchIteration, Any] | None:
    """Return the iterator over an iterable dataset that is starting a worker in this thread, and the dataset.

    Returns:
        None if there is none.
    """
    frame = inspect.currentframe()
    while frame is not None:
        # It starts workers in its constructor. To ask any frame for its variables would keep them: those of the caller
        # until it returns, and this function's for as long as nothing looks for cycles.
        iterator: Any = frame.f_locals.get("self") if frame.f_code.co_name == "__init__" else None
        if _BASE_ITERATOR is not None and isinstance(iterator, _BASE_ITERATOR):
            queue = getattr(iterator, "_worker_result_queue", None)
            if getattr(iterator, "_dataset_kind", None) != _ITERABLE or not isinstance(queue, Queue):
                return None
            return TorchIteration(_key_of(cast("Queue[Any]", queue))), getattr(iterator, "_dataset", None)
        frame = frame.f_back
    return None


def trainer_here() -> tuple[int, int]:
    """Return the process that iterates: this one, or the one whose DataLoader this one works for.

    Returns:
        Its process id, and when it started (see ``fkat_data.runtime.machine.started_at``).
    """
    parent = multiprocessing.parent_process()
    is_worker = get_worker_info() is not None and parent is not None
    pid = cast("int", parent.pid) if is_worker and parent is not None else os.getpid()
    return pid, started_at(pid)


def _key_of(queue: "Queue[Any]") -> int:
    return os.fstat(cast("Any", queue)._writer.fileno()).st_ino  # noqa: SLF001 - see the docstring of the module


_NONE = -1
#: The shared page has 64 bits for each number.
LARGEST_NUMBER = (1 << 63) - 1


@dataclass(frozen=True)
class ResumePoint:
    """The point where an epoch starts or resumes. ``Epochs.with_defaults`` fills in the fields that are None.

    Attributes:
        epoch: Index of the epoch, from 0.
        sample_in_epoch: Samples of the epoch that all ranks together have read.
        num_canonical_nodes: Parts of the order; None for the default.
        shuffle_seed: Seed of the shuffle; None for the dataset's.
        initial_physical_nodes: Nodes of the run that began the epoch; None for the default.
        initial_grid: Grid that the epoch began in; None if that is the present one, or does not matter.
    """

    epoch: int = 0
    sample_in_epoch: int = 0
    num_canonical_nodes: int | None = None
    shuffle_seed: int | None = None
    initial_physical_nodes: int | None = None
    initial_grid: Grid | None = None


#: Of a process that iterates, with the workers of its DataLoaders.
_TRAINER = np.dtype(
    [("process", "<i8", 2), ("first_process", "<i8"), ("has_begun", "<i8"), ("current", "<i8", 8), ("next", "<i8", 8)]
)
#: Of one iteration that workers share.
_ITERATION = np.dtype([("key", "<i8"), ("round", "<i8"), ("point", "<i8", 8)])
#: Enough for the epochs that one worker of an iterator may be ahead of another.
_NUM_ITERATIONS = 512
_COUNT_BYTES = 8
_SIZE_BYTES = _COUNT_BYTES + _TRAINER.itemsize + _NUM_ITERATIONS * _ITERATION.itemsize
# The lock of the page excludes other processes, and not other threads of its own. A signal's handler may come back here.
_thread_turn = [threading.RLock()]


class SharedResumePoint:
    """The resume points of the present iteration and of the next one, shared by a process and its workers.

    Processes that hold copies of one dataset, such as ranks, count their iterations for themselves. Threads of a process
    may share it.
    """

    def __init__(self) -> None:
        self._open(anonymous_file())
        self._trainers[0] = (trainer_here(), 0, 0, _packed(ResumePoint()), _packed(ResumePoint()))

    def next(self) -> ResumePoint:
        """Return where the next iteration begins."""
        with self._locked() as trainer:
            return _unpacked(trainer["next"])

    def current(self) -> ResumePoint | None:
        """Return where the present iteration began; None before the first iteration and after ``go_to``."""
        with self._locked() as trainer:
            return _unpacked(trainer["current"]) if trainer["has_begun"] else None

    def go_to(self, point: ResumePoint) -> None:
        """Make the next iteration begin at a resume point."""
        with self._locked() as trainer:
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
            with self._locked() as trainer:
                return self._advance(trainer)
        # A worker that begins again begins the next epoch.
        round_index = self._num_begun if self._begun_key == iteration.key else 0
        with self._locked() as trainer:
            point = self._joined(iteration.key, round_index)
            if point is None:
                if round_index and self._joined(iteration.key, round_index - 1) is None:
                    raise StaleIteratorError(f"more than {_NUM_ITERATIONS} other iterations have begun since")
                is_first = round_index == 0
                if is_order_needed and is_first and 0 < iteration.first_process < trainer["first_process"]:
                    raise StaleIteratorError(
                        "a later iterator of a DataLoader began its epoch before this one, so ranks may read "
                        "different epochs: give each DataLoader its own StreamingDataset"
                    )
                trainer["first_process"] = max(trainer["first_process"], iteration.first_process)
                point = self._advance(trainer)
                self._record(iteration.key, round_index, point)
        self._begun_key, self._num_begun = iteration.key, round_index + 1
        return point

    def announce(self, iteration: TorchIteration) -> None:
        """Begin an iteration of which a worker is about to start, unless it has begun."""
        with self._locked() as trainer:
            self._announce(trainer, iteration)

    def _announce(self, trainer: Any, iteration: TorchIteration) -> None:
        # Iterators begin in the order in which they are made, whichever worker is first.
        if self._joined(iteration.key, 0) is None:
            self._record(iteration.key, 0, self._advance(trainer))

    def _advance(self, trainer: Any) -> ResumePoint:
        point = _unpacked(trainer["next"])
        trainer["current"] = trainer["next"]
        trainer["has_begun"] = 1
        # Later epochs keep the filled-in fields, in every process. They begin in the present grid.
        trainer["next"] = _packed(replace(point, epoch=point.epoch + 1, sample_in_epoch=0, initial_grid=None))
        return point

    def _joined(self, key: int, round_index: int) -> ResumePoint | None:
        all_of = self._iterations
        found = np.flatnonzero((all_of["key"] == key) & (all_of["round"] == round_index))
        return _unpacked(all_of["point"][found[0]]) if len(found) else None

    def _record(self, key: int, round_index: int, point: ResumePoint) -> None:
        self._iterations[int(self._count[0]) % _NUM_ITERATIONS] = (key, round_index, _packed(point))
        self._count[0] += 1

    def _open(self, descriptor: int) -> None:
        self._file = Descriptor(descriptor)
        os.ftruncate(descriptor, _SIZE_BYTES)
        page = mmap.mmap(descriptor, _SIZE_BYTES)
        self._count: npt.NDArray[np.int64] = np.frombuffer(page, np.int64, 1)
        self._trainers: npt.NDArray[Any] = np.frombuffer(page, _TRAINER, 1, _COUNT_BYTES)
        self._iterations: npt.NDArray[Any] = np.frombuffer(
            page, _ITERATION, _NUM_ITERATIONS, _COUNT_BYTES + _TRAINER.itemsize
        )
        self._pid = self._begun_key = self._num_begun = 0

    @contextmanager
    def _locked(self) -> Generator[Any]:
        """Lock the page of the process that iterates, and yield what it says of it."""
        with _thread_turn[0]:
            if self._pid != os.getpid():  # a fork, or nothing was asked for yet
                process = trainer_here()
                with _file_locked(self._file):
                    before = self._trainers[0].copy().tolist()
                if tuple(before[0]) != process:
                    self._open(anonymous_file())
                    self._trainers[0] = (process, 0, *before[2:])
                self._pid = os.getpid()
            with _file_locked(self._file):
                yield self._trainers[0]

    def __getstate__(self) -> dict[str, Any]:
        with self._locked() as trainer:
            if get_spawning_popen() is None:
                return {"row": trainer.tolist()}
            # multiprocessing is starting a process: share the page with it.
            starting = iteration_that_starts()
            if starting is not None:
                self._announce(trainer, starting[0])
            return {"page": DupFd(self._file.fileno())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._open(state["page"].detach() if "page" in state else anonymous_file())
        if "row" in state:
            self._trainers[0] = (trainer_here(), 0, *state["row"][2:])


@contextmanager
def _file_locked(file: Descriptor) -> Generator[None]:
    fcntl.lockf(file.fileno(), fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.lockf(file.fileno(), fcntl.LOCK_UN)


def _renew_turn() -> None:
    """Let a fork have its turn: the thread that had one at the fork is not there."""
    _thread_turn[0] = threading.RLock()


os.register_at_fork(after_in_child=_renew_turn)


def _packed(point: ResumePoint) -> list[int]:
    grid = (None, None, None) if point.initial_grid is None else astuple(point.initial_grid)
    of_order = (point.num_canonical_nodes, point.shuffle_seed, point.initial_physical_nodes)
    values = (point.epoch, point.sample_in_epoch, *of_order, *grid)
    return [_NONE if value is None else value for value in values]


def _unpacked(words: npt.NDArray[np.int64]) -> ResumePoint:
    epoch, sample_in_epoch, *rest = words.tolist()
    nodes, seed, first = (None if value == _NONE else value for value in rest[:3])
    return ResumePoint(epoch, sample_in_epoch, nodes, seed, first, None if rest[3] == _NONE else Grid(*rest[3:]))
