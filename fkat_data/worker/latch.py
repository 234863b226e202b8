"""A latch: one thread waits until another one has done something.

``threading.Event`` is no such thing for a thread that signals may interrupt: an exception that a handler raises within
the event's own code never releases its lock, and both threads hang.
"""

import threading


class Latch:
    """Is closed once, and stays closed."""

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
