"""What tests of several folders need: nothing left behind, and scripts run in processes of their own."""

import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

# Modules here can be imported by spawned workers, which search the trainer's sys.path.
sys.path.insert(0, str(Path(__file__).parent / "loader"))

_SETTLE_S = 5.0


@pytest.fixture
def nothing_left_behind():
    """Fail the test if a process, a file of shared memory or a descriptor of its own outlives it."""
    before = _leavings()
    yield
    deadline = time.monotonic() + _SETTLE_S
    while True:
        gc.collect()
        left = _leavings() - before
        if not left:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {sorted(map(str, left))}")
        time.sleep(0.02)


def _leavings():
    left = {("process", child.pid) for child in psutil.Process().children(recursive=True)}
    if Path("/dev/shm").is_dir():
        # torch names its files by the process that made them; other jobs on this machine make their own.
        left |= {("shared memory", name) for name in os.listdir("/dev/shm") if not name.startswith("sem.")}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing itself
            continue
        left.add(("descriptor", name, target))
    return left


@pytest.fixture
def run_script(tmp_path):
    """Run a text as a Python program of its own and return its standard output."""

    def run(text, *arguments, by="file", timeout=120, check=True):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        path = tmp_path / "script.py"
        path.write_text(text)
        command, given = {
            "file": ([sys.executable, str(path), *arguments], None),
            "stdin": ([sys.executable, "-", *arguments], text),
            "-c": ([sys.executable, "-c", text, *arguments], None),
            "-i": ([sys.executable, "-i", *arguments], text),
        }[by]
        done = subprocess.run(
            command,
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environment,
            cwd=tmp_path,
            check=False,
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run
