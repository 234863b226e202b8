"""The worker processes of a test's loaders, as the system shows them: tests need nothing of a loader to find one."""

import psutil
from leavings import SHARED, processes

__all__ = ["worker_pids"]


def worker_pids():
    """Return the ids of the living workers of this process's loaders, oldest first, without processes of their own.

    In a test, whose template process is one that tests share.
    """
    numbers = {number for _, number in processes()}
    shared = {number for _, number in SHARED}
    found = []
    for number in numbers:
        try:
            process = psutil.Process(number)
            if process.ppid() in numbers - shared or process.status() == psutil.STATUS_ZOMBIE:
                continue
            found.append((process.create_time(), number))
        except psutil.NoSuchProcess:
            continue
    return [number for _, number in sorted(found)]
