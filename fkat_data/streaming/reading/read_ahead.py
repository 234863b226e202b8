"""Shards made ready in threads, in the order in which they will be needed."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

__all__ = ["ReadAhead"]

_Ready = TypeVar("_Ready")
_Part = TypeVar("_Part")

#: So often a shard that another process makes ready is looked at.
_BUSY_S = 0.02
#: A thread that has had nothing to do for so long ends; the next shard starts another.
_IDLE_S = 5.0


class ReadAhead(Generic[_Ready]):
    """Makes shards ready before they are asked for.

    A shard that another process is making ready is put behind the others, so that the processes of a node do not
    wait for one another's downloads but begin others. What fails is raised where the shard is asked for, and nowhere
    else. One thread asks; the threads that make ready end with the process, wherever they are.

    Args:
        prepare: Called in a thread with a shard, and with whether to wait for another process; returns what ``take``
            returns, or None where another process is at it and it must not wait.
        num_threads: Shards that are made ready at a time.
        is_kept: Whether anybody will ask; if not, what comes of it is forgotten, errors too.
    """

    def __init__(
        self, prepare: Callable[[int, bool], _Ready | None], num_threads: int, *, is_kept: bool = True
    ) -> None:
        self._prepare = prepare
        self._num_threads = num_threads
        self._is_kept = is_kept
        self._lock = threading.Lock()
        self._offered = threading.Condition(self._lock)  # threads wait for something to do
        self._settled = threading.Condition(self._lock)  # whoever asks waits for a shard in work
        self._wanted: dict[int, None] = {}  # in the order of need
        self._in_work: set[int] = set()
        self._ready: dict[int, _Ready] = {}
        self._failed: dict[int, BaseException] = {}
        self._first: set[int] = set()
        self._num_running = self._num_idle = self._num_refused = 0
        self._is_closed = False

    def follow(
        self, parts: Iterable[_Part], shards_of: Callable[[_Part], tuple[Iterable[int], int]], num_ahead: int
    ) -> Iterator[_Part]:
        """Yield parts as they come, while the shards of those that follow are made ready.

        Args:
            parts: What will be read.
            shards_of: From a part to its shards, in the order of need, and to its weight.
            num_ahead: What the parts that follow, and whose shards are made ready, weigh together, at least.
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
        """Let shards be made ready after those that were wanted before; one that is ready, or has failed, is left.

        Args:
            shards: The shards.
            is_first: Whether nothing else is begun before they are ready: at the start everything waits for them, and
                what shares the way with them makes them late.
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
        """Return a shard that is ready, once it is; one that nobody has begun is made ready here and now.

        Raises:
            Exception: What went wrong when it was made ready.
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
            raise RuntimeError(f"shard {shard} was not made ready")
        return ready

    def close(self) -> list[_Ready]:
        """Let nothing more be begun; return what is ready and was not taken. Does not wait for what is in work."""
        with self._lock:
            self._is_closed = True
            self._wanted.clear()
            ready = list(self._ready.values())
            self._ready.clear()
            self._offered.notify_all()
            self._settled.notify_all()
        return ready

    def _start(self) -> None:
        num_needed = min(self._num_threads, self._num_running - self._num_idle + len(self._wanted))
        while self._num_running < num_needed and not self._is_closed:
            self._num_running += 1
            # As daemons: a process must be able to end while a store does not answer.
            threading.Thread(target=self._run, name="fkat-read-ahead", daemon=True).start()

    def _run(self) -> None:
        while (shard := self._next()) is not None:
            ready: _Ready | None = None
            failure: BaseException | None = None
            try:
                ready = self._prepare(shard, False)
            except BaseException as error:  # noqa: BLE001 - raised where the shard is asked for
                failure = error
            self._settle(shard, ready, failure)

    def _next(self) -> int | None:
        """Return what to do next; None when there has been nothing for a while, and the thread is to end."""
        with self._lock:
            while not self._is_closed:
                shard = next(iter(self._wanted), None)
                if shard is not None and len(self._wanted) > self._num_refused and self._may_begin(shard):
                    del self._wanted[shard]
                    self._in_work.add(shard)
                    return shard
                # Nothing is wanted, or nothing that may be begun, or all that is wanted is in other processes' hands.
                is_refused = bool(self._wanted)
                self._num_idle += 1
                is_offered = self._offered.wait(_BUSY_S if is_refused else _IDLE_S)
                self._num_idle -= 1
                if not is_offered and not is_refused:
                    break
                self._num_refused = 0
            self._num_running -= 1
            return None

    def _may_begin(self, shard: int) -> bool:
        return shard in self._first or self._first.isdisjoint(self._in_work)

    def _settle(self, shard: int, ready: _Ready | None, failure: BaseException | None) -> None:
        with self._lock:
            self._in_work.discard(shard)
            if self._is_closed:
                pass
            elif failure is None and ready is None:
                self._wanted[shard] = None
                self._num_refused += 1
            elif not self._is_kept:
                pass
            elif failure is not None:
                self._failed[shard] = failure
            elif ready is not None:
                self._ready[shard] = ready
            if shard in self._first and self._first.isdisjoint(self._in_work):
                self._offered.notify_all()
            self._settled.notify_all()
