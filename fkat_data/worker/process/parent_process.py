"""The trainer's side of a loader's parent: the process that has opened the loader's shipment, and forks its workers.

It is asked for at once, and for workers at once behind that, without waiting. What it is asked for meanwhile it reads when it
has opened the shipment.
"""

import logging
import os
import pickle
import socket
from collections.abc import Callable, Sequence

from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.lifetime import WeakTable
from fkat_data.worker.process.child import has_stdout
from fkat_data.worker.process.forkserver import Control
from fkat_data.worker.process.handle import Child, ServerProcess, StartedProcess, ask_for
from fkat_data.worker.process.inherited_environment import ParentDescriptors, ParentRequest, Request, Surroundings
from fkat_data.worker.process.lifeline import STACK_SIGNAL
from fkat_data.worker.process.ship import Shipment

logger: logging.Logger = logging.getLogger(__name__)

_GRACE_S = 1.0
_LONGEST_OPENING_S = 60.0
# A stream keeps its place in it, for torch's workers: nothing that a program could change.
_OWN_MEMORY = "/memfd:fkat_data"
# Each is said once: a program may have a loader for each phase.
_said: set[str] = set()
_processes: "WeakTable[int, ServingProcess]" = WeakTable()


class ServingProcess(StartedProcess):
    """A process that was started and starts others on request.

    Args:
        start: Starts it with its end of the control socket, its end of its lifeline, and its stderr; all of them are
            closed afterwards.
        server: What starts it; None: this process itself does.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, start: Callable[[int, int, int], Child], server: ServerProcess | None) -> None:
        self._is_closed = self._is_started = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = Control(ours)
        # Before the start: where this process itself is forked, the fork closes what is the trainer's.
        _processes[id(self)] = self
        try:
            with theirs:
                super().__init__(lambda lifeline, stderr: start(theirs.fileno(), lifeline, stderr), server)
        except BaseException:
            self.dismiss()
            raise
        self._is_started = True

    @property
    def pid(self) -> int:
        """The process id; without a birth, it is that of the process that is to start it."""
        return self.child.pid if self._server is None or self.child.is_born() else self._server.pid

    @property
    def is_only_way(self) -> bool:
        """Whether nothing else can start the workers: it is a fork of this process."""
        return self._server is None

    @property
    def exit_code(self) -> int | None:
        """As ``subprocess`` gives it, once the process has ended and was reaped."""
        return self.child.exit_code

    def is_serving(self) -> bool:
        """Return whether it takes requests: it has neither ended nor announced its end."""
        return self._control.is_open() and not self.child.is_dead()

    def request(self, request: Request, descriptors: Sequence[int]) -> None:
        """Ask for a process, without waiting for it.

        Raises:
            OSError: The process is gone, or has too many requests to read.
        """
        self._control.send(pickle.dumps(request), descriptors)

    def has_started(self, *, is_forked: bool, why_alone: str) -> None:
        """Record that a process was started."""
        if self._server is not None and not is_forked:
            self._server.has_started(is_forked=False, why_alone="")

    def dismiss(self) -> None:
        """Ask for nothing more, and wait for nothing: the process ends with the last of its children."""
        self._control.close()

    def end(self, grace_s: float = 0.0) -> None:
        """End the process, whose children have ended: by the closed control socket, or by a signal. Any number of calls.

        Args:
            grace_s: Seconds until the signal.
        """
        if self._is_closed or os.getpid() != self._owner_pid:  # a fork of the trainer has the object, not the process
            return
        self.dismiss()
        self.close(grace_s)
        self._is_closed = True  # an interrupted call is to be repeated

    def abandon(self) -> None:
        """In a forked child: close what would keep the process alive, beside its lifeline, and nothing else."""
        if not self._is_closed:
            self._is_closed = True
            self._control.abandon()
            if self._is_started:
                super().abandon()


class ParentProcess(ServingProcess):
    """A loader's parent, from the trainer's side."""

    why_unfit: str = ""
    """Why workers open the shipment for themselves; empty as long as it is not known that they must."""
    _has_started_one = _is_behind = False

    @property
    def is_only_way(self) -> bool:
        """Whether nothing else can start the workers: it may release what it has opened while others read it."""
        return super().is_only_way or self._is_behind

    def request(self, request: Request, descriptors: Sequence[int]) -> None:
        """Ask for a worker; wait for that only where a hundred requests wait to be read.

        Raises:
            OSError: The process is gone, or reads nothing for a minute.
        """
        try:
            super().request(request, descriptors)
        except genuine(BlockingIOError):
            self._is_behind = True
            if not self._control.has_room(_LONGEST_OPENING_S):
                raise
            super().request(request, descriptors)
            self._is_behind = False

    def has_started(self, *, is_forked: bool, why_alone: str) -> None:
        """Record that a worker was started."""
        super().has_started(is_forked=is_forked, why_alone=why_alone)
        self._has_started_one = True
        if why_alone and not self.why_unfit:
            self.why_unfit = why_alone
            if why_alone not in _said and _OWN_MEMORY not in why_alone:
                _said.add(why_alone)
                logger.warning("each worker opens the dataset for itself, because %s", why_alone)

    def end(self, grace_s: float = _GRACE_S) -> None:
        """End the process, at once where it has not opened the shipment yet."""
        super().end(grace_s if self._has_started_one else 0.0)


def fork_parent(title: str, shipment: Shipment, folder: int, stacks: int, server: ServerProcess) -> ParentProcess:
    """Ask for a parent that opens a shipment, without waiting for it.

    Args:
        title: Its title.
        shipment: What it opens; stays the caller's.
        folder: A descriptor of its working directory; stays the caller's.
        stacks: A descriptor of memory that it writes its stacks to; stays the caller's.
        server: What is asked.

    Raises:
        OSError: The server is gone, or has too many requests to read.
    """
    request = ParentRequest(title, int(STACK_SIGNAL), Surroundings.now(), shipment.modules)

    def start(control: int, lifeline: int, stderr: int) -> Child:
        def sent(birth: int) -> ParentDescriptors:
            stdout = 1 if has_stdout() else None
            return ParentDescriptors(birth, shipment.settings, control, lifeline, stacks, stderr, folder, stdout)

        return ask_for(request, sent, server)

    return ParentProcess(start, server)


def _abandon() -> None:
    for process in _processes.values():
        process.abandon()
    _processes.clear()


os.register_at_fork(after_in_child=_abandon)
