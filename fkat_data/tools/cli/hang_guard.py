"""A time limit that also ends code that hangs: a timer interrupts the main thread."""

import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

__all__ = ["HangError", "hang_guard"]


class HangError(BaseException):
    """The context did not end in time. It is no ``Exception``, so that a dataset's own handlers do not catch it."""


@contextmanager
def hang_guard(timeout_s: float) -> Generator[None]:
    """Interrupt the main thread if the context lasts longer than ``timeout_s``. Only the main thread may enter it.

    Raises:
        HangError: The time is over.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise HangError(f"the loader delivered no microbatch before the time limit ({timeout_s:g} s)")

    before = signal.signal(signal.SIGALRM, interrupt)
    # A process has one such timer, so a timer that was already running is started again afterwards.
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
