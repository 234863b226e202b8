import pytest


@pytest.fixture
def directory(tmp_path):
    """A cache's directory, which is not there yet."""
    return tmp_path / "cache"
