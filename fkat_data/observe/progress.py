"""Long waits: a bar on a terminal, lines in the log elsewhere; nothing for short ones."""

import importlib
import logging
import os
import sys
import time
from typing import Any, NamedTuple

from fkat_data.runtime.distributed import rank_and_world_size
from fkat_data.runtime.interruption import genuine

logger: logging.Logger = logging.getLogger(__name__)

_BAR_AFTER_S = 2.0
_BAR_INTERVAL_S = 0.5
_LOG_AFTER_S = 10.0
_LOG_GROWTH = 2.0


class Activity(NamedTuple):
    """The activity of a worker while the trainer waits for it.

    Attributes:
        text: The activity.
        done: How much of it is done, if it can be counted.
        total: How much there is to do; None: it cannot be counted.
    """

    text: str
    done: int = 0
    total: int | None = None


class WaitDisplay:
    """Shows one wait.

    Args:
        bar_type: tqdm's class; None: lines in the log.
    """

    def __init__(self, bar_type: Any = None) -> None:
        self._bar_type = bar_type
        self._bar: Any = None
        self.interval_s: float = _LOG_AFTER_S if bar_type is None else _BAR_AFTER_S
        """Seconds until ``show`` is to be called."""

    def show(self, waited_s: float, doing: Activity) -> None:
        """Show the wait.

        Args:
            waited_s: Seconds since the wait began.
            doing: What the worker does.
        """
        if self._bar_type is None:
            counted = "" if doing.total is None else f": {doing.done:,} of {doing.total:,}"
            logger.info("waiting for %.0f s: %s%s", waited_s, doing.text, counted)
            self.interval_s *= _LOG_GROWTH
            return
        self.interval_s = _BAR_INTERVAL_S
        if self._bar is not None and self._bar.total != doing.total:
            self.end()
        if self._bar is None:
            form = None if doing.total is not None else "{desc}"
            self._bar = self._bar_type(total=doing.total, leave=False, dynamic_ncols=True, bar_format=form)
        self._bar.n = doing.done
        self._bar.set_description_str(f"waiting for {waited_s:.0f} s: {doing.text}")

    def end(self) -> None:
        """Remove the bar; any number of calls."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()


class ReplayDisplay:
    """Shows progress in making again what was delivered before a resume, from the thread that makes it."""

    def __init__(self) -> None:
        self._display: WaitDisplay | None = None
        self._began_s = self._shown_s = 0.0

    def show(self, shard: str, num_done: int, num_microbatches: int) -> None:
        """Show, at intervals, that a microbatch is about to be made again.

        Args:
            shard: The shard's name.
            num_done: Microbatches of it that were made again.
            num_microbatches: Microbatches to make again.
        """
        now_s = time.perf_counter()
        if self._display is None:
            self._display, self._began_s, self._shown_s = display_for(), now_s, now_s
        if now_s - self._shown_s >= self._display.interval_s:
            self._shown_s = now_s
            text = f"making again what was delivered before the resume, of {shard}"
            self._display.show(now_s - self._began_s, Activity(text, num_done, num_microbatches))

    def end(self) -> None:
        """End the display; any number of calls."""
        display, self._display = self._display, None
        if display is not None:
            display.end()


def display_for(stream: Any = None) -> WaitDisplay:
    """Return a display for a wait that begins now.

    A bar needs a terminal, tqdm, and a process that has the terminal to itself: several ranks would write over each
    other, and lines in a notebook or a file cannot be removed.

    Args:
        stream: Where a bar would go; None: ``sys.stderr``.
    """
    stream = sys.stderr if stream is None else stream
    if not _is_terminal(stream) or rank_and_world_size()[1] > 1 or os.environ.get("WORLD_SIZE", "1") != "1":
        return WaitDisplay()
    try:
        return WaitDisplay(importlib.import_module("tqdm").tqdm)
    except genuine(ModuleNotFoundError):
        return WaitDisplay()


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except genuine(AttributeError, ValueError):  # no stream, or a closed one
        return False
