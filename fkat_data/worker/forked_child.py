"""A worker that the template process forks: the trainer's side of its birth socket."""

import contextlib
import io
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Generator

from fkat_data.interruption import genuine, suppress
from fkat_data.worker.inheritance import BIRTH, DEATH, IS_DEAD
from fkat_data.worker.monitor import Latch
from fkat_data.worker.template_process import TemplateProcess

_LONGEST_BIRTH_S = 5.0
_REAPED_WITHIN_S = 1.0
_LAST_BREATH_S = 0.5
_LONGEST_HELD_S = 1.0


class ForkedChild:
    """A worker that the template process forks; it may not be born yet.

    The template keeps a dead worker's process id until this side has heard of the end, so that no signal of this side
    reaches another process.

    Args:
        birth: This side's end of the birth socket; the child owns it.
        template: Whose child it is.
    """

    def __init__(self, birth: socket.socket, template: TemplateProcess) -> None:
        self._birth = birth
        self._template = template
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
        """The process id. It waits for the birth, at most 5 s; without a birth, it is the template's."""
        if self._pid is None and os.getpid() == self._owner_pid and not sys.is_finalizing():
            self._is_known.wait(_LONGEST_BIRTH_S)
        return self._template.pid if self._pid is None else self._pid

    @property
    def news_descriptor(self) -> int | None:
        """Readable when ``hear`` is to be called: the birth socket, or an orphan's pidfd."""
        if not self._is_orphan:
            return self._birth.fileno()
        return None if self._pidfd is None else self._pidfd.fileno()

    def is_born(self) -> bool:
        """Return whether the template has reported the birth."""
        return self._pid is not None or not (
            self._is_orphan or self._is_reaped or not _is_readable(self._birth.fileno())
        )

    def is_dead(self) -> bool:
        """Return whether the process has ended, or will never be born."""
        return self._is_reaped or (self._pidfd is not None and _is_readable(self._pidfd.fileno()))

    def hear(self) -> bool:
        """Look what has happened; return whether the process has ended."""
        if self._is_orphan:
            return True
        try:
            message, descriptors, _, _ = socket.recv_fds(self._birth, BIRTH.size, 1, socket.MSG_CMSG_CLOEXEC)
        except genuine(OSError):
            message, descriptors = b"", []
        if not message:  # the template is gone, or was asked to take the worker back
            self._is_orphan = True
            return self._pidfd is None
        if message[0] == IS_DEAD:
            self._status = DEATH.unpack(message)[1]
            return True
        _, pid, is_forked = BIRTH.unpack(message)
        with self._exclusively():
            self._pidfd = io.FileIO(descriptors[0]) if descriptors else None
            self._pid = pid
        self._is_known.close()
        self._template.has_started(is_forked=is_forked)
        return False

    def reap(self) -> None:
        """Record the end; the template reaps the process now."""
        if self._pid is None and not self._is_unwanted:  # it was the template that has ended, or could not start it
            self._template.join(_LAST_BREATH_S)
            self._status = self._template.exit_code
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
            elif not self._is_orphan and not _has_hung_up(self._birth.fileno()):
                self._is_unwanted = True
                self._shut_down(socket.SHUT_RDWR)

    def disown(self) -> None:
        """Hear no more of the template: its pidfd shows the end of the process."""
        self._shut_down(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the descriptors of a process that is reaped."""
        self._birth.close()
        self._end.close()
        if self._pidfd is not None:
            self._pidfd.close()

    def abandon(self) -> None:
        """In a forked child: close the descriptors."""
        self.close()

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
        with suppress(OSError):  # the template may be gone
            self._birth.shutdown(how)

    def _wait_until_reaped(self) -> None:
        deadline_s = time.monotonic() + _REAPED_WITHIN_S
        with suppress(OSError):  # at the latest the timeout
            while (left_s := deadline_s - time.monotonic()) > 0:
                self._birth.settimeout(left_s)
                if not self._birth.recv(BIRTH.size):
                    return


def _is_readable(descriptor: int) -> bool:
    return bool(_events(descriptor) & select.POLLIN)


def _has_hung_up(descriptor: int) -> bool:
    return bool(_events(descriptor) & select.POLLHUP)


def _events(descriptor: int) -> int:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return sum(events for _, events in poll.poll(0))
