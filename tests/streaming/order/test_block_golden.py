"""The orders that users' checkpoints of ``block`` depend on."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from fkat_data.streaming.order import EpochStart, Grid, OrderSettings, StreamWeight, plan_epoch, shares_of

CASES = json.loads((Path(__file__).parents[2] / "golden" / "streaming" / "block_orders.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['method']}-{case['num_ids']}")
def test_the_order_is_what_it_always_was(case):
    settings = OrderSettings(
        tuple(np.array(sizes, np.int64) for sizes in case["shard_sizes"]),
        shuffle=True,
        shuffle_algo="block",
        shuffle_block_size=case["block_size"],
        batching_method=case["method"],
    )
    weights = [StreamWeight(*(weight or (None, None))) for weight in case["weights"]]
    shares = shares_of(weights, [sum(sizes) for sizes in case["shard_sizes"]], case["epoch_size"], case["seed"])
    start = EpochStart(case["epoch"], 0, case["seed"], case["num_canonical_nodes"])
    plan = plan_epoch(settings, shares, start, Grid(1, 1, 4))
    ids = plan.global_batches(np.arange(plan.num_batches)).reshape(-1)
    if "ids" in case:
        assert ids.tolist() == case["ids"]
    else:
        assert ids[:24].tolist() == case["first"]
        assert hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest() == case["sha256_int64_le"]
