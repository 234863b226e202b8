"""Any operation on files that a process makes while it uses a cache may fail or be its last: the next finds it right."""

import json
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("prepared", "processes", "nothing_left_behind")

PROGRAM = Path(__file__).parent / "operations.py"


def slow(which, *actions):
    marks = [pytest.mark.slow, pytest.mark.timeout(3600)]
    return [pytest.param(which, action, marks=marks) for action in actions]


@pytest.mark.parametrize(
    ("which", "action"),
    [
        ("first", "kill"),
        ("first", "ENOSPC"),
        *slow("first", "exit0", "segv"),
        *slow("all", "kill", "ENOSPC", "EIO", "raise"),
    ],
)
def test_after_a_failure_of_any_operation_a_fresh_process_finds_right_bytes_and_leaves_nothing(
    run_script, which, action
):
    # In memory: a disk would take most of the time to sync, and what it keeps is not the question here.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        timeout_s = 170 if which == "first" else 3500
        done = run_script(PROGRAM.read_text(), folder, which, action, by="fork", timeout=timeout_s)
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"flock", "fsync", "open", "read", "rename", "unlink", "write"} <= set(found["names"])
    assert found["tried"] > 40
    assert found["tried"] == found["operations"] or which == "first"
    # Some errors do not matter: what was not marked as used, or not swept.
    assert found["errors"] > found["tried"] // 3 or action not in ("ENOSPC", "EIO", "raise")
