import numpy as np
import pytest
from order_vectors import VECTORS, check, name, sizes_of

from fkat_data.streaming.order import chosen_per_shard


@pytest.mark.parametrize("case", VECTORS["sampling"], ids=name)
def test_counts_are_the_references(case):
    sizes = np.array(sizes_of(case["samples_per_shard"]), np.int64)

    def make():
        return chosen_per_shard(
            sizes, case["choose"], case["granularity"], case["seed"], case["epoch"], use_epoch=case["use_epoch"]
        )

    check(make, case)
