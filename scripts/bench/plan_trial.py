"""One trial of planning an epoch: from the shards' sizes to a rank's first batch, its time and the memory it took."""

import importlib
import time
from pathlib import Path
from typing import Any

import numpy as np
from stand_ins import stand_in

__all__ = ["trial"]

_SHARD_SIZE = 4096
_BATCH_SIZE = 32
_NODES, _RANKS = 8, 8
_SEED = 9176


def trial(contestant: str, algorithm: str, count: int, resumed_at: float, rank: int) -> dict[str, Any]:
    sizes = np.full(-(-count // _SHARD_SIZE), _SHARD_SIZE)
    sizes[-1] = count - _SHARD_SIZE * (len(sizes) - 1)
    global_batch_size = _NODES * _RANKS * _BATCH_SIZE
    drop = int(count * resumed_at) // global_batch_size * global_batch_size
    plan = _planner(contestant)
    before = _peak_kib(begin_anew=True)
    start = time.perf_counter()
    first = plan(algorithm, sizes, drop, rank)
    wall_s = time.perf_counter() - start
    return {"wall_s": wall_s, "memory_mib": (_peak_kib() - before) / 1024, "first": first}


def _planner(contestant: str) -> Any:
    if contestant == "ours":
        return _ours(importlib.import_module("fkat_data.streaming.order.epoch_order"))
    stand_in("streaming")
    partition = importlib.import_module("streaming.base.partition")
    return _theirs(partition, importlib.import_module("streaming.base.shuffle"))


def _ours(order: Any) -> Any:
    weights = importlib.import_module("fkat_data.streaming.order.weights")
    grids = importlib.import_module("fkat_data.streaming.order.partition")
    batches = importlib.import_module("fkat_data.streaming.epoch.rank_batches")
    skips = importlib.import_module("fkat_data.streaming.epoch.skips").SampleSkips()
    resume_point = importlib.import_module("fkat_data.streaming.epoch.resume_point")

    def plan(algorithm: str, sizes: Any, drop: int, rank: int) -> list[int]:
        settings = order.OrderSettings((sizes,), shuffle=True, shuffle_algo=algorithm)
        shares = weights.shares_of([weights.StreamWeight()], [int(sizes.sum())], None, _SEED)
        grid = grids.Grid(_NODES, _RANKS, _BATCH_SIZE)
        planned = order.plan_epoch(settings, shares, order.EpochStart(0, drop, _SEED, _NODES, _NODES), grid)
        chunks = batches.RankBatches(planned, resume_point.ResumePoint(0, drop), rank, skips).chunks()
        return next(chunks)[1][0].tolist()

    return plan


def _theirs(partition: Any, shuffles: Any) -> Any:
    def plan(algorithm: str, sizes: Any, drop: int, rank: int) -> list[int]:
        # As the leader of each node does for the whole epoch; every rank then has its part.
        count = int(sizes.sum())
        tensor = partition.get_partitions("relaxed", count, _NODES, _NODES, _RANKS, 1, _BATCH_SIZE, drop)
        order = shuffles.get_shuffle(algorithm, sizes, _NODES, _SEED, 0, 500_000)
        tensor = np.where(tensor != -1, order[tensor], -1)
        return tensor[rank // _RANKS, rank % _RANKS, 0, 0].tolist()

    return plan


def _peak_kib(*, begin_anew: bool = False) -> int:
    """Return the most memory since the peak was last begun anew."""
    if begin_anew:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
