"""Describe the machine."""

import os
import platform
import shutil
import subprocess
import time
from typing import Any

import numpy as np
import torch


def described() -> dict[str, Any]:
    """Return the date, the device, its software's versions and the size of shared memory."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": device,
        "cpus": len(os.sched_getaffinity(0)),
        "driver": _driver(),
        "shm_bytes": shutil.disk_usage("/dev/shm").total,  # noqa: S108 - where torch puts its tensors
        "torch": torch.__version__,
        "numpy": np.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def _driver() -> str:
    """Return the driver's version and the device's memory."""
    command = ["nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader"]
    if shutil.which(command[0]) is None:
        return "none"
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
