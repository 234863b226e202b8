"""A trainer's processes, found by a mark in their environment, also when their parents are dead."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil

MARK = "FKAT_DATA_CAMPAIGN_CASE"


class Process(NamedTuple):
    """A live or stopped process.

    Attributes:
        pid: Its process id.
        parent: Its parent's.
    """

    pid: int
    parent: int


def marked(mark: str) -> list[Process]:
    """Return the processes with a mark, zombies excluded."""
    found: list[Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(Process(process.pid, process.ppid()))
    return found


def wait_until_gone(mark: str, timeout_s: float) -> list[Process]:
    """Wait until no process has the mark; return those left after ``timeout_s``."""
    deadline_s = time.monotonic() + timeout_s
    while (left := marked(mark)) and time.monotonic() < deadline_s:
        time.sleep(0.005)
    return left


def send(pid: int, number: signal.Signals, mark: str) -> bool:
    """Send a signal to a process if it still has the mark; return whether it had."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not any(process.pid == pid for process in marked(mark)):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def stacks(mark: str) -> str:
    """Return what is known of what each marked process is doing."""
    return "\n\n".join(
        f"process {process.pid}, child of {process.parent}\n{_stack(process.pid)}" for process in marked(mark)
    )


def _stack(pid: int) -> str:
    py_spy = Path(sys.executable).with_name("py-spy")
    if py_spy.exists():
        done = subprocess.run(
            [py_spy, "dump", "--pid", str(pid)], capture_output=True, text=True, check=False, timeout=30
        )
        if done.returncode == 0:
            return done.stdout
    texts: list[str] = []
    for name in ("cmdline", "wchan", "status", "syscall"):
        with contextlib.suppress(OSError):
            texts.append(Path(f"/proc/{pid}/{name}").read_text(errors="replace").replace("\0", " "))
    return "\n".join(texts)
