"""What tests of several folders need: nothing left behind, and scripts run in processes of their own."""

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

# Modules here can be imported by spawned workers, which search the trainer's sys.path.
sys.path.insert(0, str(Path(__file__).parent / "loader"))

# Whoever starts the tests in the background may have them ignore these, and every program that they start as well.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

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
    ours = {child.pid for child in psutil.Process().children(recursive=True)} | {os.getpid()}
    left = {("process", pid) for pid in ours}
    if Path("/dev/shm").is_dir():
        for file in Path("/dev/shm").iterdir():
            maker = re.match(r"torch_(\d+)_|psm_|fkat", file.name)
            # torch names its files by the process that made them; other jobs on this machine make their own.
            if maker and (not maker[1] or int(maker[1]) in ours or not psutil.pid_exists(int(maker[1]))):
                left.add(("shared memory", file.name))
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            target = str(link.readlink())
            if not target.startswith("/dev/nvidia"):  # a driver opens them when it likes, and keeps them
                left.add(("descriptor", link.name, target))
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
