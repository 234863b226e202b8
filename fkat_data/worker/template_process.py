"""The trainer's side of the template process: started with the first loader that needs it, ended with the last.

All loaders of a process that are open at the same time share one template, as long as a new one would be no different
(see ``fkat_data.worker.inheritance``). A template that the program has forked from itself is there before the first
loader and ends with the trainer.
"""

import io
import logging
import os
import pickle
import select
import socket
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from fkat_data.errors import ConfigurationError, FkatDataError
from fkat_data.interruption import genuine, suppress
from fkat_data.worker.child import SpawnedChild, Waitable, popen_interpreter
from fkat_data.worker.inheritance import Heritage, heritage, import_paths
from fkat_data.worker.monitor import WorkerMonitor
from fkat_data.worker.trainers_end import new_lifeline

__all__ = [
    "READY",
    "TemplateLease",
    "TemplateProcess",
    "add_forked_template",
    "has_templates",
    "template_lease",
]

READY = b"\0"
"""What a template that was forked from the trainer sends when it can fork workers."""

logger: logging.Logger = logging.getLogger(__name__)

# numpy's OpenBLAS has threads, which it stops at a fork and starts again when it needs them: the fork of a process that
# is small yet is a fast one. No garbage is looked for while everything that is imported stays.
_PROGRAM = """\
import faulthandler, gc
control, lifeline = map(int, sys.argv[1:])
bind(lifeline)
faulthandler.enable()
gc.disable()
import pickle, socket
control = socket.socket(fileno=control)
control.set_inheritable(False)
sys.path[:] = pickle.loads(control.recv(1 << 20))
import numpy
if len(os.listdir("/proc/self/task")) > 1:
    if os.fork() == 0:
        os._exit(0)
    with contextlib.suppress(ChildProcessError):
        os.wait()
from fkat_data.worker.main import main
from fkat_data.worker.template import leave, run
settings, *worker = run(control, lifeline)
sys.path[:], sys.argv = pickle.load(settings)
main(settings, *worker)
leave()
"""
_GRACE_S = 1.0
_KILL_GRACE_S = 5.0
_MOST_FAILURES = 2
_LONGEST_FORK_S = 30.0


class TemplateProcess:
    """A template process of this trainer's.

    Args:
        origin: What it takes over from this process, see ``heritage``.
        fork: Forks it from this process: a function of its end of the control socket, its lifeline and its stderr.
            None: it is spawned.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, origin: Heritage, fork: Callable[[int, int, int], Waitable] | None = None) -> None:
        self._origin = origin
        self._is_forked = fork is not None
        # Weakly: a call that is interrupted may drop a user without a word.
        self._users: list[weakref.ref[object]] = []
        self._has_started_one = self._is_unfit = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lifeline_descriptor, self._lifeline = new_lifeline()
        stderr_end, stderr = os.pipe()
        # An object: it closes once, however often an interrupted call is repeated, and when nothing holds it.
        self._stderr = io.FileIO(stderr_end)
        try:
            start = _spawn if fork is None else fork
            self._child = SpawnedChild(start(theirs.fileno(), lifeline_descriptor, stderr))
        except BaseException:
            self._control.close()
            self._lifeline.close()
            self._stderr.close()
            raise
        finally:
            theirs.close()
            os.close(lifeline_descriptor)
            os.close(stderr)
        try:
            if fork is None:
                with suppress(OSError):  # it has ended already: the first request finds that out
                    self._control.send(pickle.dumps(import_paths()))
            self._monitor = WorkerMonitor(self._child, self._stderr)
            self._monitor.start()
        except BaseException:
            self._control.close()
            self._lifeline.close()
            raise
        self.pid: int = self._child.pid
        """The process id."""

    @property
    def exit_code(self) -> int | None:
        """As ``subprocess`` gives it, once the process has ended and was reaped."""
        return self._child.exit_code

    @property
    def last_words(self) -> str:
        """The last lines that the process wrote to stderr."""
        return self._monitor.last_words

    @property
    def has_started_one(self) -> bool:
        """Whether it has started a worker."""
        return self._has_started_one

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"the template process {self.pid}" + (" that fork_template() forked" if self._is_forked else "")

    @property
    def is_forked(self) -> bool:
        """Whether it was forked from this process."""
        return self._is_forked

    @property
    def is_used(self) -> bool:
        """Whether a loader uses it, or may ask for it later."""
        return any(user() is not None for user in self._users) or (self._is_forked and not self.is_dead())

    def is_dead(self) -> bool:
        """Return whether it has ended."""
        return self._child.is_dead()

    def is_usable(self, origin: Heritage) -> bool:
        """Return whether its workers would be those of a new template.

        What was imported before a fork of this process has read its environment variables here, too: the worker gets
        those of now.
        """
        is_alike = self._origin.rest == origin.rest if self._is_forked else self._origin == origin
        return is_alike and not self.is_dead()

    def changed_variables(self) -> dict[str, str | None]:
        """Return the environment variables that differ from those that it has; None: removed."""
        before, now = self._origin.environment, os.environ
        return {name: now.get(name) for name in {*before, *now} if before.get(name) != now.get(name)}

    def wait_until_ready(self) -> None:
        """Wait until a template that was forked can fork workers, at most 30 s.

        Raises:
            FkatDataError: It has ended, or does not answer.
        """
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        has_answered = bool(poll.poll(1000 * _LONGEST_FORK_S))
        if has_answered and self._control.recv(len(READY)):
            return
        if not has_answered:
            raise FkatDataError(
                f"{self.name} did not answer within {_LONGEST_FORK_S:.0f} s; "
                "leave the call out, and a template is spawned with the first loader"
            )
        self.join(_GRACE_S)
        raise FkatDataError(
            f"{self.name} ended with exit code {self.exit_code}; leave the call out, and a template is spawned with the "
            f"first loader. Its last output on stderr:\n{self.last_words}"
        )

    def request(self, message: bytes, descriptors: Sequence[int]) -> None:
        """Ask for a worker, without waiting for it.

        Args:
            message: The pickled ``fkat_data.worker.birth.WorkerRequest``.
            descriptors: The worker's, ``fkat_data.worker.birth.WorkerDescriptors``; they stay the caller's.

        Raises:
            OSError: The template is gone, or has too many requests to read.
        """
        socket.send_fds(self._control, [message], list(descriptors), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def has_started(self, *, is_forked: bool) -> None:
        """Record that it has started a worker."""
        self._has_started_one = True
        if not (is_forked or self._is_unfit):
            self._is_unfit = True
            _registry.close(f"the template process {self.pid} has threads, so that it cannot fork")

    def add_user(self, user: object) -> None:
        """Record a loader that uses it."""
        self._users.append(weakref.ref(user))

    def discard_user(self, user: object) -> None:
        """Record that a loader does not use it any more."""
        self._users[:] = [known for known in self._users if known() not in (None, user)]

    def join(self, timeout_s: float) -> None:
        """Wait until the process has ended and was reaped, at most ``timeout_s``."""
        if not sys.is_finalizing():  # other threads no longer run then
            self._monitor.wait(timeout_s)

    def end(self) -> None:
        """End the process, whose workers have ended; it reaps those that it has not reaped."""
        self._control.close()
        try:
            if self._has_started_one:
                self.join(_GRACE_S)
        finally:  # Ctrl-C ends the wait, but not the template's end
            self._child.kill()
            self.join(_KILL_GRACE_S)
            self._lifeline.close()
            if self._monitor.wait(0):
                self._child.close()

    def abandon(self) -> None:
        """In a forked child: close what would keep the process alive, and nothing else."""
        self._control.close()
        self._lifeline.close()
        if self._monitor.is_listening:
            self._stderr.close()
        self._child.abandon()


class TemplateLease:
    """A loader's use of template processes: of one, unless that dies or would be a different one now."""

    def __init__(self) -> None:
        self._owner_pid = os.getpid()
        self._used: list[TemplateProcess] = []

    def template(self) -> TemplateProcess | None:
        """Return a process that forks workers; None where workers have to be spawned."""
        try:
            with _registry.lock:
                if not _registry.is_open:
                    return None
                origin = heritage()
                found = next((used for used in self._used if used.is_usable(origin)), None) or _registry.find(origin)
                if found is not None and found not in self._used:
                    self._used.append(found)
                    found.add_user(self)
                return found
        finally:
            _registry.settle()

    def release(self) -> None:
        """Use none any more; a process that no loader uses ends. Any number of calls."""
        if os.getpid() != self._owner_pid:  # a fork of the trainer has the object, not the process
            return
        _registry.released.append(self)
        _registry.settle()

    def give_up(self) -> list[TemplateProcess]:
        """Use none any more; return those that no loader uses, which are to be ended."""
        for template in self._used:
            template.discard_user(self)
        unused = _registry.take_unused(self._used)
        self._used.clear()
        return unused


class _Registry:
    """The templates of this process that loaders use."""

    def __init__(self) -> None:
        # A finaliser may run in the middle of a call, in the same thread.
        self.lock = threading.RLock()
        self.templates: list[TemplateProcess] = []
        self.is_open = True
        self.released: deque[TemplateLease] = deque()
        """Leases that have ended; the templates that only they used are to be ended."""
        self._num_failures = 0
        self._has_warned = False

    def settle(self) -> None:
        """End the templates that no loader uses any more.

        A finaliser may call it in any thread, also in one that the holder of the lock waits for: it never waits.
        The holder calls it again after the release.
        """
        while self.released and self.lock.acquire(blocking=False):
            try:
                unused = self.released.popleft().give_up() if self.released else []
            finally:
                self.lock.release()
            for template in unused:
                template.end()

    def find(self, origin: Heritage) -> TemplateProcess | None:
        """Return a template, which may be a new one; None if none can be had."""
        for template in list(self.templates):
            if template.is_usable(origin):
                return template
            if template.is_dead():
                self._remove(template)
            elif template.is_forked and not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "%s is not used: session, user, scheduling policy or control group of this process have changed "
                    "since. The next worker comes from a new template, which imports torch again",
                    template.name,
                )
        if self._num_failures >= _MOST_FAILURES:
            self.close(f"{self._num_failures} template processes ended before they had started a worker")
            return None
        try:
            template = TemplateProcess(origin)
        except genuine(OSError) as error:
            logger.warning("workers are spawned, which takes longer: no template process could be started: %s", error)
            return None
        self.templates.append(template)
        return template

    def take_unused(self, left: Sequence[TemplateProcess]) -> list[TemplateProcess]:
        """Return the templates that no loader uses, of these and of all, and forget them.

        One that an interrupted call has started is among them.
        """
        unused = [template for template in {*left, *self.templates} if not template.is_used]
        for template in unused:
            if template in self.templates:
                self._remove(template)
        return unused

    def _remove(self, template: TemplateProcess) -> None:
        self.templates.remove(template)
        if template.has_started_one:
            self._num_failures = 0
        elif template.is_dead():
            self._num_failures += 1
        if template.is_forked:
            logger.warning(
                "%s has ended (exit code %s). The next worker comes from a new template, which imports torch again",
                template.name,
                template.exit_code,
            )

    def close(self, reason: str) -> None:
        """Use no templates from now on."""
        if self.is_open:
            self.is_open = False
            logger.warning("workers are spawned from now on, which takes longer: %s", reason)


_registry = _Registry()


def _spawn(control: int, lifeline: int, stderr: int) -> Waitable:
    return popen_interpreter(_PROGRAM, (control, lifeline), (), stderr)


def has_templates() -> bool:
    """Return whether this process has a template process."""
    return bool(_registry.templates)


def add_forked_template(fork: Callable[[int, int, int], Waitable]) -> None:
    """Fork a template from this process, for every loader to come.

    Args:
        fork: As ``TemplateProcess`` takes it.

    Raises:
        FkatDataError: It has ended at once.
        OSError: It cannot be started.
    """
    template = TemplateProcess(heritage(), fork)
    try:
        template.wait_until_ready()
        _registry.templates.append(template)
    except BaseException:
        template.end()
        raise


def template_lease(start_method: str | None) -> TemplateLease | None:
    """Return a loader's use of the template process; None if its workers are spawned.

    Args:
        start_method: The loader's; None: the template where this system has what it needs, Linux with pidfds.

    Raises:
        ConfigurationError: A template is demanded on macOS.
    """
    if sys.platform == "darwin" and start_method == "template":
        raise ConfigurationError(
            "start_method",
            start_method,
            "'spawn' on macOS, whose libraries do not work in a fork of a process that uses them",
        )
    if start_method == "spawn" or sys.platform == "darwin":
        return None
    try:
        os.close(os.pidfd_open(os.getpid()))
    except genuine(AttributeError, OSError) as error:
        _registry.close(f"this system has no pidfds: {error}")
        return None
    return TemplateLease()


def _abandon_templates() -> None:
    global _registry
    templates, _registry = _registry.templates, _Registry()
    for template in templates:
        template.abandon()


os.register_at_fork(after_in_child=_abandon_templates)
