"""Measure the shape that users have, on an idle machine and beside busy processes: a torch ``DataLoader`` a shard.

Each of four shards is a ``DataLoader`` over a map-style dataset whose items are microbatches, cloned one by one. Ours
makes them in one worker, 8 microbatches ahead; torch's ``DataLoader`` reads as many from one dataset, with one worker
and ``prefetch_factor=8``. The first shard warms both up, four are measured, then four more while as many other processes
as there are cores keep busy.
"""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import measure
from contestants import PREFETCHED, ours, torchs
from measure import Settings, Table, Usage, medians
from workloads import ShardSamples, shard_loader

#: Microbatches a shard: ours, torch.
_SIZES = {"tiny": (5_000, 400), "tokens": (4_000, 300), "images": (80, 20)}
_NUM_SHARDS = 4
#: One to warm up, four each idle and busy, and one so that the end of the epoch is not measured.
_NUM_OPENED = 2 * _NUM_SHARDS + 2
_LOADS = ("idle", "busy")
_PER_S_TARGETS = {"tiny": 20, "tokens": 20, "images": 5}
_CPU_TARGETS = {"tiny": 20, "tokens": 20, "images": 6}


def trial(contestant: str, workload: str, shard_size: int) -> dict[str, Any]:
    count = _NUM_SHARDS * shard_size
    measured: dict[str, Any] = {}
    with _opened(contestant, workload, shard_size) as loader:
        microbatches = iter(loader)
        next(microbatches)
        _await_worker(loader)
        measure.take(microbatches, shard_size - 1)
        children = measure.workers()
        for load, num_busy in zip(_LOADS, (0, _num_cores()), strict=True):
            with measure.busy_processes(num_busy):
                # Deliver what was made while nothing else was busy.
                measure.take(microbatches, min(shard_size // 4, 2 * PREFETCHED))
                before = Usage.now(children)
                measure.take(microbatches, count)
                used = measure.used_between(before, Usage.now(children), count)
            measured |= {f"{load}_{name}": value for name, value in used.items()}
    return measured


def _await_worker(loader: Any) -> None:
    """Wait until a worker makes microbatches, which the caller of ours does before; torch's first one is a worker's."""
    statistics = getattr(loader, "statistics", None)
    while statistics is not None and statistics().produced == statistics().produced_by_caller:
        time.sleep(0.01)


def run(settings: Settings) -> list[Table]:
    rates: list[list[str]] = []
    costs: list[list[str]] = []
    for workload in settings.wanted_workloads(_SIZES):
        variants = {
            name: {"contestant": name, "workload": workload, "shard_size": settings.count(size, at_least=8)}
            for name, size in zip(("ours", "torch"), _SIZES[workload], strict=True)
        }
        both = [medians(done) for done in measure.in_turn(settings, "shared", variants).values()]
        rates.append([workload])
        costs.append([workload])
        for load in _LOADS:
            own, other = (number(f"{load}_per_s") for number in both)
            target = f"{_PER_S_TARGETS[workload]}" if load == "idle" else ""
            rates[-1] += [f"{own:,.0f}", f"{other:,.0f}", f"{own / other:.1f}", target]
            own, other = (number(f"{load}_cpu_us") for number in both)
            ratio = f"{other / own:.1f}"
            costs[-1] += [*(_cost(number, load) for number in both), ratio, f"{_CPU_TARGETS[workload]}"]
    title = f"A DataLoader a shard, one worker, {PREFETCHED} ahead, idle and beside {_num_cores()} busy processes"
    headers = ["microbatch", *(f"{load}: {name}" for load in _LOADS for name in ("ours", "torch", "ratio", "target"))]
    return [
        Table(f"{title}: microbatches/s", headers, rates),
        Table(f"{title}: CPU µs a microbatch (trainer + worker)", headers, costs),
    ]


def _cost(number: Callable[[str], float], load: str) -> str:
    trainer, worker = (number(f"{load}_{who}_cpu_us") for who in ("trainer", "worker"))
    return f"{number(f'{load}_cpu_us'):,.0f} ({trainer:,.0f} + {worker:,.0f})"


def _opened(contestant: str, workload: str, shard_size: int) -> AbstractContextManager[Iterable[Any]]:
    if contestant == "torch":
        return torchs(ShardSamples(workload, _NUM_OPENED * shard_size))
    shards = [f"shard {number}" for number in range(_NUM_OPENED)]
    options = {"num_shard_prefetches": 1, "num_microbatch_prefetches": PREFETCHED}
    return ours(partial(shard_loader, workload, shard_size), shards, **options)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))
