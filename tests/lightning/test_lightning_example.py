"""The example of docs/examples/lightning is killed, and goes on as a run that was never stopped."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "lightning"


def start(folder):
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-W", "ignore", str(EXAMPLE / "train.py")]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def steps(text):
    return dict(re.findall(r"step (\d+): loss (\S+)", text))


def test_the_example_is_killed_and_goes_on(tmp_path, processes):
    whole = start(tmp_path / "whole")
    killed = start(tmp_path / "killed")
    seen = ""
    for line in killed.stdout:
        seen += line
        if "step 63:" in line:
            killed.kill()
    assert killed.wait() == -signal.SIGKILL
    killed.stderr.close()
    killed.stdout.close()
    expected, errors = whole.communicate(timeout=120)
    assert whole.returncode == 0, errors
    resumed = start(tmp_path / "killed")
    found, errors = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, errors
    assert len(steps(expected)) == 104
    assert 55 <= min(map(int, steps(found))) <= 65
    assert steps(seen) | steps(found) == steps(expected)
    assert steps(seen).items() <= steps(expected).items()


def test_the_script_is_short():
    assert len((EXAMPLE / "train.py").read_text().splitlines()) <= 80
