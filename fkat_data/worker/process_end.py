"""The end of a child process, as a descriptor that becomes readable: a pidfd, or a pipe that a thread writes to."""

import _thread
import io
import os
import time

import psutil

from fkat_data.interruption import genuine, suppress

__all__ = ["end_of", "has_ended"]

_PAUSE_S = 0.05


def end_of(pid: int) -> io.FileIO | None:
    """Return what is readable once a child of this process has ended; None if there is no descriptor for it.

    Where the kernel has no pidfds, a thread looks 20 times a second.
    """
    with suppress(OSError):
        if hasattr(os, "pidfd_open"):
            return io.FileIO(os.pidfd_open(pid))
        reading, writing = os.pipe()
        # Thread.start() waits for the thread in a way that an interruption breaks.
        _thread.start_new_thread(_watch, (pid, writing))
        return io.FileIO(reading)
    return None


def has_ended(pid: int) -> bool:
    """Return whether a child of this process has ended; its exit code can still be asked for."""
    if hasattr(os, "waitid"):  # macOS has it from Python 3.13 on
        try:
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except genuine(ChildProcessError):  # it was asked for
            return True
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except genuine(psutil.NoSuchProcess):
        return True


def _watch(pid: int, writing: int) -> None:
    try:
        while not has_ended(pid):
            time.sleep(_PAUSE_S)
        # A fork of this process may hold the pipe open: its end would tell nothing.
        with suppress(BrokenPipeError):
            os.write(writing, b"\0")
    finally:
        os.close(writing)
