"""An end to what hangs: the program's main thread is interrupted by a timer."""

import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

__all__ = ["OverdueError", "overdue_after"]


class OverdueError(BaseException):
    """The time is over, and it was not looked at. No ``Exception``: a dataset's own handlers must not catch it."""


@contextmanager
def overdue_after(timeout_s: float) -> Generator[None]:
    """Raise in the main thread, wherever it is, if the context lasts longer; called in the main thread.

    Raises:
        OverdueError: The time is over.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise OverdueError(f"the next microbatch did not come, and {timeout_s:g} s are over")

    before = signal.signal(signal.SIGALRM, interrupt)
    # There is one such timer in a process: another's goes on afterwards.
    began_s = time.monotonic()
    others_s, interval_s = signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if others_s:
            left_s = others_s - (time.monotonic() - began_s)
            signal.setitimer(signal.ITIMER_REAL, max(left_s, 0.001), interval_s)
