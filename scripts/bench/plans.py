"""Measure how fast ours and MosaicML's streaming plan an epoch, and in what memory: to a rank's first batch."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from measure import Settings, Table, cells, in_turn, peak_rss_mib
from stand_ins import imported

_SHARD_SIZE = 4096
_BATCH_SIZE = 32
_NODES, _RANKS = 8, 8
_SEED = 9176
_PEER = "mosaicml-streaming"
_RANK = 63
#: What to plan: contestant, algorithm, samples, share of the epoch before the resume.
_PLANS: dict[str, dict[str, Any]] = {
    "block, 10^8 samples": {"contestant": "ours", "algorithm": "block", "count": 10**8},
    "block, 10^8, resumed at 90 %": {"contestant": "ours", "algorithm": "block", "count": 10**8, "resumed_at": 0.9},
    "block, 10^9 samples": {"contestant": "ours", "algorithm": "block", "count": 10**9},
    "py1e, 10^8 samples": {"contestant": "ours", "algorithm": "py1e", "count": 10**8},
    "py1e, 10^8 samples: mosaicml-streaming": {"contestant": _PEER, "algorithm": "py1e", "count": 10**8},
}


def trial(contestant: str, algorithm: str, count: int, resumed_at: float = 0.0) -> dict[str, Any]:
    sizes = np.full(-(-count // _SHARD_SIZE), _SHARD_SIZE)
    sizes[-1] = count - _SHARD_SIZE * (len(sizes) - 1)
    global_batch_size = _NODES * _RANKS * _BATCH_SIZE
    drop = int(count * resumed_at) // global_batch_size * global_batch_size
    plan = _ours() if contestant == "ours" else _theirs()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before_mib = peak_rss_mib(os.getpid())
    start = time.perf_counter()
    first = plan(algorithm, sizes, drop)
    wall_s = time.perf_counter() - start
    return {"wall_s": wall_s, "memory_mib": peak_rss_mib(os.getpid()) - before_mib, "first": first}


def _ours() -> Any:
    from fkat_data.streaming import epoch, order  # noqa: PLC0415 - the peers' environment does not have them

    def plan(algorithm: str, sizes: Any, drop: int) -> list[int]:
        settings = order.OrderSettings((sizes,), shuffle=True, shuffle_algo=algorithm)
        shares = order.shares_of([order.StreamWeight()], [int(sizes.sum())], None, _SEED)
        grid = order.Grid(_NODES, _RANKS, _BATCH_SIZE)
        place = order.EpochStart(0, drop, _SEED, _NODES, _NODES)
        planned = order.plan_epoch(settings, shares, place, grid)
        point = epoch.ResumePoint(0, drop)
        chunks = epoch.RankBatches(planned, point, _RANK, epoch.SampleSkips()).chunks()
        return next(chunks)[1][0].tolist()

    return plan


def _theirs() -> Any:
    base = imported("streaming").base

    def plan(algorithm: str, sizes: Any, drop: int) -> list[int]:
        # As the leader of each node does for the whole epoch. Every rank then takes its part.
        count = int(sizes.sum())
        tensor = base.partition.get_partitions("relaxed", count, _NODES, _NODES, _RANKS, 1, _BATCH_SIZE, drop)
        order = base.shuffle.get_shuffle(algorithm, sizes, _NODES, _SEED, 0, 500_000)
        tensor = np.where(tensor != -1, order[tensor], -1)
        return tensor[_RANK // _RANKS, _RANK % _RANKS, 0, 0].tolist()

    return plan


def run(settings: Settings) -> list[Table]:
    """Plan epochs, each to a rank's first batch."""
    there = settings.wanted_contestants(["ours", _PEER], [_PEER])
    variants = {
        name: plan | {"count": settings.count(plan["count"], at_least=100_000)}
        for name, plan in _PLANS.items()
        if plan["contestant"] in there
    }
    found = in_turn(settings, "plans", variants, peers=[_PEER])
    rows = [[name, *cells(done, wall_s=".3f", memory_mib=",.0f")] for name, done in found.items()]
    return [Table("An epoch planned in shards of 4,096, to a rank's first batch", ["order", "seconds", "MiB"], rows)]
