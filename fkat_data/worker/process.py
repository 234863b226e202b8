"""A worker's process, from the operating system's side: started, watched, ended.

The process is spawned (not forked: threads, locks and CUDA stay behind), without importing the trainer's
``__main__`` (so a script needs no guard, and a notebook has none), in a process group of its own (so that Ctrl-C at
the terminal is the trainer's alone).
"""

import contextlib
import inspect
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

from fkat_data.worker import lifeline
from fkat_data.worker.monitor import WorkerMonitor

__all__ = ["STACK_SIGNAL", "WorkerProcess"]

STACK_SIGNAL = signal.SIGRTMAX - 3
"""Makes a worker write its Python stacks; datasets do not use this signal."""

# The settings are a pickled list of the paths to import from, then the pickled settings proper. The first lines are the
# lifeline module's, which cannot be imported before the paths are known. The next ones make stacks visible, those of
# the following imports included.
_BOOTSTRAP = f"""\
{inspect.getsource(lifeline)}
import sys, faulthandler
settings, worker_index, channel, page, lifeline, stacks, stack_signal = map(int, sys.argv[1:])
bind(lifeline)
faulthandler.enable()
faulthandler.register(stack_signal, file=stacks)
import mmap, pickle
settings = mmap.mmap(settings, 0, access=mmap.ACCESS_READ)
sys.path[:], sys.argv = pickle.load(settings)
from fkat_data.worker.main import main
main(settings, worker_index, channel, page)
"""

_KILL_GRACE_S = 5.0
_STACK_WAIT_S = 0.5
_LONGEST_STACK_BYTES = 1 << 16


class WorkerProcess:
    """One worker's process.

    Args:
        settings: A descriptor of the shipped settings (see ``fkat_data.worker.ship``); stays the caller's.
        worker_index: The worker's number among its loader's.
        channel: The worker's end of the pipe; stays the caller's.
        page: A descriptor of the page where the worker reports its stages; stays the caller's.
        stacks: A descriptor of memory that the loader's workers write their stacks to; stays the caller's.
    """

    def __init__(self, settings: int, worker_index: int, channel: int, page: int, stacks: int) -> None:
        self._stacks = stacks
        lifeline_descriptor, self._lifeline = os.pipe()
        self._stderr, stderr = os.pipe()
        try:
            self._process = _start((settings, worker_index, channel, page, lifeline_descriptor, stacks), stderr)
        except BaseException:
            os.close(self._lifeline)
            os.close(self._stderr)
            raise
        finally:
            os.close(lifeline_descriptor)
            os.close(stderr)
        self.pid = self._process.pid
        """The process id."""
        self.pidfd = _pidfd(self.pid)
        """Readable when the process has ended; None if the kernel has no pidfd."""
        self._monitor = WorkerMonitor(self._process, self.pidfd, self._stderr)
        self._monitor.start()

    @property
    def exit_code(self) -> int | None:
        """As ``subprocess`` gives it, once the process has ended and was reaped."""
        return self._process.returncode

    @property
    def last_words(self) -> str:
        """The last lines that the process wrote to stderr."""
        return self._monitor.last_words

    def is_dead(self) -> bool:
        """Return whether the process has ended."""
        if self._process.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # the monitor was quicker
            return True

    def kill(self) -> None:
        """Kill the process and its children."""
        # Once it is reaped its number may be another's; the monitor has killed what was left of the group by then.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def join(self, timeout_s: float) -> None:
        """Wait until the process has ended and its last words are known, at most ``timeout_s``."""
        if not sys.is_finalizing():  # other threads no longer run then
            self._monitor.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Wait for the process to end, kill it when ``timeout_s`` has passed, and close its descriptors."""
        try:
            self.join(timeout_s)
        finally:  # Ctrl-C ends the wait, but not the worker's end
            self.kill()
            self.join(_KILL_GRACE_S)
            os.close(self._lifeline)
            if self.pidfd is not None and self._monitor.wait(0):
                os.close(self.pidfd)

    def abandon(self) -> None:
        """In a forked child: close what would keep the process alive, and nothing else."""
        os.close(self._lifeline)
        if self._monitor.is_listening:
            os.close(self._stderr)
        if self.pidfd is not None:
            os.close(self.pidfd)

    def stack(self) -> str:
        """Return the process's Python stacks, taken from outside: it goes on meanwhile, and need not reach its bytecode.

        Without a stack: what the kernel reports about the process.
        """
        status = _status(self.pid)
        if not int(status.get("SigCgt", "0"), 16) >> (STACK_SIGNAL - 1) & 1:
            return f"no Python stack yet: the process is starting (state {status.get('State', 'gone')})"
        os.ftruncate(self._stacks, 0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, STACK_SIGNAL)
        deadline_s = time.monotonic() + _STACK_WAIT_S
        size = 0
        while time.monotonic() < deadline_s:
            time.sleep(0.02)
            before, size = size, os.fstat(self._stacks).st_size
            if size and size == before:
                break
        lines = os.pread(self._stacks, min(size, _LONGEST_STACK_BYTES), 0).decode(errors="replace").splitlines()
        text = "\n".join(line for line in lines if '"<frozen importlib' not in line).strip()
        return text or f"no Python stack: the process does not answer (state {_status(self.pid).get('State', 'gone')})"


def _start(numbers: tuple[int, ...], stderr: int) -> "subprocess.Popen[bytes]":
    # Flags such as -X and -W apply to workers, too; multiprocessing has had this function since Python 3.2.
    flags = cast("list[str]", subprocess._args_from_interpreter_flags())  # type: ignore[attr-defined]  # noqa: SLF001
    # A process inherits the signals that its parent's thread blocks: none reaches the worker before it ignores them.
    blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, lifeline.DEAF_TO)
    try:
        return subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, *flags, "-c", _BOOTSTRAP, *map(str, numbers), str(int(STACK_SIGNAL))],
            stdin=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=(numbers[0], *numbers[2:]),  # all but the worker's index
            process_group=0,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # another kernel: only the end of the pipe shows it
        return None


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
