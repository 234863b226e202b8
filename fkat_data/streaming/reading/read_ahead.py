"""Prepare shards in threads, in the order in which they will be needed."""

import _thread
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

_Ready = TypeVar("_Ready")
_Part = TypeVar("_Part")

#: The interval at which a shard that another process prepares is tried again.
_BUSY_S = 0.02


class ReadAhead(Generic[_Ready]):
    """A pool of threads that prepare shards before they are taken.

    A shard that another process is preparing moves behind the others, so that the processes of a node begin different
    downloads instead of waiting for the same one. An error is raised where its shard is taken, and only there. One
    thread takes; the threads that prepare are daemons.

    Args:
        prepare: Called in a thread with a shard, and with whether to wait for another process. Returns what ``take``
            returns; or None if another process is preparing the shard and it must not wait.
        num_threads: Shards that are prepared at a time.
        holds_results: Whether results are kept for ``take``; if not, they are dropped, errors too.

    Attributes:
        holds_results: The same.
    """

    def __init__(
        self, prepare: Callable[[int, bool], _Ready | None], num_threads: int, *, holds_results: bool = True
    ) -> None:
        self._prepare = prepare
        self._num_threads = num_threads
        self.holds_results = holds_results
        self._lock = threading.Lock()
        self._offered = threading.Condition(self._lock)  # threads wait for a shard that no other process prepares
        self._settled = threading.Condition(self._lock)  # ``take`` waits for a shard in work
        self._wanted: dict[int, None] = {}  # in the order of need
        self._in_work: set[int] = set()
        self._ready: dict[int, _Ready] = {}
        self._failed: dict[int, BaseException] = {}
        self._first: set[int] = set()
        self._num_running = self._num_refused = 0
        self.is_closed: bool = False
        """Whether ``close`` was called."""

    def iterate(
        self, parts: Iterable[_Part], shards_of: Callable[[_Part], tuple[Iterable[int], int]], num_ahead: int
    ) -> Iterator[_Part]:
        """Yield parts as they come, while the shards of the parts that follow are prepared.

        Args:
            parts: What will be read.
            shards_of: Maps a part to its shards, in the order of need, and to its weight.
            num_ahead: The least total weight of the parts whose shards are prepared ahead.
        """
        queue: deque[tuple[_Part, int]] = deque()
        queued_weight = 0
        is_first = True
        for part in parts:
            shards, weight = shards_of(part)
            self.want(shards, is_first=is_first)
            is_first = False
            queue.append((part, weight))
            queued_weight += weight
            while queued_weight - queue[0][1] >= num_ahead and len(queue) > 1:
                first, weight = queue.popleft()
                queued_weight -= weight
                yield first
        while queue:
            yield queue.popleft()[0]

    def want(self, shards: Iterable[int], *, is_first: bool = False) -> None:
        """Queue shards behind those that were wanted before, except those that are ready or have failed.

        Args:
            shards: The shards.
            is_first: Whether no other shard begins before these are ready. At the start the caller waits for them,
                and other downloads would slow them down.
        """
        with self._lock:
            for shard in shards:
                if is_first:
                    self._first.add(shard)
                if shard not in self._in_work and shard not in self._ready and shard not in self._failed:
                    self._wanted[shard] = None
            self._num_refused = 0
            self._start()
            self._offered.notify_all()

    def take(self, shard: int) -> _Ready:
        """Return a prepared shard; wait for one in work, and prepare one that no thread has begun.

        Raises:
            Exception: Why the shard could not be prepared.
        """
        with self._lock:
            while shard in self._in_work:
                self._settled.wait()
            if shard in self._ready:
                return self._ready.pop(shard)
            failure = self._failed.pop(shard, None)
            self._wanted.pop(shard, None)
        if failure is not None:
            raise failure
        ready = self._prepare(shard, True)
        if ready is None:
            raise RuntimeError(f"shard {shard} was not prepared")
        return ready

    def close(self) -> list[_Ready]:
        """Begin no more shards; return those that are ready. Does not wait for those in work."""
        with self._lock:
            self.is_closed = True
            self._wanted.clear()
            ready = list(self._ready.values())
            self._ready.clear()
            self._offered.notify_all()
            self._settled.notify_all()
        return ready

    def _start(self) -> None:
        """Start the threads that are missing. The caller holds the lock."""
        shard = next(iter(self._wanted), None)
        if shard is None or self.is_closed or not self._may_begin(shard):
            return
        while self._num_running < min(self._num_threads, len(self._in_work) + len(self._wanted)):
            self._num_running += 1
            # A process must be able to end while a store does not answer. A Thread would be a member of a WeakSet.
            _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        while (shard := self._next()) is not None:
            ready: _Ready | None = None
            failure: BaseException | None = None
            try:
                ready = self._prepare(shard, False)
            except BaseException as error:  # noqa: BLE001 - raised where the shard is taken
                failure = error
            self._settle(shard, ready, failure)

    def _next(self) -> int | None:
        """Return the shard to prepare next; None if there is none and the thread has to end."""
        with self._lock:
            while self._wanted and not self.is_closed:
                shard = next(iter(self._wanted))
                if not self._may_begin(shard):
                    break  # ``_settle`` starts threads again
                if len(self._wanted) > self._num_refused:
                    del self._wanted[shard]
                    self._in_work.add(shard)
                    return shard
                # Other processes are preparing every shard that is wanted.
                self._offered.wait(_BUSY_S)
                self._num_refused = 0
            self._num_running -= 1
            return None

    def _may_begin(self, shard: int) -> bool:
        return shard in self._first or self._first.isdisjoint(self._in_work)

    def _settle(self, shard: int, ready: _Ready | None, failure: BaseException | None) -> None:
        with self._lock:
            self._in_work.discard(shard)
            if self.is_closed:
                pass
            elif failure is None and ready is None:
                self._wanted[shard] = None
                self._num_refused += 1
            elif not self.holds_results:
                pass
            elif failure is not None:
                self._failed[shard] = failure
            elif ready is not None:
                self._ready[shard] = ready
            self._start()
            self._settled.notify_all()
