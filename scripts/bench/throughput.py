"""Measure how many microbatches a second one worker delivers, and at what cost: ours, torch's and the peers' loaders.

The clock runs from the end of the first microbatch to the end of the last. start.py measures the start.
"""

from typing import Any

import measure
from contestants import CONTESTANTS, PEERS
from measure import Settings, Table, Usage, cells, medians

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
        measure.take(microbatches, count)
        return {**measure.used_between(before, Usage.now(), count), **measure.memory()}


def run(settings: Settings) -> list[Table]:
    """Run ours, torch's and, if their environment is there, the peers', in turn."""
    names = ["ours", "torch", *settings.wanted_contestants(PEERS, PEERS)]
    rows: list[list[str]] = []
    for workload in settings.wanted_workloads(_COUNTS):
        counts = {name: settings.count(_COUNTS[workload][name != "ours"]) for name in names}
        variants = {name: {"contestant": name, "workload": workload, "count": counts[name]} for name in names}
        found = measure.in_turn(settings, "throughput", variants, peers=PEERS)
        for name, done in found.items():
            ratio = medians(found["ours"])("per_s") / medians(done)("per_s")
            costs = cells(done, trainer_cpu_us=",.0f", worker_cpu_us=",.0f", pss_mib=",.0f", peak_rss_mib=",.0f")
            rows.append([workload, name, *cells(done, per_s=",.0f"), f"{ratio:.1f}", *costs])
    headers = ["microbatch", "library", "per s", "ours to it", "trainer CPU µs", "worker CPU µs"]
    headers += ["memory, MiB (PSS of both)", "peak, MiB (RSS of both)"]
    return [Table("One worker, a generator of microbatches", headers, rows)]
