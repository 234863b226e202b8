"""A fork of this process: it runs one function, and never returns to its caller."""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from fkat_data.interruption import suppress
from fkat_data.worker.child import has_stdout, raised

__all__ = ["OwnFork", "fork", "num_threads", "stop_idle_threads"]

_FAILED = 1


class OwnFork:
    """A fork of this process, with what ``subprocess.Popen`` offers of a process.

    Args:
        pid: Its process id.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        """The process id."""
        self.returncode: int | None = None
        """Its exit code, negative for a signal; None until ``wait`` has returned."""

    def wait(self) -> int:
        """Wait for the end of the process; return its exit code, 0 if another part of the program has reaped it."""
        if self.returncode is None:
            try:
                self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except ChildProcessError:
                self.returncode = 0
        return self.returncode


def fork(body: Callable[[Sequence[int], AbstractSet[int]], object], descriptors: Sequence[int], stderr: int) -> OwnFork:
    """Fork this process into a process group of its own.

    Args:
        body: What the fork does, with all signals blocked. It gets its descriptors and the signals that were blocked
            before. The fork ends with it; if it raises, after writing the traceback to its stderr.
        descriptors: Those that the body gets, all above the numbers of the standard streams.
        stderr: The fork's stderr. Its stdin is the null device, its stdout this process's, or the null device.

    Raises:
        OSError: No process could be started.
    """
    with contextlib.ExitStack() as stack:
        passed = [raised(descriptor, stack) for descriptor in (*descriptors, stderr)]

        def begin(blocked: AbstractSet[int]) -> None:
            os.setpgid(0, 0)
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(passed.pop(), 2)
            for number in (0,) if has_stdout() else (0, 1):
                os.dup2(null, number)
                os.set_inheritable(number, True)
            body(passed, blocked)

        forked = _fork(begin)
    with suppress(OSError):  # the fork does the same, perhaps before
        os.setpgid(forked.pid, forked.pid)
    return forked


def num_threads() -> int:
    """Return the number of threads of this process, those of libraries included."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - their number is enough


def stop_idle_threads() -> None:
    """Have libraries stop threads that wait for work: OpenBLAS does at a fork, and starts them again when needed."""
    if num_threads() > 1:
        _fork(lambda _: os._exit(0)).wait()


def _fork(body: Callable[[AbstractSet[int]], object]) -> OwnFork:
    owner, pid = os.getpid(), 0
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # No handler of the program's may run in the fork: it could raise, and unwind the program there.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pid = os.fork()
        if pid == 0:
            body(blocked)
    except BaseException:
        if os.getpid() == owner:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            raise
        traceback.print_exc(file=sys.__stderr__)
    finally:
        if os.getpid() != owner:
            os._exit(_FAILED)
    forked = OwnFork(pid)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)  # runs the handlers of signals that came meanwhile
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        forked.wait()
        raise
    return forked
