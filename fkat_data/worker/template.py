"""The template process: an interpreter that has imported what a worker needs, and forks a worker on each request.

It is spawned, so it has none of the trainer's threads, locks and CUDA; it runs nothing of the user's, so it stays as it
is. A request carries the worker's descriptors, and among them a socket of its own, the birth socket, on which the
template reports the worker's birth and its end. When the trainer shuts that socket down, the template reaps the worker,
or kills it first. The template ends with its last worker once the control socket has ended, or when it had no worker for
a while. The end of its lifeline kills it.
"""

import atexit
import contextlib
import gc
import importlib
import mmap
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

import numpy as np
import torch

from fkat_data.worker.child import SpawnedChild, events_on, popen_interpreter
from fkat_data.worker.inheritance import (
    BIRTH,
    DEATH,
    IS_BORN,
    IS_DEAD,
    MOST_DESCRIPTORS,
    RETIRED,
    WorkerDescriptors,
    WorkerRequest,
)
from fkat_data.worker.lifeline import STACK_SIGNAL, bind, write_stacks_on_signals

_REQUEST_BYTES = 1 << 18


def run(control: socket.socket, lifeline: int, idle_ms: int | None = None) -> tuple[mmap.mmap, int, int, int]:
    """Be the template until the control socket ends; return in each worker that was forked from it.

    Args:
        control: The socket on which requests come.
        lifeline: The template's own.
        idle_ms: Milliseconds without a worker after which it ends as well; None: never.

    Returns:
        The arguments of the worker's ``main``, the settings still with what comes before ``WorkerSettings``.
    """
    chosen = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent that ignores it never hears of an exit code
    signal.signal(STACK_SIGNAL, signal.SIG_IGN)  # each worker registers it
    _stop_idle_threads()
    # Workers import what was written since. In each of them, this would write to 350 pages, and so copy them.
    importlib.invalidate_caches()
    # What is there now stays: a collection of garbage in a worker would write to its pages, and so copy them.
    gc.freeze()
    gc.enable()
    # It may live as long as the trainer: it must not keep a file system busy, nor the reader of a pipe waiting.
    os.chdir("/")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    request, descriptors = _Template(control, idle_ms).serve()
    os.close(lifeline)
    if chosen is not None:
        signal.signal(signal.SIGCHLD, chosen)
    return _become_worker(request, descriptors)


def leave() -> NoReturn:
    """End this worker as multiprocessing's end: by its exit hooks, but without taking apart what was imported.

    That would write to every object, and so copy the pages that it shares with the template.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - what an interpreter's end does first
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001 - and next
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or without a reader
                stream.flush()
        os._exit(0)


class _BornWorker:
    """A worker, as its template sees it.

    Args:
        pid: Its process id.
        birth: The birth socket.
        process: The process, if it was not forked.

    Raises:
        OSError: The kernel has no descriptor for it; it is killed then.
    """

    def __init__(self, pid: int, birth: socket.socket, process: SpawnedChild | None) -> None:
        self._pid = pid
        self._birth = birth
        self._process = process
        self._is_released = self._has_ended = False
        with contextlib.suppress(OSError):  # the worker does the same, perhaps before
            os.setpgid(pid, pid)
        try:
            self.pidfd = os.pidfd_open(pid)
            """Readable when the worker has ended."""
        except OSError:
            self._kill()
            self._reap()
            raise
        self._send(BIRTH.pack(IS_BORN, pid, process is None), self.pidfd)

    def end(self) -> bool:
        """Report the worker's end; return whether it was reaped."""
        self._has_ended = True
        found = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT)
        if found is not None:
            code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            self._send(DEATH.pack(IS_DEAD, code))
        if self._is_released:
            self._reap()
        return self._is_released

    def release(self) -> bool:
        """Reap the worker, or kill it if it lives; return whether it was reaped."""
        self._is_released = True
        if self._has_ended:
            self._reap()
        else:
            self._kill()
        return self._has_ended

    def close(self) -> None:
        """Close the descriptors."""
        self._birth.close()
        os.close(self.pidfd)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)
        os.kill(self._pid, signal.SIGKILL)  # it may have left its group

    def _reap(self) -> None:
        if self._process is None:
            os.waitpid(self._pid, 0)
        else:
            self._process.reap()

    def _send(self, message: bytes, *descriptors: int) -> None:
        with contextlib.suppress(OSError):  # the trainer does not want the worker any more, and says so on this socket
            socket.send_fds(self._birth, [message], descriptors, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


class _Template:
    """The template's loop.

    Args:
        control: The socket on which requests come.
        idle_ms: Milliseconds without a worker after which it ends; None: never.
    """

    def __init__(self, control: socket.socket, idle_ms: int | None) -> None:
        self._control = control
        self._idle_ms = idle_ms
        self._has_control = True
        self._environment = dict(os.environ)
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        # By descriptors: whose it is, and what to do when it is readable.
        self._watched: dict[int, tuple[_BornWorker, Callable[[], bool]]] = {}
        self._workers: set[_BornWorker] = set()

    def serve(self) -> tuple[WorkerRequest, WorkerDescriptors]:
        """Fork a worker on each request. Return in the worker; the template ends here."""
        while self._workers or self._has_control:
            events = self._poll.poll(None if self._workers else self._idle_ms)
            if not events:
                # Take no request that comes from now on. One that has come is read yet, before the socket's end.
                with contextlib.suppress(OSError):  # the trainer has closed its end
                    self._control.send(RETIRED, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                    self._control.shutdown(socket.SHUT_RD)
            for descriptor, _ in events:
                if descriptor in self._watched:
                    self._poll.unregister(descriptor)
                    worker, act = self._watched.pop(descriptor)
                    if act():
                        self._workers.remove(worker)
                        worker.close()
                else:
                    asked = self._take_request()
                    if asked is not None and self._start(*asked):
                        return asked
        os._exit(0)

    def _take_request(self) -> tuple[WorkerRequest, WorkerDescriptors] | None:
        try:
            message, descriptors, flags, _ = socket.recv_fds(
                self._control, _REQUEST_BYTES, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:  # the trainer has closed its end, and has not read that this one retires
            message, descriptors, flags = b"", [], 0
        if not message:
            self._poll.unregister(self._control)
            self._has_control = False
            return None
        if flags & socket.MSG_CTRUNC:
            os.write(2, b"fkat_data: no worker was started: the template has too many open files (see `ulimit -n`)\n")
            _close(descriptors)
            return None
        return pickle.loads(message), WorkerDescriptors(*descriptors)

    def _start(self, request: WorkerRequest, descriptors: WorkerDescriptors) -> bool:
        """Start a worker; return True in the worker."""
        birth = socket.socket(fileno=descriptors.birth)
        process = None
        try:
            if events_on(descriptors.birth):  # shut down: the trainer does not want the worker any more
                birth.close()
            elif _num_threads() == 1:
                pid = os.fork()
                if pid == 0:
                    birth.close()
                    # What is the template's.
                    self._control.close()
                    for worker in self._workers:
                        worker.close()
                    _restore_environment(self._environment)
                    return True
                self._add(_BornWorker(pid, birth, None), descriptors.birth)
            else:
                _restore_environment(self._environment)
                process = _execute(request, descriptors)
                self._add(_BornWorker(process.pid, birth, process), descriptors.birth)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.write(descriptors.stderr, f"fkat_data: the worker could not be started: {error}\n".encode())
            birth.close()
        _close(descriptors[1:])
        return False

    def _add(self, worker: _BornWorker, birth: int) -> None:
        self._workers.add(worker)
        for descriptor, act in ((worker.pidfd, worker.end), (birth, worker.release)):
            self._watched[descriptor] = worker, act
            self._poll.register(descriptor, select.POLLIN)


def _become_worker(request: WorkerRequest, descriptors: WorkerDescriptors) -> tuple[mmap.mmap, int, int, int]:
    """Turn this fork of the template into what a spawned worker is."""
    os.setpgid(0, 0)
    bind(descriptors.lifeline)
    os.dup2(descriptors.stderr, 2)
    write_stacks_on_signals(request.stack_signal, descriptors.stacks)
    stdout = os.open(os.devnull, os.O_WRONLY) if descriptors.stdout is None else descriptors.stdout
    os.dup2(stdout, 1)
    with contextlib.suppress(OSError):
        os.fchdir(descriptors.folder)
    request.surroundings.impose(0)
    # Python's generator seeds itself at a fork.
    np.random.seed()  # noqa: NPY002 - the global generator is meant
    torch.default_generator.seed()
    settings = mmap.mmap(descriptors.settings, 0, access=mmap.ACCESS_COPY)
    _close((descriptors.settings, descriptors.stderr, descriptors.folder, stdout))
    return settings, request.worker_index, descriptors.channel, descriptors.page


def _restore_environment(before: Mapping[str, str]) -> None:
    """Undo what the template's imports have done to the environment."""
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _num_threads() -> int:
    """Return the number of threads of this process, those of libraries included."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - their number is enough


def _stop_idle_threads() -> None:
    """Have libraries stop threads that wait for work: OpenBLAS does at a fork, and starts them again when needed."""
    if _num_threads() > 1:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)


def _execute(request: WorkerRequest, descriptors: WorkerDescriptors) -> SpawnedChild:
    """Start a new interpreter as the worker: the fork of a process with threads may hang."""
    inherited = descriptors[1:6]
    umask = request.surroundings.umask
    process = popen_interpreter(
        request.program,
        inherited,
        (request.worker_index, request.stack_signal),
        descriptors.stderr,
        stdout=subprocess.DEVNULL if descriptors.stdout is None else descriptors.stdout,
        folder=descriptors.folder,
        umask=-1 if umask is None else umask,
    )
    request.surroundings.impose(process.pid)
    return process


def _close(descriptors: Iterable[int | None]) -> None:
    for descriptor in descriptors:
        if descriptor is not None:
            os.close(descriptor)
