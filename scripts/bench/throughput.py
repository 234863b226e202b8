"""Measure how many microbatches a second one worker delivers, and at what cost: ours, torch's and the peers' loaders.

The clock runs from the end of the first microbatch to the end of the last. start.py measures the start.
"""

from collections.abc import Callable
from typing import Any

import measure
from contestants import CONTESTANTS, PEERS
from measure import Result, Settings, Table, Usage, medians

# The number of microbatches: for ours, which takes a second or more, then for the other contestants.
_COUNTS = {
    "tiny": (60_000, 2_000),
    "tokens": (30_000, 2_000),
    "images": (500, 100),
    "same images": (1_000, 300),
}


def trial(contestant: str, workload: str, count: int) -> dict[str, Any]:
    with CONTESTANTS[contestant](workload) as loader:
        microbatches = iter(loader)
        next(microbatches)
        before = Usage.now()
        for _ in range(count):
            next(microbatches)
        after = Usage.now()
        return {**measure.used_between(before, after, count), **measure.memory()}


def run(settings: Settings) -> Result:
    """Run ours, torch's and, if their environment is there, the peers', in turn."""
    names = ["ours", "torch", *(settings.wanted_contestants(PEERS) if settings.peers else ())]
    rows: list[list[str]] = []
    trials: list[dict[str, Any]] = []
    for workload in settings.wanted_workloads(_COUNTS):
        counts = {name: settings.count(_COUNTS[workload][name != "ours"]) for name in names}
        variants = {
            name: ("throughput", {"contestant": name, "workload": workload, "count": counts[name]}) for name in names
        }
        found = measure.in_turn(settings, variants, pythons=settings.pythons(PEERS))
        trials += [trial for each in found.values() for trial in each]
        ours_per_s = medians(found["ours"])("per_s")
        rows += [_row(workload, name, medians(each), ours_per_s) for name, each in found.items()]
    headers = ["microbatch", "library", "per s", "ours to it", "trainer CPU µs", "worker CPU µs"]
    headers += ["memory, MiB (PSS of both)", "peak, MiB (RSS of both)"]
    return Result([Table("One worker, a generator of microbatches", headers, rows)], trials)


def _row(workload: str, name: str, number: Callable[[str], float], ours_per_s: float) -> list[str]:
    peak_mib = number("trainer_peak_rss_mib") + number("worker_peak_rss_mib")
    return [
        workload,
        name,
        f"{number('per_s'):,.0f}",
        f"{ours_per_s / number('per_s'):.1f}",
        f"{number('trainer_cpu_us'):,.0f}",
        f"{number('worker_cpu_us'):,.0f}",
        f"{number('pss_mib'):,.0f}",
        f"{peak_mib:,.0f}",
    ]
