"""The CPU seconds and the peak memory of this process and all its descendants, those that have ended included."""

import resource
import threading
import time
from pathlib import Path
from typing import Self

_INTERVAL_S = 0.2
# Looking costs CPU. Rest this many times as long, so that it takes at most 3 % of a core.
_REST = 30
_TICKS_PER_S = 100


class ProcessTree:
    """Looks at the memory of all processes at short intervals, in a thread whose own CPU seconds do not count."""

    def __init__(self) -> None:
        self._peak_bytes = self._peak_alone_bytes = 0
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
        own = sum(
            used.ru_utime + used.ru_stime
            for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )
        return own - self._own_cpu_s + sum(_cpu_s(pid) for pid in _descendants())

    def peak_mb(self) -> float:
        """Return the largest proportional set size (PSS) of all processes together so far, in 10^6 bytes."""
        self._look()
        return self._peak_bytes / 1e6

    def peak_alone_mb(self) -> float:
        """Return what the peak would be if no other process mapped the same libraries, in 10^6 bytes.

        Anonymous and shared memory are the tree's own. Of pages of files, those of the process that has most count once.
        """
        self._look()
        return self._peak_alone_bytes / 1e6

    def _watch(self) -> None:
        pause_s = 0.0
        while not self._is_over.wait(pause_s):
            began_s = time.thread_time()
            self._look()
            self._own_cpu_s = time.thread_time()
            pause_s = max(_INTERVAL_S, _REST * (self._own_cpu_s - began_s))

    def _look(self) -> None:
        with self._lock:
            pids = ("self", *_descendants())
            found = [_bytes_of(pid) for pid in pids]
            total, own = (sum(sizes) for sizes in zip(*((pss, own) for pss, own, _ in found), strict=True))
            self._peak_bytes = max(self._peak_bytes, total)
            self._peak_alone_bytes = max(self._peak_alone_bytes, own + max(files for _, _, files in found))


def _descendants() -> list[str]:
    found: list[str] = []
    waiting = ["self"]
    while waiting:
        # Any thread can have children.
        for tasks in _texts(waiting.pop(), "task/*/children"):
            found += tasks.split()
            waiting += tasks.split()
    return found


def _cpu_s(pid: str) -> float:
    # After the name in parentheses: utime, stime, and those of the children that were waited for.
    fields = "".join(_texts(pid, "stat")).rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS_PER_S


def _bytes_of(pid: str) -> tuple[int, int, int]:
    """Return a process's PSS, the part of it that is no file's, and the pages of files that it maps."""
    lines = "".join([*_texts(pid, "smaps_rollup"), *_texts(pid, "status")]).splitlines()
    sizes = {
        name: 1024 * int(size.split()[0]) for name, _, size in (line.partition(":") for line in lines) if "kB" in size
    }
    return sizes.get("Pss", 0), sizes.get("Pss_Anon", 0) + sizes.get("Pss_Shmem", 0), sizes.get("RssFile", 0)


def _texts(pid: str, pattern: str) -> list[str]:
    """Return the texts of a process's files; none, if it has ended meanwhile."""
    found: list[str] = []
    for path in Path("/proc", pid).glob(pattern):
        try:
            found.append(path.read_text(encoding="utf-8"))
        except (OSError, ProcessLookupError):
            continue
    return found
