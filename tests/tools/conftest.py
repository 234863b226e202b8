import sys
from pathlib import Path

import pytest

# Modules here can be imported by spawned workers, which search the trainer's sys.path.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _nothing_left_behind(nothing_left_behind):
    """Every test here may start processes; none may leave one."""


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    # The commands set these; the tests after them must not see that.
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"):
        monkeypatch.setenv(name, "")
