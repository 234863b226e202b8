"""Measure how fast ours and MosaicML's streaming plan an epoch, and in what memory: to a rank's first batch."""

import importlib
import time
from pathlib import Path
from typing import Any

import numpy as np
from measure import Result, Settings, Table, in_turn, medians
from stand_ins import stand_in

_SHARD_SIZE = 4096
_BATCH_SIZE = 32
_NODES, _RANKS = 8, 8
_SEED = 9176
_PEER = "mosaicml-streaming"
#: What to plan: contestant, algorithm, samples, share of the epoch before the resume, rank of 64.
_PLANS: dict[str, tuple[str, str, int, float, int]] = {
    "block, 10^8 samples": ("ours", "block", 10**8, 0.0, 63),
    "block, 10^8, resumed at 90 %": ("ours", "block", 10**8, 0.9, 63),
    "block, 10^9 samples": ("ours", "block", 10**9, 0.0, 63),
    "py1e, 10^8 samples": ("ours", "py1e", 10**8, 0.0, 63),
    "py1e, 10^8 samples: mosaicml-streaming": ("mosaicml-streaming", "py1e", 10**8, 0.0, 63),
}


def trial(contestant: str, algorithm: str, count: int, resumed_at: float, rank: int) -> dict[str, Any]:
    sizes = np.full(-(-count // _SHARD_SIZE), _SHARD_SIZE)
    sizes[-1] = count - _SHARD_SIZE * (len(sizes) - 1)
    global_batch_size = _NODES * _RANKS * _BATCH_SIZE
    drop = int(count * resumed_at) // global_batch_size * global_batch_size
    plan = _planner(contestant)
    before = _peak_kib(reset=True)
    start = time.perf_counter()
    first = plan(algorithm, sizes, drop, rank)
    wall_s = time.perf_counter() - start
    return {"wall_s": wall_s, "memory_mib": (_peak_kib() - before) / 1024, "first": first}


def _planner(contestant: str) -> Any:
    if contestant == "ours":
        return _ours()
    stand_in("streaming")
    partition = importlib.import_module("streaming.base.partition")
    return _theirs(partition, importlib.import_module("streaming.base.shuffle"))


def _ours() -> Any:
    from fkat_data.streaming import epoch, order  # noqa: PLC0415 - the peers' environment does not have them

    def plan(algorithm: str, sizes: Any, drop: int, rank: int) -> list[int]:
        settings = order.OrderSettings((sizes,), shuffle=True, shuffle_algo=algorithm)
        shares = order.shares_of([order.StreamWeight()], [int(sizes.sum())], None, _SEED)
        grid = order.Grid(_NODES, _RANKS, _BATCH_SIZE)
        place = order.EpochStart(0, drop, _SEED, _NODES, _NODES)
        planned = order.plan_epoch(settings, shares, place, grid)
        point = epoch.ResumePoint(0, drop)
        chunks = epoch.RankBatches(planned, point, rank, epoch.SampleSkips()).chunks()
        return next(chunks)[1][0].tolist()

    return plan


def _theirs(partition: Any, shuffles: Any) -> Any:
    def plan(algorithm: str, sizes: Any, drop: int, rank: int) -> list[int]:
        # As the leader of each node does for the whole epoch. Every rank then takes its part.
        count = int(sizes.sum())
        tensor = partition.get_partitions("relaxed", count, _NODES, _NODES, _RANKS, 1, _BATCH_SIZE, drop)
        order = shuffles.get_shuffle(algorithm, sizes, _NODES, _SEED, 0, 500_000)
        tensor = np.where(tensor != -1, order[tensor], -1)
        return tensor[rank // _RANKS, rank % _RANKS, 0, 0].tolist()

    return plan


def _peak_kib(*, reset: bool = False) -> int:
    """Return the peak memory since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def run(settings: Settings) -> Result:
    """Plan epochs, each to a rank's first batch."""
    variants: dict[str, tuple[str, dict[str, Any]]] = {}
    pythons: dict[str, Path] = {}
    for name, (contestant, algorithm, count, resumed_at, rank) in _PLANS.items():
        if contestant == _PEER and (settings.peers is None or not settings.wanted_contestants([contestant])):
            continue
        arguments = {"contestant": contestant, "algorithm": algorithm, "resumed_at": resumed_at, "rank": rank}
        variants[name] = ("plans", arguments | {"count": settings.count(count, at_least=100_000)})
        if contestant == _PEER and settings.peers:
            pythons[name] = settings.peers
    found = in_turn(settings, variants, pythons=pythons)
    rows = [
        [name, f"{medians(done)('wall_s'):.3f}", f"{medians(done)('memory_mib'):,.0f}"] for name, done in found.items()
    ]
    table = Table("An epoch planned in shards of 4,096, to a rank's first batch", ["order", "seconds", "MiB"], rows)
    return Result([table], [trial for done in found.values() for trial in done])
