"""The trainer's monitor of one worker process: it forwards the worker's stderr, and reaps the process at its end.

A thread, because both must happen while the trainer computes: a worker would wait at a full pipe, a dead one would
stay a zombie, and its own children would live on. No fork of the trainer keeps its end of a lifeline: the worker would
live for as long as the fork.
"""

import _thread
import contextlib
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Generator
from typing import Protocol

from fkat_data.runtime.lifetime import Descriptor, WeakTable


class Latch:
    """A latch for threads to wait at: it is closed once, and stays closed."""

    def __init__(self) -> None:
        self.is_closed: bool = False
        """Whether ``close`` was called."""
        self._open = threading.Lock()
        self._open.acquire()

    def close(self) -> None:
        """Let every thread that waits go on, now or later. Any number of calls, from one thread."""
        if not self.is_closed:
            self.is_closed = True
            self._open.release()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the latch is closed, at most ``timeout_s``; return whether it is."""
        # What is raised between the two calls leaves the lock taken: the flag says what it would say.
        if not self.is_closed and self._open.acquire(timeout=max(0.0, timeout_s)):
            self._open.release()
        return self.is_closed


_CHUNK_BYTES = 1 << 16
_LAST_BYTES = 1 << 14
_LAST_LINES = 40  # a stack of a worker that was forked from the trainer has frames of its script
_STDERR = 2


class WatchedChild(Protocol):
    """A child process, or one that is being started, whose end a monitor waits for."""

    @property
    def news_descriptor(self) -> int | None:
        """A descriptor that becomes readable when there is news; None: there is none yet, or no more."""
        ...

    def hear(self) -> bool:
        """Take the news; return whether the process has ended."""
        ...

    def kill(self) -> None:
        """Kill the process and its children."""
        ...

    def reap(self) -> None:
        """Wait for the end of the process, and take its exit code."""
        ...


class WorkerMonitor:
    """A thread that forwards a worker's stderr to the trainer's, keeps the last lines, and reaps the process at its end.

    When the process ends, what is left of its process group is killed: no other process knows its children.

    Args:
        child: The worker, or the template process. Stays the caller's, who must not close it before the thread has
            ended.
        stderr: The reading end of the pipe that is the process's stderr; the thread closes it.
    """

    def __init__(self, child: WatchedChild, stderr: Descriptor) -> None:
        self._child = child
        self._stderr = stderr
        self._end = Latch()
        self.is_listening: bool = True
        """Whether the pipe is still open."""
        self._last: deque[bytes] = deque()
        self._last_bytes = 0

    @property
    def last_words(self) -> str:
        """The last lines that the worker wrote to stderr."""
        text = b"".join(list(self._last)).decode(errors="replace")
        return "\n".join(text[-_LAST_BYTES:].splitlines()[-_LAST_LINES:])

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process has ended and its last words are known; return whether that is so."""
        return self._end.wait(timeout_s)

    def start(self) -> None:
        """Start the thread, which does not keep the interpreter from ending."""
        # Thread.start() waits for the thread in a way that an interruption breaks.
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        stderr = self._stderr.fileno()
        try:
            self._listen(stderr)
            self._child.kill()
            self._drain(stderr)
            self._child.reap()
        finally:
            self.is_listening = False
            self._stderr.close()
            self._end.close()

    def _listen(self, stderr: int) -> None:
        is_open = True
        while True:
            poll = select.poll()
            news = self._child.news_descriptor
            if news is not None:
                poll.register(news, select.POLLIN)
            elif not is_open:
                return
            if is_open:
                poll.register(stderr, select.POLLIN)
            for descriptor, _ in poll.poll():
                if descriptor == stderr:
                    is_open = self._forward(stderr)
                elif self._child.hear():
                    return

    def _drain(self, stderr: int) -> None:
        """Forward what the process left in the pipe, which a child of its own may hold open."""
        with contextlib.suppress(BlockingIOError):
            os.set_blocking(stderr, False)
            while self._forward(stderr):
                pass

    def _forward(self, stderr: int) -> bool:
        """Forward one piece; return whether there may be another."""
        chunk = os.read(stderr, _CHUNK_BYTES)
        if sys.__stderr__ is not None:  # without one, its number may be another file's
            with contextlib.suppress(OSError):
                os.write(_STDERR, chunk)
        self._last.append(chunk)
        self._last_bytes += len(chunk)
        while self._last_bytes - len(self._last[0]) > _LAST_BYTES:
            self._last_bytes -= len(self._last.popleft())
        return bool(chunk)


# Held during a fork: otherwise the fork of another thread could take over an end that is not listed here yet.
_guard = threading.RLock()
_ends: "WeakTable[int, Descriptor]" = WeakTable()


def new_lifeline() -> tuple[int, Descriptor]:
    """Return the two ends of a new lifeline: the descriptor for the worker, and the trainer's end.

    Raises:
        OSError: No descriptor is left.
    """
    with _guard:
        descriptor, number = os.pipe()
        # An object: it closes once, however often an interrupted call is repeated, and when nothing holds it.
        end = Descriptor(number)
        _ends[id(end)] = end
    return descriptor, end


@contextlib.contextmanager
def new_lines() -> Generator[tuple[int, Descriptor, int, Descriptor]]:
    """Yield a new lifeline, then a pipe for stderr: the worker's end, which is closed afterwards, and the trainer's.

    After an error, both of the trainer's ends are closed: that of the lifeline ends what was started.

    Raises:
        OSError: No descriptor is left.
    """
    lifeline, own_lifeline = new_lifeline()
    try:
        reading, stderr = os.pipe()
    except OSError:
        os.close(lifeline)
        own_lifeline.close()
        raise
    # An object: it closes once, however often an interrupted call is repeated, and when nothing holds it.
    own_stderr = Descriptor(reading)
    try:
        yield lifeline, own_lifeline, stderr, own_stderr
    except BaseException:
        own_lifeline.close()
        own_stderr.close()
        raise
    finally:
        os.close(lifeline)
        os.close(stderr)


def _close_in_child() -> None:
    for end in _ends.values():
        end.close()
    _guard.release()


os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_close_in_child)
