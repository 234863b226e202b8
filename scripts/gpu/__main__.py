"""Measure what needs a CUDA device. See scripts/gpu_check."""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

import delivery
import steps
from measure import machine

_BENCHMARKS = {"steps": steps.run, "delivery": delivery.run}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file, after each part")
    parser.add_argument("--only", nargs="+", choices=_BENCHMARKS, default=list(_BENCHMARKS), help="parts to run")
    parser.add_argument("--workers", type=int, default=8, help="worker processes of each loader (default 8)")
    parser.add_argument("--repeats", type=int, default=3, help="trials of each contestant, in turn (default 3)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: tests are skipped, nothing is measured")
        raise SystemExit(3)
    report: dict[str, Any] = {"machine": _described(), "benchmarks": {}}
    print(json.dumps(report["machine"]), flush=True)
    for name in options.only:
        table, report["benchmarks"][name] = _BENCHMARKS[name](options.workers, options.repeats)
        print(f"\n{table.markdown()}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


def _described() -> dict[str, Any]:
    """Return the machine, the date, the device, its software's versions and the size of shared memory."""
    command = ["nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader"]
    return machine() | {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "driver, memory": subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip(),
        "shm_bytes": shutil.disk_usage("/dev/shm").total,  # noqa: S108 - where torch puts its tensors
        "cuda": torch.version.cuda,
    }


if __name__ == "__main__":
    main()
