import pytest


@pytest.fixture
def config(tmp_path):
    """A configuration of a stream, and of a loader of it with a worker."""
    path = tmp_path / "run.yaml"
    path.write_text(
        "dataset:\n"
        "  _target_: fkat_data.streaming.StreamingDataset\n"
        f"  local: {tmp_path / 'data'}\n"
        "  batch_size: 5\n"
        "  shuffle: true\n"
        "  shuffle_algo: block\n"
        "  shuffle_block_size: 400\n"
        "loader:\n"
        "  _target_: fkat_data.streaming.StreamingDataLoader\n"
        "  dataset: ${dataset}\n"
        "  num_workers: 1\n"
        "  start_method: spawn\n"
    )
    return path


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    # The commands set these; the tests after them must not see that.
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"):
        monkeypatch.setenv(name, "")
