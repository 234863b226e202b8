"""A worker's process, from the operating system's side: started, watched, ended.

The process is forked from a template process, or spawned; not forked from the trainer, so that threads, locks and CUDA
stay behind. It does not import the trainer's ``__main__`` (so a script needs no guard, and a notebook has none), and has
a process group of its own (so that Ctrl-C at the terminal is the trainer's alone).
"""

import io
import os
import pickle
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TypeAlias

import psutil

from fkat_data.interruption import genuine, suppress
from fkat_data.worker.child import Child, SpawnedChild, has_stdout, popen_interpreter
from fkat_data.worker.forked_child import ForkedChild
from fkat_data.worker.inheritance import Surroundings, WorkerDescriptors, WorkerRequest
from fkat_data.worker.monitor import WorkerMonitor, new_lifeline
from fkat_data.worker.ship import Shipment
from fkat_data.worker.template_process import TemplateProcess

STACK_SIGNAL: int = signal.SIGRTMAX - 3 if hasattr(signal, "SIGRTMAX") else signal.SIGWINCH
"""Makes a worker write its Python stacks; datasets do not use this signal, nor does a process without a terminal."""

# The settings are a pickled list of the paths to import from, then the pickled settings proper. The first lines make
# stacks visible, those of the following imports included.
_BOOTSTRAP = """\
import faulthandler
settings, channel, page, lifeline, stacks, worker_index, stack_signal = map(int, sys.argv[1:])
bind(lifeline)
faulthandler.enable()
faulthandler.register(stack_signal, file=stacks)
import mmap, pickle
file = mmap.mmap(settings, 0, access=mmap.ACCESS_READ)
os.close(settings)
sys.path[:], sys.argv = pickle.load(file)
from fkat_data.worker.main import main
main(file, worker_index, channel, page)
"""

_REPORT_GRACE_S = 1.0
_KILL_GRACE_S = 5.0
_STACK_WAIT_S = 0.5
_LONGEST_STACK_BYTES = 1 << 16
_EVERY_SIGNAL = "f" * 16


_Inherited: TypeAlias = tuple[int, int, int, int, int]


class WorkerProcess:
    """One worker's process.

    Args:
        shipment: What the worker starts with; stays the caller's.
        worker_index: The worker's number among its loader's.
        channel: The worker's end of the pipe; stays the caller's.
        page: A descriptor of the page where the worker reports its stages; stays the caller's.
        stacks: A descriptor of memory that the loader's workers write their stacks to; stays the caller's.
        template: Forks the worker. None, or a template that is gone: the worker is spawned.

    Raises:
        OSError: No process could be started.
    """

    def __init__(
        self,
        shipment: Shipment,
        worker_index: int,
        channel: int,
        page: int,
        stacks: int,
        template: TemplateProcess | None = None,
    ) -> None:
        self._stacks = stacks
        self._template = template
        lifeline_descriptor, self._lifeline = new_lifeline()
        stderr_end, stderr = os.pipe()
        # An object: it closes once, however often an interrupted call is repeated, and when nothing holds it.
        self._stderr = io.FileIO(stderr_end)
        descriptors = (shipment.settings, channel, page, lifeline_descriptor, stacks)
        try:
            self._child = _start(worker_index, descriptors, stderr, shipment.folder, template)
        except BaseException:
            self._lifeline.close()
            self._stderr.close()
            raise
        finally:
            os.close(lifeline_descriptor)
            os.close(stderr)
        try:
            self._monitor = WorkerMonitor(self._child, self._stderr)
            self._monitor.start()
        except BaseException:
            self._lifeline.close()
            raise

    @property
    def pid(self) -> int:
        """The process id. A process that is being forked is waited for, at most 5 s; else it is the template's."""
        return self._child.pid

    @property
    def end_descriptor(self) -> int | None:
        """Readable when the process has ended; None if there is no descriptor for it."""
        return self._child.end_descriptor

    @property
    def exit_code(self) -> int | None:
        """As ``subprocess`` gives it, once the process has ended and was reaped; None if it is unknown."""
        return self._child.exit_code

    @property
    def last_words(self) -> str:
        """The last lines that the process wrote to stderr; those of the template, if that died before the fork."""
        if self._template is not None and not self._child.is_born():
            return self._monitor.last_words or self._template.last_words
        return self._monitor.last_words

    def is_dead(self) -> bool:
        """Return whether the process has ended."""
        return self._child.is_dead()

    def kill(self) -> None:
        """Kill the process and its children."""
        self._child.kill()

    def join(self, timeout_s: float) -> None:
        """Wait until the process has ended and its last words are known, at most ``timeout_s``."""
        if not sys.is_finalizing():  # other threads no longer run then
            self._monitor.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Wait for the process to end, kill it when ``timeout_s`` has passed, and close its descriptors."""
        try:
            if self._child.is_born():
                self.join(timeout_s)
        finally:  # Ctrl-C ends the wait, but not the worker's end
            self.kill()
            self.join(_REPORT_GRACE_S)
            if not self._monitor.wait(0):
                self._child.disown()
                self.join(_KILL_GRACE_S)
            self._lifeline.close()
            if self._monitor.wait(0):
                self._child.close()

    def abandon(self) -> None:
        """In a forked child: close what would keep the process alive, and nothing else."""
        self._lifeline.close()
        if self._monitor.is_listening:
            self._stderr.close()
        self._child.abandon()

    def stack(self) -> str:
        """Return the process's Python stacks, taken from outside: it goes on meanwhile, and need not reach its bytecode.

        Without a stack: what the kernel reports about the process.
        """
        if self._template is not None and not self._child.is_born():
            state = _status(self._template.pid).get("State", "gone")
            return f"no Python stack yet: the process is starting (the template process: state {state})"
        status = _status(self.pid)
        if not int(status.get("SigCgt", "0"), 16) >> (STACK_SIGNAL - 1) & 1:
            return f"no Python stack yet: the process is starting (state {status.get('State', 'gone')})"
        os.ftruncate(self._stacks, 0)
        with suppress(ProcessLookupError):
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


def _start(
    worker_index: int, descriptors: _Inherited, stderr: int, folder: int | None, template: TemplateProcess | None
) -> Child:
    if template is not None and folder is not None:
        with suppress(OSError):  # the template is gone, or cannot keep up
            return _fork(worker_index, descriptors, stderr, folder, template)
    numbers = worker_index, int(STACK_SIGNAL)
    return SpawnedChild(popen_interpreter(_BOOTSTRAP, descriptors, numbers, stderr, folder=folder))


def _fork(
    worker_index: int, descriptors: _Inherited, stderr: int, folder: int, template: TemplateProcess
) -> ForkedChild:
    request = WorkerRequest(worker_index, int(STACK_SIGNAL), Surroundings.now(), _BOOTSTRAP)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sent = WorkerDescriptors(theirs.fileno(), *descriptors, stderr, folder, 1 if has_stdout() else None)
    try:
        template.request(pickle.dumps(request), [descriptor for descriptor in sent if descriptor is not None])
        return ForkedChild(ours, template)
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
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except genuine(OSError):
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
