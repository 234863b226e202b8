"""Handles of worker processes, which start, watch and end them.

A worker is forked from a template process, or spawned, so that threads, locks and CUDA stay behind in the trainer; only
``start_method="fork"`` forks the trainer. It does not import the trainer's ``__main__`` (so a script needs no guard, and a notebook has none), and has
a process group of its own (so that Ctrl-C at the terminal is the trainer's alone).
"""

import contextlib
import io
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Protocol, TypeAlias

import psutil

from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.runtime.machine import text_of
from fkat_data.worker.process.child import OwnChild, events_on, has_stdout, popen_interpreter
from fkat_data.worker.process.inherited_environment import (
    BIRTH,
    DEATH,
    IS_DEAD,
    LONGEST_NEWS_BYTES,
    Descriptors,
    Request,
    Surroundings,
    WorkerDescriptors,
    WorkerRequest,
)
from fkat_data.worker.process.lifeline import SAFE_STACK_SIGNAL, STACK_SIGNAL
from fkat_data.worker.process.monitor import Latch, WorkerMonitor, new_lines

_LONGEST_BIRTH_S = 5.0
_REAPED_WITHIN_S = 1.0
_LAST_BREATH_S = 0.5
_LONGEST_HELD_S = 1.0


class ShippedSettings(Protocol):
    """The settings that a loader's workers start with: a shipment, or a fork of the program, which has them."""

    settings: int
    """A descriptor of the file that has them."""
    folder: int | None
    """A descriptor of the directory where workers are forked; None: there is none, so that they are spawned."""
    hazard: str
    """What may hold up a worker that starts with them; empty: nothing."""


class ServerProcess(Protocol):
    """A process that starts others on request, from the trainer's side: the template, or a loader's parent."""

    @property
    def pid(self) -> int:
        """The process id."""
        ...

    @property
    def is_only_way(self) -> bool:
        """Whether nothing else can start what it starts."""
        ...

    @property
    def exit_code(self) -> int | None:
        """As ``subprocess`` gives it, once the process has ended and was reaped."""
        ...

    @property
    def last_words(self) -> str:
        """The last lines that the process wrote to stderr."""
        ...

    def request(self, request: Request, descriptors: Sequence[int]) -> None:
        """Ask for a process, without waiting for it.

        Args:
            request: What it is to be.
            descriptors: Those of the request; they stay the caller's.

        Raises:
            OSError: The process is gone, or has too many requests to read.
        """
        ...

    def has_started(self, *, is_forked: bool, why_alone: str) -> None:
        """Record that a process was started.

        Args:
            is_forked: Whether it is a fork.
            why_alone: Why it begins with nothing that this process has opened or imported.
        """
        ...

    def join(self, timeout_s: float) -> bool:
        """Wait until the process has ended and was reaped, at most ``timeout_s``; return whether it has."""
        ...


class ForkedChild:
    """A process that another one forks; it may not be born yet.

    The other one keeps a dead child's process id until this side has heard of the end, so that no signal of this side
    reaches another process.

    Args:
        birth: This side's end of the birth socket; the child owns it.
        server: Whose child it is.
    """

    def __init__(self, birth: socket.socket, server: ServerProcess) -> None:
        self._birth = birth
        self._server = server
        self._owner_pid = os.getpid()
        self._pid: int | None = None
        self._pidfd: io.FileIO | None = None
        self._status: int | None = None
        self._is_known = Latch()
        self._reaping = threading.Lock()
        self._is_reaped = self._is_unwanted = self._is_orphan = False
        self.exit_code: int | None = None
        """As ``subprocess`` gives it, once the process has ended; None if it is unknown, as for an orphan's."""
        # An object, as the pidfd: it closes once, and when nothing holds it.
        self._end = io.FileIO(os.eventfd(0, os.EFD_CLOEXEC), "r+")

    @property
    def end_descriptor(self) -> int | None:
        """Readable when the process has ended."""
        return None if self._end.closed else self._end.fileno()

    @property
    def pid(self) -> int:
        """The process id. It waits for the birth, at most 5 s; without a birth, it is the server's."""
        if self._pid is None and os.getpid() == self._owner_pid and not sys.is_finalizing():
            self._is_known.wait(_LONGEST_BIRTH_S)
        return self._server.pid if self._pid is None else self._pid

    @property
    def news_descriptor(self) -> int | None:
        """Readable when ``hear`` is to be called: the birth socket, or an orphan's pidfd."""
        if not self._is_orphan:
            return self._birth.fileno()
        return None if self._pidfd is None else self._pidfd.fileno()

    def is_born(self) -> bool:
        """Return whether the birth was reported."""
        return self._pid is not None or not (
            self._is_orphan or self._is_reaped or not events_on(self._birth.fileno()) & select.POLLIN
        )

    def is_dead(self) -> bool:
        """Return whether the process has ended, or will never be born."""
        return self._is_reaped or (self._pidfd is not None and bool(events_on(self._pidfd.fileno()) & select.POLLIN))

    def hear(self) -> bool:
        """Look what has happened; return whether the process has ended."""
        if self._is_orphan:
            return True
        try:
            message, descriptors, _, _ = socket.recv_fds(self._birth, LONGEST_NEWS_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except genuine(OSError):
            message, descriptors = b"", []
        if not message:  # the server is gone, or was asked to take the child back
            self._is_orphan = True
            return self._pidfd is None
        if message[0] == IS_DEAD:
            self._status = DEATH.unpack(message)[1]
            return True
        _, pid, is_forked = BIRTH.unpack_from(message)
        with self._exclusively():
            self._pidfd = io.FileIO(descriptors[0]) if descriptors else None
            self._pid = pid
        self._is_known.close()
        self._server.has_started(is_forked=is_forked, why_alone=message[BIRTH.size :].decode(errors="replace"))
        return False

    def reap(self) -> None:
        """Record the end; the server reaps the process now."""
        if self._pid is None and not self._is_unwanted:  # it was the server that has ended, or could not start it
            self._server.join(_LAST_BREATH_S)
            self._status = self._server.exit_code
        with self._exclusively():
            self._is_reaped = True
            self.exit_code = -signal.SIGKILL if self._is_unwanted and self._status is None else self._status
        if not self._is_orphan:
            self._shut_down(socket.SHUT_WR)
            self._wait_until_reaped()
        if not self._end.closed:
            os.eventfd_write(self._end.fileno(), 1)
        self._is_known.close()

    def kill(self) -> None:
        """Kill the process and its children; one that is not born yet never is."""
        with self._exclusively():
            if self._is_reaped or self._is_unwanted:
                return
            if self._pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._pid, signal.SIGKILL)
            elif not self._is_orphan and not events_on(self._birth.fileno()) & select.POLLHUP:
                self._is_unwanted = True
                self._shut_down(socket.SHUT_RDWR)

    def disown(self) -> None:
        """Hear no more of the server: its pidfd shows the end of the process."""
        self._shut_down(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the descriptors of a process that is reaped."""
        self._birth.close()
        self._end.close()
        if self._pidfd is not None:
            self._pidfd.close()

    @contextlib.contextmanager
    def _exclusively(self) -> Generator[None]:
        """Keep the other thread out; one that was interrupted may have left the lock taken."""
        is_held = self._reaping.acquire(timeout=_LONGEST_HELD_S)
        try:
            yield
        finally:
            if is_held:
                self._reaping.release()

    def _shut_down(self, how: int) -> None:
        with suppress(OSError):  # the server may be gone
            self._birth.shutdown(how)

    def _wait_until_reaped(self) -> None:
        deadline_s = time.monotonic() + _REAPED_WITHIN_S
        with suppress(OSError):  # at the latest the timeout
            while (left_s := deadline_s - time.monotonic()) > 0:
                self._birth.settimeout(left_s)
                if not self._birth.recv(BIRTH.size):
                    return


Child: TypeAlias = OwnChild | ForkedChild


_REPORT_GRACE_S = 1.0
_KILL_GRACE_S = 5.0
_STACK_WAIT_S = 0.5
_SAFE_STACK_WAIT_S = 0.2
_LONGEST_STACK_BYTES = 1 << 16
_EVERY_SIGNAL = "f" * 16
#: Parts of lines of stacks: of imports, and of what writes the stacks.
_NOT_ITS_OWN = ('"<frozen importlib', " in write_stacks")


_Inherited: TypeAlias = tuple[int, int, int, int, int]


class StartedProcess:
    """A process that was started, is watched, and lives as long as this object at most.

    Args:
        start: Starts it with the worker's end of its lifeline, and its stderr; both are closed afterwards.
        server: What starts it; None: this process itself does.

    Raises:
        OSError: No process could be started.
    """

    def __init__(self, start: Callable[[int, int], Child], server: ServerProcess | None) -> None:
        self._server = server
        self._owner_pid = os.getpid()
        with new_lines() as (lifeline, self._lifeline, stderr, self._stderr):
            self.child: Child = start(lifeline, stderr)
            """The process itself. Its id is waited for while it is being forked, at most 5 s; else it is the server's."""
        try:
            self._monitor = WorkerMonitor(self.child, self._stderr)
            self._monitor.start()
        except BaseException:
            self._lifeline.close()
            raise

    @property
    def last_words(self) -> str:
        """The last lines that the process wrote to stderr; those of the server, if that died before the fork."""
        if self._server is not None and not self.child.is_born():
            return self._monitor.last_words or self._server.last_words
        return self._monitor.last_words

    def join(self, timeout_s: float) -> bool:
        """Wait until the process has ended and its last words are known, at most ``timeout_s``; return whether it has."""
        # Other threads no longer run at the interpreter's end.
        return not sys.is_finalizing() and self._monitor.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Wait for the process to end, kill it when ``timeout_s`` has passed, and close its descriptors."""
        try:
            if self.child.is_born():
                self.join(timeout_s)
        finally:  # Ctrl-C ends the wait, but not the process's end
            self.child.kill()
            self.join(_REPORT_GRACE_S)
            if not self._monitor.wait(0):
                self.child.disown()
                self.join(_KILL_GRACE_S)
            self._lifeline.close()
            if self._monitor.wait(0):
                self.child.close()

    def abandon(self) -> None:
        """In a forked child: close what would keep the process alive, beside its lifeline, and nothing else."""
        if self._monitor.is_listening:
            self._stderr.close()
        self.child.close()


class WorkerProcess(StartedProcess):
    """One worker's process.

    Args:
        title: Its title.
        shipment: What the worker starts with; stays the caller's.
        worker_index: The worker's number among its loader's.
        channel: The worker's end of the pipe; stays the caller's.
        page: A descriptor of the page where the worker reports its stages; stays the caller's.
        stacks: A descriptor of memory that the loader's workers write their stacks to; stays the caller's.
        server: Forks the worker. None, or one that is gone: the worker is spawned.

    Raises:
        OSError: No process could be started.
    """

    def __init__(
        self,
        title: str,
        shipment: ShippedSettings,
        worker_index: int,
        channel: int,
        page: int,
        stacks: int,
        server: ServerProcess | None = None,
    ) -> None:
        self._stacks = stacks

        def start(lifeline: int, stderr: int) -> Child:
            descriptors = (shipment.settings, channel, page, lifeline, stacks)
            return _start(title, worker_index, descriptors, stderr, shipment.folder, server)

        super().__init__(start, server)

    def stack(self) -> str:
        """Return the process's Python stacks, taken from outside: it goes on meanwhile, and need not reach its bytecode.

        Without a stack: what the kernel reports about the process.
        """
        pid = self.child.pid if self._server is None or self.child.is_born() else self._server.pid
        status = _status(pid)
        if not int(status.get("SigCgt", "0"), 16) >> (STACK_SIGNAL - 1) & 1:
            return f"no Python stack yet: the process is starting (state {status.get('State', 'gone')})"
        os.ftruncate(self._stacks, 0)
        size = 0 if SAFE_STACK_SIGNAL is None else self._written(pid, SAFE_STACK_SIGNAL, _SAFE_STACK_WAIT_S)
        if not size:  # it is in C for long, or waits there
            size = self._written(pid, STACK_SIGNAL, _STACK_WAIT_S)
        lines = os.pread(self._stacks, min(size, _LONGEST_STACK_BYTES), 0).decode(errors="replace").splitlines()
        text = "\n".join(line for line in lines if not any(part in line for part in _NOT_ITS_OWN)).strip()
        return text or f"no Python stack: the process does not answer (state {_status(pid).get('State', 'gone')})"

    def _written(self, pid: int, number: int, wait_s: float) -> int:
        """Send a signal that has stacks written; return the number of bytes, once no more come."""
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline_s = time.monotonic() + wait_s
        size = 0
        while time.monotonic() < deadline_s:
            time.sleep(0.02)
            before, size = size, os.fstat(self._stacks).st_size
            if size and size == before:
                break
        return size


def _start(
    title: str,
    worker_index: int,
    descriptors: _Inherited,
    stderr: int,
    folder: int | None,
    server: ServerProcess | None,
) -> Child:
    if server is not None and folder is not None:
        try:
            return _fork(title, worker_index, descriptors, stderr, folder, server)
        except genuine(OSError):  # the server is gone, or cannot keep up
            if server.is_only_way:
                raise
    numbers = worker_index, int(STACK_SIGNAL)
    return popen_interpreter(title, "worker", descriptors, numbers, stderr, folder=folder)


def _fork(
    title: str, worker_index: int, descriptors: _Inherited, stderr: int, folder: int, server: ServerProcess
) -> ForkedChild:
    request = WorkerRequest(title, worker_index, int(STACK_SIGNAL), Surroundings.now())

    def sent(birth: int) -> WorkerDescriptors:
        return WorkerDescriptors(birth, *descriptors, stderr, folder, 1 if has_stdout() else None)

    return ask_for(request, sent, server)


def ask_for(request: Request, descriptors: Callable[[int], Descriptors], server: ServerProcess) -> ForkedChild:
    """Ask a server for a process, without waiting for it.

    Args:
        request: What it is to be.
        descriptors: Returns those of the request, which stay the caller's, given that of the birth socket.
        server: What is asked.

    Raises:
        OSError: The server is gone, or has too many requests to read.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sent = [descriptor for descriptor in descriptors(theirs.fileno()) if descriptor is not None]
        server.request(request, sent)
        return ForkedChild(ours, server)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()


def _status(pid: int) -> dict[str, str]:
    if sys.platform != "linux":
        # A signal that is not handled yet is ignored: SIGWINCH is by default.
        with suppress(psutil.NoSuchProcess):
            return {"State": psutil.Process(pid).status(), "SigCgt": _EVERY_SIGNAL}
        return {}
    lines = text_of(f"/proc/{pid}/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
