import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _nothing_left_behind(nothing_left_behind):
    """Every test here may start processes; none may leave one."""
