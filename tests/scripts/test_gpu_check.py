"""What of the checks for CUDA devices runs without one; the rest is in tests/device/test_cuda.py."""

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_the_tests_skip_and_nothing_is_measured():
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


def test_every_loader_is_given_the_same_microbatches(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts" / "gpu")
    for name in ("workloads",):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import workloads

    try:
        for workload in workloads.WORKLOADS:
            if workload == "blocks":
                continue  # large, and like the others
            one, other = workloads.Shards(workload)("0"), iter(workloads.Stream(workload))
            for first, second in islice(zip(one, other, strict=False), 2):
                assert all(torch.equal(first[name], second[name]) for name in first)
                assert sum(tensor.nbytes for tensor in first.values()) == workloads.num_bytes(workload)
    finally:
        del sys.modules["workloads"]
