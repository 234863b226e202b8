"""How long tests wait: a machine that is busy, or that stops for half a minute, fails none of them."""

import functools
import threading
import time

import pytest

__all__ = ["PATIENCE_S", "Patience", "check_in_time", "unless_held_up"]

#: What takes a moment, and where the test finds a fault never comes, may take so long.
PATIENCE_S = 60.0
_LONGEST_LOOK_S = 0.5
_TICK_S = 0.02
_HELD_UP_S = 0.1
_MOST_ATTEMPTS = 5


class Patience:
    """A wait that looks again and again; while the machine, and this process with it, stands still, no time passes.

    Args:
        within_s: How long the wait may take.
    """

    def __init__(self, within_s=PATIENCE_S):
        self._left_s = within_s
        self._looked_s = time.monotonic()

    def is_over(self):
        """Return whether the time has passed; between two calls no more than a moment counts."""
        now_s = time.monotonic()
        self._left_s -= min(now_s - self._looked_s, _LONGEST_LOOK_S)
        self._looked_s = now_s
        return self._left_s <= 0


def check_in_time(bound_s, attempt):
    """Check that one of a few attempts takes less than a bound: each returns how many seconds it has taken."""
    took_s = []
    while not took_s or took_s[-1] >= bound_s:
        assert len(took_s) < _MOST_ATTEMPTS, f"took {took_s} s, each time more than {bound_s} s"
        took_s.append(attempt())


def unless_held_up(test):
    """Run a test of what a clock does again, where it fails while this process was held up for a moment or longer."""

    @functools.wraps(test)
    def run(*arguments, **named):
        for _ in range(_MOST_ATTEMPTS - 1):
            with _Ticks() as ticks:
                try:
                    return test(*arguments, **named)
                except (Exception, pytest.fail.Exception):
                    if ticks.longest_s < _HELD_UP_S:
                        raise
        return test(*arguments, **named)

    return run


class _Ticks:
    """A clock whose longest tick tells whether this process was held up.

    Attributes:
        longest_s: How long that was.
    """

    def __init__(self):
        self.longest_s = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._tick)

    def _tick(self):
        ticked_s = time.monotonic()
        while not self._is_over.wait(_TICK_S):
            now_s = time.monotonic()
            self.longest_s, ticked_s = max(self.longest_s, now_s - ticked_s), now_s

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._is_over.set()
        self._thread.join()
