"""A trainer's processes, found by a mark in their environment, also when their parents are dead."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from fkat_data.worker.process.process_title import IMPORTER_NAME, PARENT_NAME, TEMPLATE_NAME

MARK = "FKAT_DATA_CAMPAIGN_CASE"
_SERVERS = {TEMPLATE_NAME, IMPORTER_NAME, PARENT_NAME}


def marked(mark: str) -> dict[int, int]:
    """Return the parent of each process with a mark by its id, zombies excluded."""
    found: dict[int, int] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = process.ppid()
    return found


def named_servers(pids: Iterable[int]) -> set[int]:
    """Return those of the processes that fork others for loaders, by what the system calls them."""
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).name() in _SERVERS:
                found.add(pid)
    return found


def wait_until_gone(mark: str, timeout_s: float) -> dict[int, int]:
    """Wait until no process has the mark; return those left after ``timeout_s``."""
    deadline_s = time.monotonic() + timeout_s
    while (left := marked(mark)) and time.monotonic() < deadline_s:
        time.sleep(0.005)
    return left


def send(pid: int, number: signal.Signals, mark: str) -> bool:
    """Send a signal to a process if it still has the mark; return whether it had."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)  # it refuses to signal a later process with the same id
        if pid in marked(mark):
            process.send_signal(number)
            return True
    return False


def stacks(mark: str) -> str:
    """Return what is known of what each marked process is doing."""
    return "\n\n".join(f"process {pid}, child of {parent}\n{_stack(pid)}" for pid, parent in marked(mark).items())


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
