"""The trainer's side of the template process: started with the first loader that needs it, kept for those to come.

All loaders of a process share one template, as long as a new one would be no different (see
``fkat_data.worker.process.inherited_environment``). It ends with the trainer, or after minutes without a worker: then the next worker comes
from a new one.
"""

import logging
import os
import pickle
import select
import socket
import sys
import threading
from collections.abc import Sequence

from fkat_data.errors import ConfigurationError
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.worker.process.child import popen_interpreter
from fkat_data.worker.process.inherited_environment import RETIRED, Request, import_paths, inherited_environment
from fkat_data.worker.process.monitor import WorkerMonitor, new_lines
from fkat_data.worker.process.process_title import process_title
from fkat_data.worker.settings import FORK_OR_TEMPLATE

logger: logging.Logger = logging.getLogger(__name__)

_MOST_FAILURES = 2
# A program that changes an environment variable for some loaders finds the template of both kinds.
_MOST_TEMPLATES = 2
IDLE_MS = 300_000
"""Milliseconds without a child after which a process that forks others ends."""


class TemplateProcess:
    """A template process of this trainer's.

    Args:
        origin: What it takes over from this process, see ``inherited_environment``.
        templates: Where it enters itself: an interrupted call loses none.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, origin: tuple[object, ...], templates: "list[TemplateProcess]") -> None:
        self.origin: tuple[object, ...] = origin
        """What it has taken over."""
        self.has_started_one: bool = False
        """Whether it has started a worker."""
        self._is_unfit = self._is_dismissed = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = Control(ours)
        try:
            with theirs, new_lines() as (lifeline, own_lifeline, stderr, self._stderr):
                # The thread that watches the process holds the descriptors for as long as it lives.
                inherited, after_reap = (theirs.fileno(), lifeline), (self._control.close, own_lifeline.close)
                title = process_title("template")
                self._child = popen_interpreter(title, "template", inherited, (IDLE_MS,), stderr, after_reap=after_reap)
            self.pid: int = self._child.pid
            """The process id."""
            with suppress(OSError):  # it has ended already: the first request finds that out
                self._control.send(pickle.dumps(import_paths()))
            self._monitor = WorkerMonitor(self._child, self._stderr)
            self._monitor.start()
            templates.append(self)
        except BaseException:
            self.dismiss()
            raise

    is_only_way: bool = False

    @property
    def exit_code(self) -> int | None:
        """As ``subprocess`` gives it, once the process has ended and was reaped."""
        return self._child.exit_code

    @property
    def last_words(self) -> str:
        """The last lines that the process wrote to stderr."""
        return self._monitor.last_words

    @property
    def has_failed(self) -> bool:
        """Whether it has ended by itself before it started a worker, and not because it had nothing to do."""
        return not (self.has_started_one or self._is_dismissed or self._control.has_retired())

    def is_serving(self) -> bool:
        """Return whether it takes requests: it has neither ended nor announced its end."""
        return self._control.is_open() and not self._child.is_dead()

    def request(self, request: Request, descriptors: Sequence[int]) -> None:
        """Ask for a process, without waiting for it.

        Args:
            request: What it is to be.
            descriptors: Those of the request; they stay the caller's.

        Raises:
            OSError: The template is gone, or has too many requests to read.
        """
        self._control.send(pickle.dumps(request), descriptors)

    def has_started(self, *, is_forked: bool, why_alone: str) -> None:
        """Record that it has started a process."""
        del why_alone  # a loader's parent knows
        self.has_started_one = True
        if not (is_forked or self._is_unfit):
            self._is_unfit = True
            _registry.close(f"the template process {self.pid} has threads, so that it cannot fork")

    def join(self, timeout_s: float) -> bool:
        """Wait until the process has ended and was reaped, at most ``timeout_s``; return whether it has."""
        # Other threads no longer run at the interpreter's end.
        return not sys.is_finalizing() and self._monitor.wait(timeout_s)

    def dismiss(self) -> None:
        """Ask for nothing more, and wait for nothing: the process ends with the last of its workers."""
        self._is_dismissed = True
        self._control.close()

    def abandon(self) -> None:
        """In a forked child: close what would keep the process alive, beside its lifeline, and nothing else."""
        if self._monitor.is_listening:
            self._stderr.close()
        self._control.abandon()
        self._child.close()


class Control:
    """The trainer's end of a control socket, which another thread may close.

    Args:
        sock: The socket.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # A handler of a signal may need a worker in the middle of a request.
        self._lock = threading.RLock()
        self._has_retired = False

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a message without waiting.

        Raises:
            OSError: The template takes no message any more, or has too many to read.
        """
        with self._lock:
            socket.send_fds(self._sock, [message], list(descriptors), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def has_room(self, timeout_s: float) -> bool:
        """Wait until a message can be sent, at most ``timeout_s``; return whether one can."""
        poll = select.poll()
        poll.register(self._sock, select.POLLOUT)
        return bool(poll.poll(1000 * timeout_s))

    def is_open(self) -> bool:
        """Return whether the template takes messages."""
        with self._lock:
            try:
                self._has_retired = self._sock.recv(len(RETIRED), socket.MSG_DONTWAIT | socket.MSG_PEEK) == RETIRED
            except genuine(BlockingIOError):
                return True
            except genuine(OSError):  # closed by this side
                return False
            return False

    def has_retired(self) -> bool:
        """Return whether the template has ended because it had nothing to do."""
        self.is_open()
        return self._has_retired

    def close(self) -> None:
        """Close the socket. Any number of calls."""
        with self._lock:
            self.is_open()
            self._sock.close()

    def abandon(self) -> None:
        """In a forked child: close the socket; another thread of the parent's may have had the lock."""
        self._sock.close()


class _Registry:
    """The templates of this process."""

    def __init__(self) -> None:
        # A handler of a signal may need a worker in the middle of a call.
        self._lock = threading.RLock()
        self.templates: list[TemplateProcess] = []
        """Those that took requests when they were last looked at, the one used last at the end."""
        self.is_open = True
        self._num_failures = 0

    def find(self) -> TemplateProcess | None:
        """Return a template for the worker that is to be started now; None if it has to be spawned."""
        with self._lock:
            if not self.is_open:
                return None
            origin = inherited_environment()
            template = self._known(origin) or self._new(origin)
            if template is not None:
                # An interruption in between leaves it here twice, which does no harm.
                self.templates.append(template)
                self.templates.remove(template)
                for oldest in self.templates[:-_MOST_TEMPLATES]:
                    oldest.dismiss()
                    self.templates.remove(oldest)
            return template

    def _known(self, origin: tuple[object, ...]) -> TemplateProcess | None:
        for template in list(self.templates):
            if not template.is_serving():
                self._remove(template)
            elif template.origin == origin:
                return template
        return None

    def _new(self, origin: tuple[object, ...]) -> TemplateProcess | None:
        if self._num_failures >= _MOST_FAILURES:
            self.close(f"{self._num_failures} template processes ended before they had started a worker")
            return None
        try:
            return TemplateProcess(origin, self.templates)
        except genuine(OSError) as error:
            logger.warning("workers are spawned, which takes longer: no template process could be started: %s", error)
            return None

    def _remove(self, template: TemplateProcess) -> None:
        self.templates.remove(template)
        if template.has_started_one:
            self._num_failures = 0
        elif template.has_failed:
            self._num_failures += 1
        template.dismiss()

    def close(self, reason: str) -> None:
        """Use no templates from now on."""
        if self.is_open:
            self.is_open = False
            logger.warning("workers are spawned from now on, which takes longer: %s", reason)
            with self._lock:
                while self.templates:
                    self.templates[-1].dismiss()
                    self.templates.pop()


_registry = _Registry()


def uses_template(start_method: str | None) -> bool:
    """Return whether a loader's workers are forked from a template process.

    Args:
        start_method: The loader's; None: the template where this system has what it needs, Linux with pidfds.

    Raises:
        ConfigurationError: A template, or a fork of this process, is demanded on macOS; or a fork where there are no
            pidfds.
    """
    if sys.platform == "darwin" and start_method in ("template", "fork"):
        raise ConfigurationError(
            "start_method",
            start_method,
            "'spawn' on macOS, whose libraries do not work in a fork of a process that uses them",
        )
    if start_method == "spawn" or sys.platform == "darwin":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except genuine(AttributeError, OSError) as error:
        if start_method == "fork":
            raise ConfigurationError("start_method", "fork", f"'spawn': this system has no pidfds: {error}") from error
        _registry.close(f"this system has no pidfds: {error}")
        return False
    return start_method not in ("fork", FORK_OR_TEMPLATE)


def can_fork() -> bool:
    """Return whether this program can be forked: on Linux with pidfds, with its standard streams."""
    return sys.platform == "linux" and uses_template(None) and lacking_stream() is None


def lacking_stream() -> str | None:
    """Return the standard stream that this program has not, so that its number may be another file's; None: it has all."""
    return next((name for name in ("stdin", "stdout", "stderr") if getattr(sys, f"__{name}__") is None), None)


def find_template() -> TemplateProcess | None:
    """Return the process that forks the worker which is to be started now; None where it has to be spawned."""
    return _registry.find()


def _abandon_templates() -> None:
    global _registry
    templates, _registry = _registry.templates, _Registry()
    for template in templates:
        template.abandon()


os.register_at_fork(after_in_child=_abandon_templates)
