"""Child processes of this one: a handle for each, and the start of new interpreters."""

import _thread
import contextlib
import fcntl
import functools
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import psutil

from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.runtime.lifetime import Descriptor, on_collected
from fkat_data.worker.process import lifeline
from fkat_data.worker.process.inherited_environment import new_interpreter

_HIGHEST_STANDARD = 2
_IMPORTED_PROGRAM = """\
import sys
if not sys.flags.safe_path:
    del sys.path[0]
sys.path.insert(0, {0!r})
from process_main import main
del sys.path[0], sys.modules["process_main"]
main(*sys.argv[1:])
"""


class OwnProcess(Protocol):
    """A child of this process, as ``subprocess.Popen`` is one."""

    @property
    def pid(self) -> int:
        """The process id."""
        ...

    @property
    def returncode(self) -> Any:
        """The exit code, as ``subprocess`` gives it; None until it is known."""
        ...

    def kill(self) -> None:
        """Kill the process, unless it is reaped."""
        ...

    def wait(self) -> int:
        """Wait for the end, reap the process, and return the exit code."""
        ...


class OwnChild:
    """A process that this one has started itself; it is killed and reaped once nothing holds this object.

    Args:
        start: Starts the process, leader of a process group; enters it in a list before.
        after_reap: Called once the process is reaped. What they refer to lives for as long as a thread waits to reap it.

    Raises:
        OSError: No process could be started.
    """

    def __init__(
        self,
        start: Callable[[list[OwnProcess]], OwnProcess],
        after_reap: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._after_reap = after_reap
        started: list[OwnProcess] = []
        on_collected(self, functools.partial(_end, started))
        self._process = start(started)
        self.pid: int = self._process.pid
        """The process id."""
        # An object: it closes once, and when nothing holds it.
        self._end_file = end_of(self.pid)

    @property
    def end_descriptor(self) -> int | None:
        """Readable when the process has ended; None if there is no descriptor for it."""
        return None if self._end_file is None or self._end_file.closed else self._end_file.fileno()

    news_descriptor = end_descriptor
    """Readable when ``hear`` is to be called: at the end."""

    @property
    def exit_code(self) -> int | None:
        """As ``subprocess`` gives it, once the process has ended and was reaped."""
        return self._process.returncode

    def is_born(self) -> bool:
        """Return True."""
        return True

    def is_dead(self) -> bool:
        """Return whether the process has ended."""
        return self._process.returncode is not None or has_ended(self.pid)

    def hear(self) -> bool:
        """Return True: nothing but its end is news."""
        return True

    def reap(self) -> None:
        """Wait for the process, then do what comes after that."""
        self._process.wait()
        for action in self._after_reap:
            action()

    def kill(self) -> None:
        """Kill the process and its children."""
        # Once it is reaped its number may be another's; the monitor has killed what was left of the group by then.
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def disown(self) -> None:
        """Do nothing: this process is its parent."""

    def close(self) -> None:
        """Close the descriptor."""
        if self._end_file is not None:
            self._end_file.close()


class _EnteredPopen(subprocess.Popen[bytes]):
    """A process that is in a list before it starts: an interrupted call cannot lose it, and it stays no zombie.

    Args:
        command: The process's.
        started: The list.
        options: As ``subprocess.Popen`` takes them.
    """

    def __init__(self, command: Sequence[str], started: list[OwnProcess], **options: Any) -> None:
        started.append(self)
        super().__init__(command, **options)


def _end(started: Sequence[OwnProcess]) -> None:
    for process in started:
        if getattr(process, "pid", None) is not None:  # else the system has started none
            process.kill()
            process.wait()


def popen_interpreter(
    title: str,
    program: str,
    descriptors: Sequence[int],
    numbers: Sequence[int],
    stderr: int,
    *,
    stdout: int | None = None,
    folder: int | None = None,
    umask: int = -1,
    after_reap: Sequence[Callable[[], None]] = (),
) -> OwnChild:
    """Start a new interpreter in a process group of its own, with this one's flags.

    It is killed and reaped once nothing holds what is returned, also if the call is interrupted.

    Args:
        title: Its title.
        program: What of ``fkat_data.worker.process.process_main`` it runs.
        descriptors: Those that it inherits; the program gets their numbers, which may be others there.
        numbers: What the program gets after them.
        stderr: Where its stderr goes.
        stdout: Where its stdout goes; None: where this process's goes.
        folder: A descriptor of its working directory; None: this process's.
        umask: Its umask; -1: this process's.
        after_reap: Called once it is reaped.

    Raises:
        OSError: No process could be started.
    """
    with contextlib.ExitStack() as stack:
        passed = [raised(descriptor, stack) for descriptor in descriptors]
        entered = None if folder is None else raised(folder, stack)
        path = None
        if entered is not None and sys.platform == "linux":
            path, entered = f"/proc/self/fd/{entered}", None
        flags, environment, restored = new_interpreter()
        words = ",".join(map(str, (-1 if entered is None else entered, *passed, *numbers)))
        variables = (name if value is None else f"{name}={value}" for name, value in restored.items())
        # A process inherits the signals that its parent's thread blocks: none reaches it before it handles them.
        blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, lifeline.DEAF_TO)
        try:
            start = functools.partial(
                _EnteredPopen,
                [sys.executable, *flags, *_program_file(), title, program, words, *variables],
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=passed if entered is None else (*passed, entered),
                process_group=0,
                stdout=subprocess.DEVNULL if stdout is None and not has_stdout() else stdout,
                cwd=path,
                umask=umask,
                env=environment,
            )
            return OwnChild(start, after_reap)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)


def raised(descriptor: int, stack: contextlib.ExitStack) -> int:
    """Return the descriptor, or a copy of one that lies where the child has its standard streams.

    A process that was started without a stdin gives its number to the next file.

    Args:
        descriptor: The descriptor; it stays the caller's.
        stack: Closes the copy.
    """
    if descriptor > _HIGHEST_STANDARD:
        return descriptor
    raised = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGHEST_STANDARD + 1)
    stack.callback(os.close, raised)
    return raised


def has_stdout() -> bool:
    """Return whether descriptor 1 is this process's stdout: without one, it may be any file."""
    try:
        os.fstat(1)
    except genuine(OSError):
        return False
    return sys.__stdout__ is not None


def _program_file() -> list[str]:
    """Return the arguments by which an interpreter runs ``process_main``, by the path of this package."""
    folder, file = os.path.split(str(lifeline.__file__))
    path = os.path.join(folder, f"process_main{os.path.splitext(file)[1]}")  # noqa: PTH118, PTH122 - for each process
    if path.endswith((".py", ".pyc")) and os.path.isfile(path):  # noqa: PTH113 - as above
        return [path]
    # It is in an archive.
    return ["-c", _IMPORTED_PROGRAM.format(folder)]


_PAUSE_S = 0.05


def end_of(pid: int) -> Descriptor | None:
    """Return what is readable once a child of this process has ended; None if there is no descriptor for it.

    Where the kernel has no pidfds, a thread looks 20 times a second.
    """
    with suppress(OSError):
        if hasattr(os, "pidfd_open"):
            return Descriptor(os.pidfd_open(pid))
        reading, writing = os.pipe()
        # Thread.start() waits for the thread in a way that an interruption breaks.
        _thread.start_new_thread(_watch, (pid, writing))
        return Descriptor(reading)
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


def events_on(descriptor: int) -> int:
    """Return what ``poll`` says of a descriptor now, asked whether it is readable."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return sum(events for _, events in poll.poll(0))


def _watch(pid: int, writing: int) -> None:
    try:
        while not has_ended(pid):
            time.sleep(_PAUSE_S)
        # A fork of this process may hold the pipe open: its end would tell nothing.
        with suppress(BrokenPipeError):
            os.write(writing, b"\0")
    finally:
        os.close(writing)
