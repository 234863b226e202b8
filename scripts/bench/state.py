"""Measure what a loader's state and statistics cost.

``local_state_dict()`` and ``statistics()`` are called after each of many microbatches: at the beginning of an epoch, and
after a resume with a different number of ranks.
"""

import time
from collections.abc import Callable
from itertools import islice
from statistics import median
from typing import Any

import measure
from measure import Settings, Table, cells

from fkat_data import DistributedDataParallelShardSampler, ShardedDataLoader

_CALLS = 2000
_TARGET_US = 50
_CASES = {
    "10 shards": {"num_shards": 10},
    "10,000 shards": {"num_shards": 10_000},
    "10,000 shards, redistributed": {"num_shards": 10_000, "saved_by": 2},
}


def trial(num_shards: int, count: int, saved_by: int = 0) -> dict[str, Any]:
    shards = [f"shard-{index:05d}" for index in range(num_shards)]

    def loader_of(size: int, rank: int) -> ShardedDataLoader:
        sampler = DistributedDataParallelShardSampler(shards, size, rank)
        return ShardedDataLoader(0, sampler, _many, multiprocessing=saved_by == 0)

    with loader_of(1, 0) as loader:
        if saved_by:
            ranks = [loader_of(saved_by, rank) for rank in range(saved_by)]
            for rank in ranks:
                next(iter(rank))
            loader.load_state_dict(loader.merge_state_dicts([rank.local_state_dict() for rank in ranks]))
        microbatches = iter(loader)
        next(microbatches)
        loader.local_state_dict()  # the first call in an epoch looks at all of its shards
        return {
            "state_us": median(_timed(loader.local_state_dict, microbatches, count)),
            "statistics_us": median(_timed(loader.statistics, microbatches, count)),
        }


def _many(shard: str) -> list[str]:
    return [shard] * 100_000


def _timed(call: Callable[[], object], microbatches: Any, count: int) -> list[float]:
    times_us: list[float] = []
    for _ in islice(microbatches, count):
        began_s = time.perf_counter()
        call()
        times_us.append(1e6 * (time.perf_counter() - began_s))
    return times_us


def run(settings: Settings) -> list[Table]:
    count = settings.count(_CALLS)
    found = measure.in_turn(settings, "state", {name: {**case, "count": count} for name, case in _CASES.items()})
    rows = [
        [name, *cells(done, state_us=".1f"), str(_TARGET_US), *cells(done, statistics_us=".1f")]
        for name, done in found.items()
    ]
    headers = ["an epoch of", "local_state_dict() µs", "target (at most)", "statistics() µs"]
    return [Table("A loader's state and statistics, medians", headers, rows)]
