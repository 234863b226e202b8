"""The trainer's end of a lifeline, which no fork of the trainer keeps: the worker would live for as long as the fork."""

import io
import os
import threading

from fkat_data.dropped import Descriptor, WeakTable

# Held during a fork: otherwise the fork of another thread could take over an end that is not listed here yet.
_guard = threading.RLock()
_ends: "WeakTable[int, io.FileIO]" = WeakTable()


def new_lifeline() -> tuple[int, io.FileIO]:
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


def _close_in_child() -> None:
    for end in _ends.values():
        end.close()
    _guard.release()


os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_close_in_child)
