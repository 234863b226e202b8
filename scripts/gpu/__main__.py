"""Run the checks that need a CUDA device. See scripts/gpu_check."""

import argparse
import faulthandler
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import copies
import delivery
import steps
import torch
from machine import described

_ROOT = Path(__file__).resolve().parents[2]
_TESTS_TIMEOUT_S = 240
# For everything. Measurements until then are in the JSON file.
_TIMEOUT_S = 470
_BENCHMARKS = {"copies": copies.run, "steps": steps.run, "delivery": delivery.run}


def main() -> None:
    options = _options()
    began_s = time.monotonic()
    faulthandler.dump_traceback_later(_TIMEOUT_S, exit=True)
    report: dict[str, Any] = {"options": {"workers": options.workers, "repeats": options.repeats}, "benchmarks": {}}

    def keep() -> None:
        report["took_s"] = time.monotonic() - began_s
        if options.json:
            options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")

    if "tests" in options.only:  # first, because only one process at a time may use some devices
        report["tests"] = _tests()
        keep()
    report["machine"] = described()
    print(json.dumps(report["machine"]), flush=True)
    if torch.cuda.is_available():
        for name, run in _BENCHMARKS.items():
            if name in options.only:
                table, numbers = run(options.workers, options.repeats)
                report["benchmarks"][name] = numbers
                print(f"\n{table}", flush=True)
                keep()
    else:
        print("no CUDA device: tests are skipped, nothing is measured")
    keep()
    print(json.dumps(report))
    raise SystemExit(_exit_code(report))


def _exit_code(report: dict[str, Any]) -> int:
    """Return 0 if all passed, 1 if a test failed or none ran on the device, 3 without a device."""
    tests = report.get("tests")
    if tests is not None and (tests["exit_code"] or (torch.cuda.is_available() and not tests["passed"])):
        return 1
    return 0 if torch.cuda.is_available() else 3


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ["tests", *_BENCHMARKS]
    parser.add_argument("--json", type=Path, help="also write the numbers to this file, after each part")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="parts to run")
    parser.add_argument("--workers", type=int, default=8, help="worker processes of each loader (default 8)")
    parser.add_argument("--repeats", type=int, default=3, help="trials of each contestant, in turn (default 3)")
    return parser.parse_args()


def _tests() -> dict[str, int]:
    """Run the tests, and return pytest's exit code and the numbers of passed, failed and skipped tests."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "tests.xml"
        # Only one file: the others in its folder need more packages than a GPU machine may have.
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "tests/device/test_cuda.py", "-q"]
        command += ["-p", "no:cacheprovider", f"--junitxml={found}"]
        try:
            code = subprocess.run(command, cwd=_ROOT, timeout=_TESTS_TIMEOUT_S, check=False).returncode
        except subprocess.TimeoutExpired:
            print(f"the tests did not finish within {_TESTS_TIMEOUT_S} s")
            return {"exit_code": 1, "passed": 0, "failed": 0, "skipped": 0}
        suite = ET.parse(found).getroot()[0] if found.exists() else None  # noqa: S314 - our own pytest wrote it
    counts = {
        name: 0 if suite is None else int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")
    }
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    return {"exit_code": code, "passed": passed, "failed": failed, "skipped": counts["skipped"]}


if __name__ == "__main__":
    main()
