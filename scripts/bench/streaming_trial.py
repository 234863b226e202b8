"""Run one trial of reading an epoch from shards. The clock starts after the first batches."""

import time
import warnings
from itertools import islice
from typing import Any

from streaming_contestants import opened, prepared

_FIRST_BATCHES = 20


def trial(folder: str, workload: str, count: int, contestant: str, num_workers: int) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    prepared(folder, workload, count, contestant)
    with opened(folder, workload, count, contestant, num_workers) as loader:
        begun = time.perf_counter()
        batches = iter(loader)
        first = next(batches)
        first_s = time.perf_counter() - begun
        # Opening files and loading pages into memory count as the start.
        num_samples = sum(_size(batch) for batch in [first, *islice(batches, _FIRST_BATCHES - 1)])
        start, seen = time.perf_counter(), num_samples
        for batch in batches:
            num_samples += _size(batch)
        wall_s = time.perf_counter() - start
    if num_samples < count:
        raise RuntimeError(f"{contestant} delivered {num_samples} of {count} samples")
    return {"first_s": first_s, "samples_per_s": (num_samples - seen) / wall_s}


def _size(batch: dict[str, Any]) -> int:
    return len(next(iter(batch.values())))
