import numpy as np
import pytest

from fkat_data.streaming.order.spanner import Spanner
from fkat_data.tools.simulation.quality import entropy_bits, quality_of

SPANNER = Spanner(np.full(64, 256))


def steps(order, size=64):
    return np.asarray(order)[: len(order) // size * size].reshape(-1, 1, size)


def test_an_order_without_a_shuffle_has_no_quality():
    found = quality_of(steps(np.arange(SPANNER.size)), SPANNER)
    assert found.spread < 0.01
    assert found.shards_per_step == 1
    assert found.mixture < 0.03


def test_a_shuffle_without_shards_has_the_best():
    order = np.random.default_rng(0).permutation(SPANNER.size)
    found = quality_of(steps(order), SPANNER)
    assert found.spread > 0.99
    assert found.mixture == pytest.approx(1.0, abs=0.01)
    assert found.shard_bits == pytest.approx(found.perfect_shard_bits, rel=0.01)
    assert found.shards_per_step == pytest.approx(found.perfect_shards_per_step, rel=0.01)


def test_what_is_not_read_does_not_count():
    order = np.random.default_rng(0).permutation(SPANNER.size)
    padded = np.concatenate([steps(order), np.full((SPANNER.size // 64, 1, 3), -1)], axis=2)
    assert quality_of(padded, SPANNER) == quality_of(steps(order), SPANNER)


@pytest.mark.parametrize(
    ("values", "bits"), [([], 0), ([3, 3], 0), ([0, 1], 1), ([0, 1, 2, 3], 2), ([0, 0, 1, 2], 1.5)]
)
def test_entropy_is_in_bits(values, bits):
    assert entropy_bits(np.array(values, np.int64)) == bits


def test_one_shard_is_as_good_as_it_gets():
    found = quality_of(steps(np.random.default_rng(0).permutation(256)), Spanner(np.array([256])))
    assert found.mixture == pytest.approx(1.0)
    assert found.perfect_shard_bits == 0
