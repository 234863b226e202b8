"""What it is measured on."""

import os
import platform
import time
from typing import Any

import torch

__all__ = ["described"]


def described() -> dict[str, Any]:
    """Return date, device and versions."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": device,
        "cpus": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
