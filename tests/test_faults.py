import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fkat_data
from fkat_data import faults

ROOT = Path(fkat_data.__file__).parent


def test_every_point_is_passed_somewhere_and_every_one_that_is_passed_is_listed():
    passed = set()
    for path in ROOT.rglob("*.py"):
        passed |= set(re.findall(r"\bfault\(\"([a-z._]+)\"\)", path.read_text()))
    assert passed == set(faults.POINTS)


@pytest.mark.parametrize(
    "text", ["", "worker.sent", "worker.sent:1", "worker.sent:x:kill", "nowhere:1:kill", "worker.sent:1:dance"]
)
def test_a_fault_that_means_nothing_is_refused(text):
    with pytest.raises(ValueError, match=r"expected point:n:action|not enough values"):
        faults.parse_fault(text)


def run(fault, code, **environment):
    return subprocess.run(
        [sys.executable, "-c", f"from fkat_data.faults import fault\n{code}"],
        env={**os.environ, "FKAT_DATA_FAULT": fault, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


PASSES = "for n in range(3): fault('worker.sent'); print(n)"


@pytest.mark.parametrize(
    ("action", "code", "complaint"),
    [
        ("kill", -9, ""),
        ("segv", -11, ""),
        ("exit0", 0, ""),
        ("raise", 1, "RuntimeError: injected at worker.sent"),
        ("ENOSPC", 1, "OSError: [Errno 28] injected at worker.sent: No space left on device"),
    ],
)
def test_an_action_happens_at_the_nth_pass(action, code, complaint):
    done = run(f"worker.sent:2:{action}", PASSES)
    assert done.returncode == code
    assert complaint in done.stderr
    assert done.stdout.strip() in ("0", "")  # a killed process does not flush


def test_nothing_happens_elsewhere():
    assert run("worker.end:1:kill", PASSES).stdout.split() == ["0", "1", "2"]


def test_a_claimed_fault_happens_in_one_process_alone(tmp_path):
    fault = f"worker.sent:1:kill:{tmp_path / 'claim'}"
    assert run(fault, PASSES).returncode == -9
    assert run(fault, PASSES).returncode == 0
