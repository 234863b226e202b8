"""The checks that need a CUDA device: see scripts/gpu_check."""

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
# Of everything: what was measured until then is in the file.
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

    if "tests" in options.only:  # first: a device may be lent to one process at a time
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
        print("no CUDA device: the tests skip, and there is nothing to measure")
    keep()
    print(json.dumps(report))
    raise SystemExit(_exit_code(report))


def _exit_code(report: dict[str, Any]) -> int:
    """Return 0 where all passed; 1 where a test failed, or none ran on a device; 3 where there is no device."""
    tests = report.get("tests")
    if tests is not None and (tests["exit_code"] or (torch.cuda.is_available() and not tests["passed"])):
        return 1
    return 0 if torch.cuda.is_available() else 3


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ["tests", *_BENCHMARKS]
    parser.add_argument("--json", type=Path, help="write the figures to this file as well, part by part")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="parts")
    parser.add_argument("--workers", type=int, default=8, help="worker processes of every loader (default 8)")
    parser.add_argument("--repeats", type=int, default=3, help="turns of every contestant (default 3)")
    return parser.parse_args()


def _tests() -> dict[str, int]:
    """Run the tests; return pytest's exit code, and how many passed, failed and were skipped."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "tests.xml"
        # One file alone: the others of its folder need more packages than a lent machine has.
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "tests/device/test_cuda.py", "-q"]
        command += ["-p", "no:cacheprovider", f"--junitxml={found}"]
        try:
            code = subprocess.run(command, cwd=_ROOT, timeout=_TESTS_TIMEOUT_S, check=False).returncode
        except subprocess.TimeoutExpired:
            print(f"the tests did not end within {_TESTS_TIMEOUT_S} s")
            return {"exit_code": 1, "passed": 0, "failed": 0, "skipped": 0}
        # Written by the process above.
        suite = ET.parse(found).getroot()[0] if found.exists() else None  # noqa: S314
    counts = {
        name: 0 if suite is None else int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")
    }
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    return {"exit_code": code, "passed": passed, "failed": failed, "skipped": counts["skipped"]}


if __name__ == "__main__":
    main()
