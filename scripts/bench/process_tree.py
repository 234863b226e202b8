"""The CPU seconds and the peak memory of this process and all its descendants, those that have ended included."""

import contextlib
import threading
import time
from typing import Self

import psutil
from measure import all_processes

_INTERVAL_S = 0.2
# Looking costs CPU. Rest this many times as long, so that it takes at most 3 % of a core.
_REST = 30


class ProcessTree:
    """Looks at the memory of all processes at short intervals, in a thread whose own CPU seconds do not count."""

    def __init__(self) -> None:
        self._peak_bytes = 0
        self._own_cpu_s = 0.0
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        self._thread.join()

    def cpu_s(self) -> float:
        """Return what all processes have used so far."""
        found = -self._own_cpu_s
        for process in all_processes():
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                found += sum(process.cpu_times()[:4])
        return found

    def peak_mb(self) -> float:
        """Return the largest proportional set size (PSS) of all processes together so far, in 10^6 bytes."""
        self._look()
        return self._peak_bytes / 1e6

    def _watch(self) -> None:
        pause_s = 0.0
        while not self._is_over.wait(pause_s):
            began_s = time.thread_time()
            self._look()
            self._own_cpu_s = time.thread_time()
            pause_s = max(_INTERVAL_S, _REST * (self._own_cpu_s - began_s))

    def _look(self) -> None:
        with self._lock:
            found = 0
            for process in all_processes():
                with contextlib.suppress(psutil.Error):
                    found += process.memory_full_info().pss
            self._peak_bytes = max(self._peak_bytes, found)
