"""What of the checks for CUDA devices runs without one; the rest is in tests/device/test_cuda.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_the_tests_skip_and_nothing_is_measured(processes):
    done = subprocess.run(
        [ROOT / "scripts" / "gpu_check"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "skipped" in done.stdout
    assert "no CUDA device" in done.stdout
