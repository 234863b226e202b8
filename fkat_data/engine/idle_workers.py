"""Worker processes that nothing is asked of: they are given up, those of the loader used least recently first.

A worker takes descriptors of this process, and memory. A program may keep more loaders than there is room for, and
iterate over one after the other. What a loader would make next follows from its position, so that it loses nothing with
its workers: it starts others when it needs them.
"""

import errno
import threading
import time
import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.machine import call_in_forks, num_usable_cpus

_IDLE_WORKERS_OF_A_CPU = 4
# What a worker and its loader open in this process.
_DESCRIPTORS_OF_A_WORKER, _DESCRIPTORS_OF_A_LOADER = 7, 24
# What is left to the program.
_MOST_KEPT_DESCRIPTORS, _KEPT_SHARE = 64, 8
_LONGEST_HELD_S = 5.0


class _Workers(Protocol):
    @property
    def workers(self) -> Sequence[object]: ...

    def give_up(self) -> None: ...


class _Suspendable(Protocol):
    def suspend(self) -> bool: ...


class WorkerUse:
    """Whether a loader needs its worker processes now.

    Args:
        pool: The workers.
        has_process_state: Whether they have state that the program cannot make again: they are not given up.
    """

    # A loader that is dropped must be gone at once: this refers to nothing that leads back to it.
    def __init__(self, pool: _Workers, *, has_process_state: bool) -> None:
        self._pool = weakref.ref(pool)
        self._has_process_state = has_process_state
        self._lock = threading.Lock()
        self._is_in_use = False
        self._delivery: weakref.ref[_Suspendable] | None = None
        self._iterator: weakref.ref[object] | None = None
        self.used_s: float = time.monotonic()
        """When the loader last began or ended to need them."""
        _uses.append(weakref.ref(self))

    @property
    def num_idle(self) -> int:
        """Workers that may be given up at once."""
        return self._num_workers() if not self._has_process_state and (not self._is_in_use or self._is_left()) else 0

    def begin(self) -> None:
        """Keep the workers from here on."""
        # A signal's handler may have interrupted the one who held it.
        is_held = self._lock.acquire(timeout=_LONGEST_HELD_S)
        self._is_in_use, self._iterator = True, None
        self.used_s = time.monotonic()
        if is_held:
            self._lock.release()

    def iterate(self, delivery: _Suspendable, iterator: object) -> None:
        """Take an iteration for left as soon as its iterator is gone."""
        self._delivery, self._iterator = weakref.ref(delivery), weakref.ref(iterator)

    def end(self) -> None:
        """Let other loaders have the room from here on."""
        self._iterator = None
        self._is_in_use = False
        self.used_s = time.monotonic()
        keep_few_idle(self)

    def give_up(self, *, is_needed: bool) -> bool:
        """End the workers; return whether that could be done.

        Args:
            is_needed: Whether an iteration under way, which then makes again what it had prefetched, may lose its workers.
        """
        pool = self._pool()
        if pool is None or self._has_process_state or not pool.workers or not self._lock.acquire(blocking=False):
            return False
        try:
            if self._is_in_use and not ((is_needed or self._is_left()) and self._suspend()):
                return False
            pool.give_up()
            return True
        finally:
            self._lock.release()

    def _suspend(self) -> bool:
        delivery = None if self._delivery is None else self._delivery()
        return delivery is not None and delivery.suspend()

    def _num_workers(self) -> int:
        pool = self._pool()
        return 0 if pool is None else len(pool.workers)

    def _is_left(self) -> bool:
        return self._iterator is not None and self._iterator() is None


_uses: "list[weakref.ref[WorkerUse]]" = []


def keep_few_idle(newest: WorkerUse) -> None:
    """Give up idle workers beyond four for each CPU, but none of the loader that was used last.

    Args:
        newest: That loader's.
    """
    most = _IDLE_WORKERS_OF_A_CPU * num_usable_cpus()
    others = [use for use in _least_recent_first(newest) if use.num_idle]
    num_idle = newest.num_idle + sum(use.num_idle for use in others)
    for use in others:
        if num_idle <= most:
            return
        count = use.num_idle
        if use.give_up(is_needed=False):
            num_idle -= count


@contextmanager
def room_for(own: WorkerUse, num_workers: int) -> Generator[None]:
    """Give up workers of other loaders where this process has too few descriptors for more; say so if that is not enough.

    Args:
        own: Of the loader whose workers start.
        num_workers: How many.

    Raises:
        OSError: There are not enough, and the message says what would do.
    """
    needed = _DESCRIPTORS_OF_A_LOADER + num_workers * _DESCRIPTORS_OF_A_WORKER
    limit = _descriptor_limit()
    if limit is not None:
        _free_descriptors(own, needed + min(_MOST_KEPT_DESCRIPTORS, limit // _KEPT_SHARE), limit, is_needed=False)
        _free_descriptors(own, needed, limit, is_needed=True)
    try:
        yield
    except genuine(OSError) as error:
        if error.errno != errno.EMFILE:
            raise
        text = (
            f"too many open files to start {num_workers} workers: RLIMIT_NOFILE allows {limit} in this process. Raise it "
            f"(`ulimit -n {max(65_536, 4 * (limit or 0))}`), close() loaders that are not needed, or use fewer workers; "
            "loaders that wait for their next epoch have given up theirs, but for those with persistent_workers=True"
        )
        raise OSError(errno.EMFILE, text) from error


def _free_descriptors(own: WorkerUse, needed: int, limit: int, *, is_needed: bool) -> None:
    for use in _least_recent_first(own):
        if _num_open() + needed <= limit:
            return
        use.give_up(is_needed=is_needed)


def _least_recent_first(but: WorkerUse) -> list[WorkerUse]:
    uses: list[WorkerUse] = []
    for reference in list(_uses):
        use = reference()
        if use is None:
            if reference in _uses:
                _uses.remove(reference)
        elif use is not but:
            uses.append(use)
    return sorted(uses, key=lambda use: use.used_s)


def _descriptor_limit() -> int | None:
    resource: Any = import_module("resource")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else int(limit)


def _num_open() -> int:
    try:
        return sum(1 for _ in Path("/dev/fd").iterdir())
    except genuine(OSError) as error:
        if error.errno != errno.EMFILE:
            return 0
        return _descriptor_limit() or 0  # not one is left to list them with


call_in_forks(_uses.clear)
