"""The example of docs/examples/lightning is killed, and goes on as a run that was never stopped."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from prepared import PreparedInterpreter

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "lightning"


@pytest.fixture
def python(processes):
    """An interpreter that has imported what the example needs."""
    with PreparedInterpreter("torch", "torch._dynamo", "lightning.pytorch", OMP_NUM_THREADS="1") as interpreter:
        yield interpreter


def steps(text):
    return dict(re.findall(r"step (\d+): loss (\S+)", text))


def test_the_example_is_killed_and_goes_on(python, tmp_path):
    folders = [tmp_path / name for name in ("whole", "killed")]
    for folder in folders:
        folder.mkdir()
    program = EXAMPLE / "train.py"
    started = python.start([(program,)] * 2, folders=folders, variables=[{}, {}])
    printed, _ = started.files[1]
    deadline = time.monotonic() + 120
    while "step 63:" not in printed.read_text() and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(started.pids[1], signal.SIGKILL)
    whole, killed = started.wait()
    assert whole.returncode == 0, whole.stderr
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = python.run(program, folder=tmp_path / "killed")
    assert resumed.returncode == 0, resumed.stderr
    seen, found, expected = (steps(run.stdout) for run in (killed, resumed, whole))
    assert len(expected) == 104
    assert min(map(int, found)) >= 55
    assert max(map(int, seen)) < 104
    assert seen | found == expected
    assert seen.items() <= expected.items()


def test_the_script_is_short():
    assert len((EXAMPLE / "train.py").read_text().splitlines()) <= 80
