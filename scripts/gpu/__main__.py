"""The checks that need a CUDA device: see scripts/gpu_check."""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import copies
import delivery
import steps
import torch
from machine import described

_ROOT = Path(__file__).resolve().parents[2]
_TESTS_TIMEOUT_S = 240
_BENCHMARKS = {"steps": steps.run, "delivery": delivery.run, "copies": copies.run}


def main() -> None:
    options = _options()
    began_s = time.monotonic()
    report: dict[str, Any] = {"machine": described(), "options": {"workers": options.workers}, "benchmarks": {}}
    print(json.dumps(report["machine"]))
    if "tests" in options.only:
        report["tests"] = _tests()
    if torch.cuda.is_available():
        for name, run in _BENCHMARKS.items():
            if name in options.only:
                table, numbers = run(options.workers, options.repeats)
                report["benchmarks"][name] = numbers
                print(f"\n{table}")
    else:
        print("no CUDA device: the tests skip, and there is nothing to measure")
    report["took_s"] = time.monotonic() - began_s
    print(json.dumps(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    raise SystemExit(report.get("tests", 0) or (0 if torch.cuda.is_available() else 3))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ["tests", *_BENCHMARKS]
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="parts")
    parser.add_argument("--workers", type=int, default=8, help="worker processes of every loader (default 8)")
    parser.add_argument("--repeats", type=int, default=3, help="turns of every contestant (default 3)")
    return parser.parse_args()


def _tests() -> int:
    """Run the tests and return pytest's exit code: 0 where all passed."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "tests/device", "-q", "-p", "no:cacheprovider"]
    try:
        return subprocess.run(command, cwd=_ROOT, timeout=_TESTS_TIMEOUT_S, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"the tests did not end within {_TESTS_TIMEOUT_S} s")
        return 1


if __name__ == "__main__":
    main()
