"""The tests on a simulated device run in a process of their own: `FKAT_DATA_SIMULATED=1 pytest tests/device/test_engine.py`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import simulated_device

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(400)
@pytest.mark.skipif(not simulated_device.can_install(), reason="torch has no place for a simulated device")
def test_everything_is_right_on_a_simulated_device(processes):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, "tests/device/test_engine.py"],
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        | {"FKAT_DATA_SIMULATED": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (number,) = re.findall(r"^(\d+) passed in", done.stdout, re.MULTILINE)
    assert int(number) > 25, done.stdout
