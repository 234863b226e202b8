from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)


def test_an_order_is_measured():
    from plot_shuffle import quality_of

    unshuffled = quality_of(np.arange(1000), 10)
    assert unshuffled.sample_bits == 0
    assert (unshuffled.mean_open, unshuffled.most_open) == (1, 1)
    shuffled = quality_of(np.random.default_rng(0).permutation(1000), 10)
    assert shuffled.shard_bits > 6
    assert shuffled.mean_open > 80


def test_block_mixes_as_well_as_py1e_and_keeps_no_more_shards_open(monkeypatch):
    import plot_shuffle

    monkeypatch.setattr(plot_shuffle, "ALGORITHMS", ("block", "py1e"))
    found = {name: quality for name, quality, _ in plot_shuffle.measured((512, 200, 8192), 3)}
    assert found["block"].sample_bits > found["py1e"].sample_bits - 0.05
    assert found["block"].shard_bits > found["py1e"].shard_bits - 0.05
    assert found["block"].most_open <= found["py1e"].most_open
    assert found["block"].mean_open < 1.1 * found["py1e"].mean_open
