"""A node's processes, killed at random while they share a cache: what each of them was promised holds throughout."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

PROGRAM = Path(__file__).parent / "crowd.py"


def check(run_script, tmp_path, num_rounds, seed, timeout):
    done = run_script(PROGRAM.read_text(), str(tmp_path), str(num_rounds), seed, timeout=timeout)
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["complaints"] == []
    assert report["wrong"] == []
    assert report["made_too_often"] == []
    assert report["most_bytes"] <= report["bound_bytes"]
    assert report["final_bytes"] <= report["limit_bytes"]
    assert report["left"] == []
    assert report["is_exact"]
    assert report["num_kills"] > num_rounds
    assert report["num_made"] > 10 * num_rounds


def test_a_cache_of_which_users_are_killed_gives_right_bytes_and_makes_nothing_twice(run_script, tmp_path):
    check(run_script, tmp_path, 5, "a", 100)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a hundred rounds
@pytest.mark.parametrize("seed", ["b", "c", "d"])
def test_a_hundred_rounds_of_kills_leave_nothing_wrong(run_script, tmp_path, seed):
    check(run_script, tmp_path, 100, seed, 800)
