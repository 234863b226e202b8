import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from order_vectors import VECTORS, check, name, sizes_of

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.order import StreamSamples, chosen_per_shard, selected


@pytest.mark.parametrize("case", VECTORS["sampling"], ids=name)
def test_counts_are_the_references(case):
    sizes = np.array(sizes_of(case["samples_per_shard"]), np.int64)

    def make():
        return chosen_per_shard(
            sizes, case["choose"], case["granularity"], case["seed"], case["epoch"], use_epoch=case["use_epoch"]
        )

    if "error" in case:
        with pytest.raises(ConfigurationError):
            make()
    else:
        check(make(), case)


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    times=st.floats(0, 3),
    granularity=st.integers(1, 9),
    epoch=st.integers(0, 2),
)
def test_a_selection_takes_what_it_is_asked_for_and_no_sample_once_more_than_another(sizes, times, granularity, epoch):
    total = sum(sizes)
    choose = int(total * times)
    stream = StreamSamples(np.array(sizes, np.int64), 100, choose)
    made = selected([stream], seed=3, epoch=epoch, granularity=granularity, is_balanced=True, is_shuffled=True)
    ids = made.sample_ids(np.arange(made.size))
    assert made.size == choose == made.unit_sizes.sum()
    if total:
        seen = np.bincount(ids - 100, minlength=total)
        assert len(seen) == total
        assert set(seen.tolist()) <= {choose // total, choose // total + 1}
