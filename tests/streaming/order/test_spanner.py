import numpy as np
import pytest
from order_vectors import VECTORS

from fkat_data.streaming.order import Spanner

CASE = VECTORS["spanner"]


def test_samples_are_found_where_the_reference_finds_them():
    spanner = Spanner(np.array(CASE["shard_sizes"], np.int64))
    assert [[sample, *spanner[sample]] for sample, _, _ in CASE["queries"]] == CASE["queries"]
    shards, rows = spanner.locate(np.array([query[0] for query in CASE["queries"]]))
    assert np.stack((shards, rows), axis=1).tolist() == [query[1:] for query in CASE["queries"]]


@pytest.mark.parametrize("sample", [-1, sum(CASE["shard_sizes"])])
def test_what_does_not_exist_is_an_index_error(sample):
    with pytest.raises(IndexError):
        Spanner(np.array(CASE["shard_sizes"], np.int64))[sample]
