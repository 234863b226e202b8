import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from order_vectors import VECTORS, check, name, sizes_of

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.order import ReferenceShuffle, divided


def shuffle_of(case):
    sizes = np.array(sizes_of(case["shard_sizes"]), np.int64)
    return ReferenceShuffle(
        case["algo"], sizes, case["num_canonical_nodes"], case["seed"], case["epoch"], case["block_size"]
    )


@pytest.mark.parametrize("case", [*VECTORS["shuffle"], *VECTORS["shuffle_py1b_from_0.7.6"]], ids=name)
def test_orders_are_the_references(case):
    check(lambda: shuffle_of(case).whole(), case)


@pytest.mark.parametrize("case", VECTORS["divide_spans"], ids=name)
def test_spans_are_divided_as_the_reference_does(case):
    parts = divided([tuple(span) for span in case["spans"]], case["parts"])
    assert [list(span) for part in parts for span in part] == case["out_spans"]
    stops = np.cumsum([len(part) for part in parts])
    assert [[stop - len(part), stop] for part, stop in zip(parts, stops, strict=True)] == case["part_ranges"]


@given(
    sizes=st.lists(st.integers(0, 90), min_size=1, max_size=30),
    nodes=st.integers(1, 3),
    block_size=st.integers(1, 200),
    width=st.sampled_from([1, 8, 64]),
    together=st.sampled_from([1, 16, 128]),
)
def test_small_buckets_give_the_order_that_one_sort_gives(sizes, nodes, block_size, width, together):
    if sum(sizes) < nodes:
        return
    whole = ReferenceShuffle("py1e", np.array(sizes), nodes, 9176, 1, block_size).whole()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fkat_data.streaming.order.shuffle._LEAST_WIDTH", width)
        patch.setattr("fkat_data.streaming.order.shuffle._TOGETHER", together)
        assert ReferenceShuffle("py1e", np.array(sizes), nodes, 9176, 1, block_size).whole().tolist() == whole.tolist()


@pytest.mark.parametrize(("algorithm", "block_size"), [("py1e", 0), ("py1b", 0), ("py1br", 1)])
def test_a_block_that_is_too_small_is_refused(algorithm, block_size):
    with pytest.raises(ConfigurationError, match="shuffle_block_size"):
        ReferenceShuffle(algorithm, np.array([5, 5], np.int64), 1, 0, 0, block_size)
