"""A fork of the trainer that holds what a loader's workers make microbatches of: ``start_method="fork"``.

Nothing is pickled and nothing is imported: the loader's workers, and the successors of dead ones, are forks of this one
process, which has what the trainer had when the iteration began. It takes over the trainer's memory alone. Its threads
are gone; its hooks, signal handlers and exit functions are the trainer's, as are its leases and its other children.
"""

import gc
import itertools
import multiprocessing.process
import multiprocessing.util
import os
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import torch

from fkat_data.errors import ConfigurationError, WorkerError
from fkat_data.runtime.interruption import suppress
from fkat_data.runtime.launch import adopt_group
from fkat_data.transport.anonymous import anonymous_file
from fkat_data.transport.definitions import key_own_definitions, receive_from_parent
from fkat_data.worker.process.child import OwnChild, OwnProcess
from fkat_data.worker.process.fork_safety import files_only_read, forget_exit_hooks, num_threads
from fkat_data.worker.process.forkserver import lacking_stream
from fkat_data.worker.process.forkserver_main import Opened, serve_opened
from fkat_data.worker.process.handle import Child
from fkat_data.worker.process.inherited_environment import Surroundings
from fkat_data.worker.process.lifeline import DEAF_TO, STACK_SIGNAL, bind, write_stacks_on_signals
from fkat_data.worker.process.main import keep_freed_memory
from fkat_data.worker.process.parent_process import ParentProcess
from fkat_data.worker.process.process_title import PARENT_NAME, PARENT_ROLE, process_title, set_title, title_setter
from fkat_data.worker.settings import WorkerSettings

# Much more than it takes on a busy machine: from the template, workers have what modules set when they are imported.
_LONGEST_START_S = 20.0


class _Fork:
    """A fork of this process, with what ``subprocess.Popen`` has of a child.

    Args:
        run: What the fork does until its end.
        started: Where it enters itself before it starts.
    """

    def __init__(self, run: Callable[[], NoReturn], started: list[OwnProcess]) -> None:
        self._waiting = threading.Lock()
        self.returncode: int | None = None
        """The exit code; None until it is known."""
        started.append(self)
        # What is raised in the trainer by a signal's handler must not be raised in the fork.
        with warnings.catch_warnings():  # the argument's docstring says what Python 3.12 warns of
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                run()
            except BaseException:  # noqa: BLE001 - nothing may reach the trainer's frames
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(1)
        self.pid: int = pid
        """The process id."""
        # As the fork does itself, unless it hangs before: by its group it is killed.
        with suppress(OSError):
            os.setpgid(pid, pid)

    def kill(self) -> None:
        """Kill the process, unless it is reaped."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the end, reap the process, and return the exit code."""
        with self._waiting:
            if self.returncode is None:
                try:
                    _, status = os.waitpid(self.pid, 0)
                    self.returncode = os.waitstatus_to_exitcode(status)
                except ChildProcessError:  # reaped by a trainer that ignores SIGCHLD
                    self.returncode = 0
        return self.returncode


class ProgramFork:
    """A fork of the program that has what the program has now, in place of a ``Shipment``.

    Args:
        settings: What the workers start with.
        stacks: A descriptor of memory that the processes write their stacks to; stays the caller's.

    Raises:
        ConfigurationError: The program runs without one of its standard streams.
        OSError: The program cannot be forked.
    """

    def __init__(self, settings: WorkerSettings, stacks: int) -> None:
        name = lacking_stream()
        if name is not None:
            expected = f"'template' or 'spawn': this program has no {name}, so that its number may be another file's"
            raise ConfigurationError("start_method", "fork", expected)
        self._num_threads = num_threads()
        self.hazard: str = ""
        """What may hold up a worker that starts with it; empty: nothing."""
        if self._num_threads > 1:
            self.hazard = (
                f"The worker is a fork of this program, which had {self._num_threads} threads then: a lock that one of them "
                "held stays taken there. start_method='template' has no such locks"
            )
        self._forked_s = time.monotonic()
        self._definitions = key_own_definitions()
        self.settings: int = anonymous_file()
        """A descriptor of an empty file: the workers have their settings."""
        self.folder: int | None = None
        """A descriptor of any directory: the workers are where the program was."""
        self._parent: ParentProcess | None = None
        try:
            self.folder = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            title = process_title(PARENT_ROLE, settings.loader_name)
            title_setter()  # imports what a fork of a program with threads must not
            run = partial(_be_parent, title, stacks, settings, self._definitions)
            self._parent = ParentProcess(partial(_fork_program, run), None)
        except BaseException:
            self.close()
            raise

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended."""
        return self._parent is None or not self._parent.is_serving()

    @property
    def may_hang(self) -> bool:
        """Whether workers should have begun by now, and a lock that one of the program's threads had may be taken there."""
        return self._num_threads > 1 and time.monotonic() - self._forked_s > _LONGEST_START_S

    def server(self) -> ParentProcess:
        """Return the process that forks the workers.

        Raises:
            WorkerError: It is gone.
        """
        parent = self._parent
        if parent is None or self.is_gone:
            code = None if parent is None else parent.exit_code
            raise WorkerError(
                f"no worker can be started: the fork of this program that they are forks of has ended (exit code {code}), "
                "and another one would not have what that one had. The next iteration makes a new one"
            )
        return parent

    def close(self) -> None:
        """End the process, whose workers have ended. Any number of calls."""
        if self._parent is not None:
            self._parent.end()
        (settings, self.settings), (folder, self.folder) = (self.settings, -1), (self.folder, None)
        for descriptor in (settings, folder):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)


def _fork_program(run: Callable[[int, int, int], NoReturn], control: int, lifeline: int, stderr: int) -> Child:
    for stream in (sys.stdout, sys.stderr):  # the fork would write what waits there once more
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    # None reaches the fork before it handles them.
    blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, DEAF_TO)
    try:
        return OwnChild(partial(_Fork, partial(run, control, lifeline, stderr)))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)


def _be_parent(
    title: str,
    stacks: int,
    settings: WorkerSettings,
    definitions: Sequence[Any],
    control: int,
    lifeline: int,
    stderr: int,
) -> NoReturn:
    """Turn this fork of the trainer into a loader's parent, and serve."""
    # What there is stays: neither is it looked at, which would copy it, nor does a finalizer of the program's run here.
    gc.freeze()
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)  # a running asyncio loop's: the trainer's would hear of this process's signals
    bind(lifeline)
    sys.settrace(None)
    sys.setprofile(None)
    threading.settrace(None)  # type: ignore[arg-type]  # typeshed knows no None, which ends it
    threading.setprofile(None)
    write_stacks_on_signals(int(STACK_SIGNAL), stacks)
    surroundings = Surroundings.now()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    os.dup2(stderr, 2)
    os.close(stderr)
    _leave_children_to_trainer()
    forget_exit_hooks()
    receive_from_parent(definitions)
    keep_freed_memory()
    torch.set_num_threads(1)
    adopt_group(settings.group)
    set_title(title, PARENT_NAME)
    opened = Opened(settings, surroundings, files_only_read())
    serve_opened(socket.socket(fileno=control), lifeline, opened)


def _leave_children_to_trainer() -> None:
    """Let multiprocessing begin again, as in the processes that it forks itself."""
    process: Any = multiprocessing.process
    process._children = set()  # noqa: SLF001 - its exit hook would end the trainer's
    process._process_counter = itertools.count(1)  # noqa: SLF001 - as in its own processes
    multiprocessing.util._run_after_forkers()  # type: ignore[attr-defined]  # noqa: SLF001 - as above
