"""A trainer's program as the tests of faults see it: its words, its end, and the processes below it."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from patience import PATIENCE_S, Patience

_TESTS = Path(__file__).parent.parent


class Program:
    """A Python program in a session of its own, as a shell starts one.

    Args:
        path: The program; its standard error goes to a file beside it.
        arguments: Its arguments.
        limits: Shell commands that come first, such as ``ulimit -n 64``.
        under: A command that the program is run by, such as ``unshare``.
        terminal: The descriptor of a terminal for its standard streams; the program makes it its own.
    """

    def __init__(self, path, arguments=(), *, limits="", under=(), terminal=None):
        self.stderr_path = path.with_suffix(".stderr")
        searched = [str(path) for path in (*sys.path, _TESTS / "engine", _TESTS / "faults") if str(path)]
        command = [sys.executable, str(path), *map(str, arguments)]
        if limits:
            command = ["bash", "-c", f'{limits}; exec "$@"', "bash", *command]
        with self.stderr_path.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*under, *command],
                stdin=subprocess.PIPE if terminal is None else terminal,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(searched)},
                cwd=path.parent,
            )
        self.pid = self.process.pid
        self.unread = b""
        self._below = {}

    def line(self, timeout_s=PATIENCE_S):
        """Return its next line, or fail with what it said on standard error."""
        patience = Patience(timeout_s)
        while b"\n" not in self.unread:
            is_late = patience.is_over()
            if select.select([self.process.stdout], [], [], 0 if is_late else 0.1)[0]:
                more = os.read(self.process.stdout.fileno(), 65536)
                assert more, f"it said no more after {self.unread!r}; {self.stderr}"
                self.unread += more
            else:
                assert not is_late, f"it said no more after {self.unread!r} within {timeout_s} s; {self.stderr}"
        line, _, self.unread = self.unread.partition(b"\n")
        return line.decode()

    def expect(self, text, timeout_s=PATIENCE_S):
        """Read a line, which must be this one; return the seconds until it came."""
        began_s = time.monotonic()
        line = self.line(timeout_s)
        assert line == text, f"{line!r} instead of {text!r}; {self.stderr}"
        return time.monotonic() - began_s

    def tell(self):
        """Send an empty line to its standard input."""
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    @property
    def stderr(self):
        """What it and its workers said on standard error."""
        return self.stderr_path.read_text(errors="replace")

    def below(self):
        """Return all processes below it; they are remembered, and must be gone at the end."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.pid).children(recursive=True):
                self._below.setdefault(process.pid, process)
        return list(self._below.values())

    def wait_until_asleep(self):
        """Wait until its main thread sleeps in the kernel: in what it announced last."""
        process = psutil.Process(self.pid)
        patience = Patience()
        num_asleep = 0
        while num_asleep < 3:
            num_asleep = num_asleep + 1 if process.status() == psutil.STATUS_SLEEPING else 0
            assert not patience.is_over(), "it does not sleep"
            time.sleep(0.01)

    def signal_group(self, number):
        """Send a signal to its process group, as a terminal or a scheduler does."""
        self.below()
        os.killpg(self.pid, number)

    def kill(self):
        """Kill it, and it alone."""
        self.below()
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait()

    def wait(self, timeout_s=PATIENCE_S):
        """Return its exit code."""
        patience = Patience(timeout_s)
        while self.process.poll() is None:
            assert not patience.is_over(), f"it did not end in {timeout_s} s; {self.stderr}"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)
        return self.process.returncode

    def check_all_gone(self, timeout_s=5.0):
        """Check that no process that was below it is left."""
        alive = still_alive(self._below.values(), timeout_s)
        found = list(map(str, alive))
        for process in alive:
            process.kill()
        assert not alive, f"left {timeout_s} s after the trainer: {found}"

    def check_silent_end(self, exit_code=0, timeout_s=PATIENCE_S):
        """Check that it ends with this exit code, says nothing on standard error and leaves nothing."""
        self.below()
        assert self.wait(timeout_s) == exit_code, self.stderr
        assert self.stderr == ""
        self.check_all_gone()

    def end(self):
        """Kill what still runs."""
        self.below()
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self.check_all_gone()


def still_alive(processes, timeout_s=PATIENCE_S):
    """Return those of some processes that are still there after so long, and no zombies."""
    patience = Patience(timeout_s)
    while (alive := [process for process in processes if _is_alive(process)]) and not patience.is_over():
        psutil.wait_procs(alive, timeout=0.1)
    return alive


def _is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
