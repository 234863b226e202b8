"""The processes that fork others: the template, which has imported what a worker needs, and the parents of loaders.

The template is spawned, so it has none of the trainer's threads, locks and CUDA; it runs nothing of the user's, so it
stays as it is. The importer is a fork of it that imports what shipments of the program name. A loader's parent is a fork
of that which has opened the loader's shipment once: the loader's workers, and the successors of dead ones, are forks of
the parent, and share its memory. What forks must not share, or would lose, makes an importer or a parent unfit: it passes
requests on to the process that it was forked from, and each parent imports, or each worker opens, for itself.

Each is a fork server: one loop. A request carries the file descriptors of the process to start, and among them a socket of its
own, the birth socket, on which the server reports the birth and the end. When the trainer shuts that socket down, the
server reaps the process, or kills it first. A server ends with its last child once its control socket has ended; the
template also when it had no child for a while. The end of its lifeline kills it.
"""

import atexit
import contextlib
import gc
import importlib
import mmap
import multiprocessing
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, NoReturn, TypeAlias

import numpy as np
import torch

from fkat_data.transport.released import release_pickle
from fkat_data.worker.process.child import OwnChild, events_on, popen_interpreter
from fkat_data.worker.process.fork_safety import (
    OpenThings,
    end_process,
    forget_exit_hooks,
    num_threads,
    reopen,
    stop_idle_threads,
)
from fkat_data.worker.process.importing import Importer, leave_places
from fkat_data.worker.process.inherited_environment import (
    BIRTH,
    DEATH,
    IS_BORN,
    IS_DEAD,
    LONGEST_NEWS_BYTES,
    MOST_DESCRIPTORS,
    RETIRED,
    ImporterDescriptors,
    ImporterRequest,
    ParentDescriptors,
    ParentRequest,
    Surroundings,
    WorkerDescriptors,
    WorkerRequest,
)
from fkat_data.worker.process.lifeline import STACK_SIGNAL, bind, end_with, write_stacks_on_signals
from fkat_data.worker.process.main import main, open_settings, prepare, work
from fkat_data.worker.process.process_title import IMPORTER_NAME, PARENT_NAME, TEMPLATE_NAME, set_title, worker_name
from fkat_data.worker.settings import WorkerSettings

_REQUEST_BYTES = 1 << 18
_LONGEST_REASON = LONGEST_NEWS_BYTES - BIRTH.size


class AskedWorker(NamedTuple):
    """A worker that this process is to start, or is."""

    request: WorkerRequest
    descriptors: WorkerDescriptors


class AskedParent(NamedTuple):
    """A loader's parent that this process is to start, or is."""

    request: ParentRequest
    descriptors: ParentDescriptors


class AskedImporter(NamedTuple):
    """An importer that this process is to start, or is."""

    request: ImporterRequest
    descriptors: ImporterDescriptors


Asked: TypeAlias = AskedWorker | AskedParent | AskedImporter


class Opened(NamedTuple):
    """The settings that a loader's parent has opened, for its workers.

    Attributes:
        settings: The loader's settings.
        surroundings: The trainer's when the parent started.
        to_reopen: Descriptors that each worker opens again, see ``fkat_data.worker.process.fork_safety``.
    """

    settings: WorkerSettings
    surroundings: Surroundings
    to_reopen: tuple[int, ...] = ()


def run(control: socket.socket, lifeline: int, idle_ms: int, title: str) -> NoReturn:
    """Be the template until the control socket ends; in each process that is forked from it, be what was asked for.

    Args:
        control: The socket on which requests come.
        lifeline: The template's own.
        idle_ms: Milliseconds without a child after which it ends as well.
        title: The template's title.
    """
    set_title(title, TEMPLATE_NAME)
    chosen = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent that ignores it never hears of an exit code
    signal.signal(STACK_SIGNAL, signal.SIG_IGN)  # each worker registers it
    stop_idle_threads()
    # Workers import what was written since. In each of them, this would write to 350 pages, and so copy them.
    importlib.invalidate_caches()
    # What is there now stays: a collection of garbage in a worker would write to its pages, and so copy them.
    gc.freeze()
    gc.enable()
    leave_places()
    server = ForkServer(control, lifeline, environment=dict(os.environ), idle_ms=idle_ms)
    asked = server.serve()
    if asked is None:
        os._exit(0)
    if chosen is not None:
        signal.signal(signal.SIGCHLD, chosen)
    if isinstance(asked, AskedImporter):
        _be_importer(asked, server.upstream)
    _be_asked(asked, server.upstream)


def serve_opened(
    control: socket.socket, lifeline: int, opened: Opened, upstream: socket.socket | None = None
) -> NoReturn:
    """Be a loader's parent until the control socket ends; be a worker in each process that is forked from it.

    Args:
        control: The socket on which requests for workers come.
        lifeline: The parent's own; this process is bound to it.
        opened: What the workers go on with. No thread beside the calling one is there.
        upstream: Takes requests that cannot be served here; None: there are none such.
    """
    importlib.invalidate_caches()
    # See ``run``; and garbage that was left there would be copied.
    gc.collect()
    gc.freeze()
    gc.enable()
    chosen = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asked = ForkServer(control, lifeline, upstream=upstream, holds_program=upstream is None).serve()
    if not isinstance(asked, AskedWorker):  # a loader's parent is asked for nothing else
        leave()
    if chosen is not None:
        signal.signal(signal.SIGCHLD, chosen)
    _be_worker_of(opened, asked)


def leave() -> NoReturn:
    """End this process as multiprocessing's end: by its exit hooks, but without taking apart what was imported."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - what an interpreter's end does first
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001 - and next
    finally:
        end_process()


class _BornChild:
    """A child, as the process that has started it sees it.

    Args:
        pid: Its process id.
        birth: The birth socket.
        process: The process, if it was not forked.
        why_alone: Why it opens the shipment for itself, where others need not.

    Raises:
        OSError: The kernel has no descriptor for it; it is killed then.
    """

    def __init__(self, pid: int, birth: socket.socket, process: OwnChild | None, why_alone: str) -> None:
        self._pid = pid
        self._birth = birth
        self._process = process
        self._is_released = self._has_ended = False
        with contextlib.suppress(OSError):  # the child does the same, perhaps before
            os.setpgid(pid, pid)
        try:
            self.pidfd = os.pidfd_open(pid)
            """Readable when the child has ended."""
        except OSError:
            self._kill()
            self._reap()
            raise
        self._send(BIRTH.pack(IS_BORN, pid, process is None) + why_alone.encode()[:_LONGEST_REASON], self.pidfd)

    def end(self) -> bool:
        """Report the child's end; return whether it was reaped."""
        self._has_ended = True
        found = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT)
        if found is not None:
            code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            self._send(DEATH.pack(IS_DEAD, code))
        if self._is_released:
            self._reap()
        return self._is_released

    def release(self) -> bool:
        """Reap the child, or kill it if it lives; return whether it was reaped."""
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
        with contextlib.suppress(OSError):  # the trainer does not want the child any more, and says so on this socket
            socket.send_fds(self._birth, [message], descriptors, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


class ForkServer:
    """The loop of a process that forks others.

    Args:
        control: The socket on which requests come.
        lifeline: The process's own.
        environment: What a child finds in place of what this process has done to its own; None: that.
        idle_ms: Milliseconds without a child after which it ends; None: never.
        upstream: Takes requests while this process has threads; None: it starts interpreters then.
        importer: Imports what a request needs; None: this process imports nothing more.
        holds_program: Whether it is a fork of the trainer, and has what no interpreter can get. It forks with threads,
            too: torch's pool, which each fork of a program with it starts again.
    """

    def __init__(
        self,
        control: socket.socket,
        lifeline: int,
        *,
        environment: Mapping[str, str] | None = None,
        idle_ms: int | None = None,
        upstream: socket.socket | None = None,
        importer: Importer | None = None,
        holds_program: bool = False,
    ) -> None:
        self._lifeline = lifeline
        self._holds_program = holds_program
        self._importer = importer
        self._environment = environment
        self._idle_ms = idle_ms
        self.upstream: socket.socket | None = upstream
        """In a parent that was forked: takes the requests that it cannot serve."""
        self._poll = select.poll()
        # By descriptors. Beside its own: of parents, which pass requests on.
        self._controls: dict[int, socket.socket] = {}
        # By descriptors: whose it is, and what to do when it is readable.
        self._watched: dict[int, tuple[_BornChild, Callable[[], bool]]] = {}
        self._children: set[_BornChild] = set()
        self._add_control(control)

    def serve(self) -> Asked | None:
        """Start a process on each request.

        Returns:
            In each process that was forked, what it is to be; None once this process has nothing to do.
        """
        while self._children or self._controls:
            events = self._poll.poll(None if self._children else self._idle_ms)
            if not events:
                self.retire()
            for descriptor, _ in events:
                if descriptor in self._watched:
                    self._poll.unregister(descriptor)
                    child, act = self._watched.pop(descriptor)
                    if act():
                        self._children.remove(child)
                        child.close()
                else:
                    asked = self._take_request(self._controls[descriptor])
                    if asked is not None and self._start(asked):
                        return asked
        return None

    def retire(self) -> None:
        """Take no request that comes from now on. One that has come is read yet, before the socket's end."""
        for control in self._controls.values():
            with contextlib.suppress(OSError):  # the trainer has closed its end
                control.send(RETIRED, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                control.shutdown(socket.SHUT_RD)

    def _take_request(self, control: socket.socket) -> Asked | None:
        asked = take_request(control)
        if asked is None:
            self._poll.unregister(control)
            self._controls.pop(control.fileno()).close()
        return asked or None

    def _add_control(self, control: socket.socket) -> None:
        self._controls[control.fileno()] = control
        self._poll.register(control, select.POLLIN)

    def _start(self, asked: Asked) -> bool:
        """Start a process; return True in it."""
        birth = socket.socket(fileno=asked.descriptors.birth)
        kept = -1
        try:
            if events_on(asked.descriptors.birth):  # shut down: the trainer does not want it any more
                birth.close()
            elif self._importer is not None and self.upstream is not None and not self._importer.admits(*asked):
                pass_on(asked, self.upstream, self._importer.why)
                birth.close()
                self.retire()
            elif self._holds_program or num_threads() == 1:
                if self._fork(asked, birth):
                    return True
            elif self.upstream is not None:
                pass_on(asked, self.upstream, "the process that workers are forked from has threads")
                birth.close()
            elif not isinstance(asked, AskedWorker):
                # What is asked of it is asked of this process then, whose workers are interpreters.
                kept = asked.descriptors.control
                self._add_control(socket.socket(fileno=kept))
                birth.close()
            else:
                self._execute(asked, birth)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.write(asked.descriptors.stderr, f"fkat_data: a process could not be started: {error}\n".encode())
            birth.close()
        _close(descriptor for descriptor in asked.descriptors[1:] if descriptor != kept)
        return False

    def _fork(self, asked: Asked, birth: socket.socket) -> bool:
        """Start a fork of this process; return True in it.

        Raises:
            OSError: There is none.
        """
        ours, theirs = (
            socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if not isinstance(asked, AskedWorker)
            else (None, None)
        )
        pid = os.fork()
        if pid == 0:
            birth.close()
            if ours is not None:
                ours.close()
            self._leave_behind()
            self.upstream = theirs
            return True
        if theirs is not None:
            theirs.close()
        self._add(_BornChild(pid, birth, None, asked.request.why_alone), asked.descriptors.birth)
        if ours is not None:
            self._add_control(ours)
        return False

    def _leave_behind(self) -> None:
        """In a fork of this process: close what is its parent's."""
        os.close(self._lifeline)
        for control in self._controls.values():
            control.close()
        for child in self._children:
            child.close()
        if self.upstream is not None:
            self.upstream.close()
        if self._environment is not None:
            _restore_environment(self._environment)

    def _execute(self, asked: AskedWorker, birth: socket.socket) -> None:
        """Start a new interpreter as the worker: the fork of a process with threads may hang."""
        request, descriptors = asked
        _restore_environment(self._environment or {})
        umask = request.surroundings.umask
        process = popen_interpreter(
            request.title,
            "worker",
            descriptors[1:6],
            (request.worker_index, request.stack_signal),
            descriptors.stderr,
            stdout=subprocess.DEVNULL if descriptors.stdout is None else descriptors.stdout,
            folder=descriptors.folder,
            umask=-1 if umask is None else umask,
        )
        request.surroundings.impose(process.pid)
        self._add(_BornChild(process.pid, birth, process, request.why_alone), descriptors.birth)

    def _add(self, child: _BornChild, birth: int) -> None:
        self._children.add(child)
        for descriptor, act in ((child.pidfd, child.end), (birth, child.release)):
            self._watched[descriptor] = child, act
            self._poll.register(descriptor, select.POLLIN)


def take_request(control: socket.socket) -> "Asked | Literal[False] | None":
    """Return the next request; False: it cannot be served; None: there will be none."""
    try:
        message, descriptors, flags, _ = socket.recv_fds(
            control, _REQUEST_BYTES, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:  # the trainer has closed its end, and has not read that this one retires
        return None
    if not message:
        return None
    if flags & socket.MSG_CTRUNC:
        os.write(2, b"fkat_data: no worker was started: the template has too many open files (see `ulimit -n`)\n")
        _close(descriptors)
        return False
    request = pickle.loads(message)
    if isinstance(request, ParentRequest):
        return AskedParent(request, ParentDescriptors(*descriptors))
    if isinstance(request, ImporterRequest):
        return AskedImporter(request, ImporterDescriptors(*descriptors))
    return AskedWorker(request, WorkerDescriptors(*descriptors))


def pass_on(asked: Asked, upstream: socket.socket, why: str) -> None:
    """Let the process that this one was forked from serve a request.

    Args:
        asked: The request; its descriptors stay this process's.
        upstream: The way there.
        why: Why it cannot be served here.

    Raises:
        OSError: That process is gone.
    """
    request = asked.request._replace(why_alone=asked.request.why_alone or why)
    descriptors = [descriptor for descriptor in asked.descriptors if descriptor is not None]
    socket.send_fds(upstream, [pickle.dumps(request)], descriptors, socket.MSG_NOSIGNAL)


def _be_importer(asked: AskedImporter, upstream: socket.socket | None) -> NoReturn:
    """Import what shipments name, and fork the parents of loaders."""
    request, descriptors = asked
    os.setpgid(0, 0)
    bind(descriptors.lifeline)
    os.dup2(descriptors.stderr, 2)
    os.close(descriptors.stderr)
    request.surroundings.impose(0)
    _seed()
    set_title(request.title, IMPORTER_NAME)
    prepare()
    multiprocessing.current_process().name = "Process-0"
    control = socket.socket(fileno=descriptors.control)
    chosen = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    server = ForkServer(control, descriptors.lifeline, idle_ms=request.idle_ms, upstream=upstream, importer=Importer())
    asked_next = server.serve()
    if asked_next is None:
        leave()
    if chosen is not None:
        signal.signal(signal.SIGCHLD, chosen)
    forget_exit_hooks()
    _be_asked(asked_next, server.upstream)


def _be_asked(asked: Asked, upstream: socket.socket | None) -> NoReturn:
    if isinstance(asked, AskedParent):
        _be_parent(asked, upstream)
    if isinstance(asked, AskedWorker):
        _be_worker_alone(asked)
    raise TypeError(f"nothing but the template starts an importer: {asked}")


def _be_parent(asked: AskedParent, upstream: socket.socket | None) -> NoReturn:
    """Open the shipment, then be what workers are forked from."""
    request, descriptors = asked
    shipment = os.dup(descriptors.settings)
    settings_file = _settle(asked)
    start = settings_file.tell()
    set_title(request.title, PARENT_NAME)
    control = socket.socket(fileno=descriptors.control)
    # As torch's workers are called: programs tell them from "MainProcess" by it.
    multiprocessing.current_process().name = "Process-0"
    before: list[OpenThings] = []
    prepare()
    gc.disable()  # what is opened stays
    settings = open_settings(settings_file, lambda: before.append(OpenThings()))
    gc.enable()
    found = before[0] if before else OpenThings()
    why = found.why_unfit()
    if not why:
        release_pickle(shipment, start, settings_file.tell())
    os.close(shipment)
    if why:
        _pass_all_on([settings], control, upstream, why)
    opened = Opened(settings, request.surroundings, found.to_reopen())
    serve_opened(control, descriptors.lifeline, opened, upstream)


def _pass_all_on(
    opened: list[WorkerSettings], control: socket.socket, upstream: socket.socket | None, why: str
) -> NoReturn:
    """Pass the requests on that come until the control socket ends. What was opened is dropped once none waits."""
    while True:
        if opened and not events_on(control.fileno()):
            opened.clear()
            gc.collect()
        asked = take_request(control)
        if asked is None:
            leave()
        if asked:
            with contextlib.suppress(OSError):  # that process is gone: the trainer sees a worker that is not born
                if upstream is not None:
                    pass_on(asked, upstream, why)
            _close(asked.descriptors)


def _be_worker_alone(asked: AskedWorker) -> NoReturn:
    """Be a worker that opens the shipment for itself."""
    request, descriptors = asked
    settings_file = _settle(asked)
    main(settings_file, request.worker_index, descriptors.channel, descriptors.page, request.title)
    leave()


def _be_worker_of(opened: Opened, asked: AskedWorker) -> NoReturn:
    """Be a worker that goes on with what its loader's parent has opened, and stays until this process's end."""
    request, descriptors = asked
    os.setpgid(0, 0)
    end_with(descriptors.lifeline)
    _take_streams(asked)
    # What the dataset has changed of these while it was opened stays.
    if request.surroundings != opened.surroundings:
        request.surroundings.impose(0)
    set_title(request.title, worker_name(request.worker_index))
    forget_exit_hooks()
    reopen(opened.to_reopen)
    _seed()
    _close((descriptors.settings, descriptors.folder, descriptors.stacks))  # the parent's is the same file
    work(opened.settings, request.worker_index, descriptors.channel, descriptors.page)
    leave()


def _settle(asked: AskedWorker | AskedParent) -> mmap.mmap:
    """Turn this fork of the template into what a spawned process is; return the shipment, at the settings."""
    request, descriptors = asked
    os.setpgid(0, 0)
    bind(descriptors.lifeline)
    _take_streams(asked)
    write_stacks_on_signals(request.stack_signal, descriptors.stacks)
    with contextlib.suppress(OSError):
        os.fchdir(descriptors.folder)
    request.surroundings.impose(0)
    _seed()
    settings = mmap.mmap(descriptors.settings, 0, access=mmap.ACCESS_COPY)
    _close((descriptors.settings, descriptors.folder))
    sys.path[:], sys.argv = pickle.load(settings)
    return settings


def _take_streams(asked: AskedWorker | AskedParent) -> None:
    descriptors = asked.descriptors
    os.dup2(descriptors.stderr, 2)
    stdout = os.open(os.devnull, os.O_WRONLY) if descriptors.stdout is None else descriptors.stdout
    os.dup2(stdout, 1)
    _close((descriptors.stderr, stdout))


def _seed() -> None:
    """Let this process draw numbers of its own where nothing seeds; Python's generator seeds itself at a fork."""
    np.random.seed()  # noqa: NPY002 - the global generator is meant
    torch.default_generator.seed()


def _restore_environment(before: Mapping[str, str]) -> None:
    """Undo what this process's imports have done to the environment."""
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _close(descriptors: Iterable[int | None]) -> None:
    for descriptor in descriptors:
        if descriptor is not None:
            os.close(descriptor)
