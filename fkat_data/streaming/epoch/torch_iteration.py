"""Tell one iterator of a torch DataLoader from any other, in its workers and where it starts them.

What torch offers does not: the base seed repeats with ``torch.manual_seed``, and worker ids repeat with every
iterator. But each iterator has one queue into which all its workers put their batches, and the kernel numbers the
pipe behind it. The queue is private to torch. For a loader that has none, the base seed stands in, with a warning.
"""

import inspect
import logging
import multiprocessing
import os
from multiprocessing.queues import Queue
from typing import Any, NamedTuple, cast

from torch.utils.data import dataloader, get_worker_info

from fkat_data.machine import started_at

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
        iterator: Any = frame.f_locals.get("self")
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
        Its process id, and when it started (see ``fkat_data.machine.started_at``).
    """
    parent = multiprocessing.parent_process()
    is_worker = get_worker_info() is not None and parent is not None
    pid = cast("int", parent.pid) if is_worker and parent is not None else os.getpid()
    return pid, started_at(pid)


def _key_of(queue: "Queue[Any]") -> int:
    return os.fstat(cast("Any", queue)._writer.fileno()).st_ino  # noqa: SLF001 - see the docstring of the module
