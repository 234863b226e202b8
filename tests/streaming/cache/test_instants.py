"""Every named instant of a cache's use may be a process's last, or fail: the next process finds nothing amiss."""

import json
from pathlib import Path

import pytest

from fkat_data import faults

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

PROGRAM = Path(__file__).parent / "instants.py"


@pytest.mark.parametrize(
    "action",
    [
        "kill",
        "ENOSPC",
        *(pytest.param(action, marks=pytest.mark.slow) for action in ("raise", "EIO", "exit0", "segv", "sleep")),
    ],
)
def test_after_a_failure_at_any_instant_a_fresh_process_finds_right_bytes_and_leaves_nothing(
    run_script, tmp_path, action
):
    done = run_script(PROGRAM.read_text(), str(tmp_path), action, timeout=170)
    passes = json.loads(done.stdout.splitlines()[-1])
    assert set(passes) == {point for point in faults.POINTS if point.startswith("cache.")}
    assert all(passes.values())
