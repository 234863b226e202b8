"""Long waits: a bar on a terminal, lines in the log elsewhere; nothing for short ones."""

import importlib
import logging
import os
import sys
import time
from typing import Any, NamedTuple

from fkat_data.distributed import rank_and_world_size

__all__ = ["Activity", "ReplayDisplay", "WaitDisplay", "display_for"]

logger = logging.getLogger(__name__)

_BAR_AFTER_S = 2.0
_BAR_INTERVAL_S = 0.5
_LOG_AFTER_S = 10.0
_LOG_GROWTH = 2.0


class Activity(NamedTuple):
    """What is waited for.

    Attributes:
        text: What is being done.
        done: How much of it, where that can be counted.
        total: Of how much; None: it cannot be counted.
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
        self.interval_s = _LOG_AFTER_S if bar_type is None else _BAR_AFTER_S
        """Seconds until ``show`` is to be called."""

    def show(self, waited_s: float, doing: Activity) -> None:
        """Show how it goes.

        Args:
            waited_s: Seconds since the wait began.
            doing: What is waited for.
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
            told = None if doing.total is not None else "{desc}"
            self._bar = self._bar_type(total=doing.total, leave=False, dynamic_ncols=True, bar_format=told)
        self._bar.n = doing.done
        self._bar.set_description_str(f"waiting for {waited_s:.0f} s: {doing.text}")

    def end(self) -> None:
        """Take the bar away; any number of calls."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()


class ReplayDisplay:
    """Shows, from the thread that does it, how far it is with making again what was delivered before a resume."""

    def __init__(self) -> None:
        self._display: WaitDisplay | None = None
        self._began_s = self._shown_s = 0.0

    def show(self, shard: str, num_done: int, num_microbatches: int) -> None:
        """Take note that a microbatch is about to be made again; shown from time to time.

        Args:
            shard: What they are of.
            num_done: Microbatches of it that have been made again.
            num_microbatches: How many there are to be made again.
        """
        now_s = time.perf_counter()
        if self._display is None:
            self._display, self._began_s, self._shown_s = display_for(), now_s, now_s
        if now_s - self._shown_s >= self._display.interval_s:
            self._shown_s = now_s
            text = f"making again what was delivered before the resume, of shard {shard}"
            self._display.show(now_s - self._began_s, Activity(text, num_done, num_microbatches))

    def end(self) -> None:
        """Take note that it is over; any number of calls."""
        display, self._display = self._display, None
        if display is not None:
            display.end()


def display_for(stream: Any = None) -> WaitDisplay:
    """Return what shows a wait that begins now.

    A bar needs a terminal, tqdm, and a process that has the terminal for itself: several ranks would write over each
    other, and a notebook or a file has no lines that can be taken back.

    Args:
        stream: Where a bar would go; None: ``sys.stderr``.
    """
    stream = sys.stderr if stream is None else stream
    if not _is_terminal(stream) or rank_and_world_size()[1] > 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return WaitDisplay()
    try:
        return WaitDisplay(importlib.import_module("tqdm").tqdm)
    except ModuleNotFoundError:
        return WaitDisplay()


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # there is none, or it was closed
        return False
