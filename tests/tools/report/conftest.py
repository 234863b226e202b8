import pytest


@pytest.fixture(autouse=True)
def _nothing_left_behind(nothing_left_behind):
    """Every test here may start processes; none may leave one."""
