"""What is raised in the caller's thread of a ``fkat_data.DataLoader`` reaches the caller, once, and the loop goes on where it was."""

import pytest
from front_door_sweep import WAYS, sweep_beside

IN_PROCESS = [way for way in WAYS if "worker" not in way]


@pytest.mark.long
@pytest.mark.parametrize("share", [100, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])])
@pytest.mark.parametrize("way", IN_PROCESS)
def test_the_loop_goes_on_where_it_was_in_process(way, share):
    assert sweep_beside(WAYS[way], share) > 5


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("way", sorted(set(WAYS) - set(IN_PROCESS)))
def test_the_loop_goes_on_where_it_was_with_workers(way, swept):
    found = swept("front_door_sweep.main", way, "KeyboardInterrupt", 1)
    assert found["raised"] > 500
    assert not found["left"]
