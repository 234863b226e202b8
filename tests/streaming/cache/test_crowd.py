"""A node's processes, killed at random while they share a cache: what each of them was promised holds throughout."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

PROGRAM = Path(__file__).parent / "crowd.py"


def test_a_cache_of_which_users_are_killed_gives_right_bytes_and_makes_nothing_twice(run_script, tmp_path):
    run_script(PROGRAM.read_text(), str(tmp_path), "5", "a", timeout=100)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a hundred rounds
@pytest.mark.parametrize("seed", ["b", "c", "d"])
def test_a_hundred_rounds_of_kills_leave_nothing_wrong(run_script, tmp_path, seed):
    run_script(PROGRAM.read_text(), str(tmp_path), "100", seed, timeout=800)
