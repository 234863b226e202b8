"""Compute how much longer the slowest rank of a step takes than the mean, by the cost of attention, and how long planning takes."""

import time

import numpy as np
from measure import Settings, Table

from fkat_data.datasets import PackedDataset, TokenBudgetBatchSampler, attention_cost, plan_report

_LENGTHS, _RANKS, _HIDDEN_SIZE = (32_768, 131_072), (8, 64), 4096
_MEDIAN, _SIGMA = 1000, 1.5
_COST = attention_cost(_HIDDEN_SIZE)
_DEALINGS = {
    "in turn": {},
    "`cost=`": {"cost": _COST},
    "`cost=`, `accumulate=4`": {"cost": _COST, "accumulate": 4},
}


def run(settings: Settings) -> list[Table]:
    """Plan an epoch of synthetic lengths in each way."""
    count = settings.count(1_000_000)
    drawn = np.random.default_rng(1).lognormal(np.log(_MEDIAN), _SIGMA, count).astype(np.int64)
    rows: list[list[str]] = []
    for length in _LENGTHS:
        lengths = np.clip(drawn, 1, length)
        for num_ranks in _RANKS:
            for name, dealing in _DEALINGS.items():
                options = {"seed": 1, "world_size": num_ranks, **dealing}
                start = time.perf_counter()
                packed = PackedDataset(range(count), length, lengths=lengths, **options)
                packed.fragments(0)
                first_s = time.perf_counter() - start
                report = plan_report(packed, cost=_COST)
                batches = plan_report(TokenBudgetBatchSampler(lengths, length, **options), cost=_COST)
                cells = [f"{ratio:.3f} ({worst:.2f})" for *_, ratio, worst in (report, batches)]
                rows.append(
                    [f"{length:,}, {num_ranks} ranks: {name}", *cells, f"{report.num_steps:,}", f"{first_s:.2f}"]
                )
    headers = ["tokens, dealt", "packed", "padded batches", "steps, packed", "first sequence, s"]
    title = f"Slowest rank to the mean over steps (in the worst one), {count:,} lognormal lengths"
    return [Table(title, headers, rows)]
