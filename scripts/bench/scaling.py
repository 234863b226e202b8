"""Measure how production scales with the number of workers: ours and torch's ``DataLoader``, in turn.

Ours are measured in threads, too, beside peers that have them.

- ``waiting``: 32 items that wait 2 ms each, at most 16 microbatches ahead.
- ``tar``: 32 JPEGs, decoded, cropped and resized to (3, 224, 224), from shards of 512, each library's default look-ahead.
  What cores there are bound them.
- ``slow``: 32 items that wait 0.5 ms each, in every 20th microbatch 20 times as long, each library's default look-ahead.

torch starts its workers as it does by default, by forking the trainer. CPU seconds and memory (PSS) are of all processes
together. The rate is that of the microbatches after the start.
"""

import tempfile
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import measure
from batchers import BATCHER_PEERS, BATCHERS, imported
from items import BATCH_SIZE, SHARD_SIZE, Source, make_jpegs
from measure import Settings, Table, Trials, cells, medians
from process_tree import ProcessTree

WORKERS = (1, 2, 4, 8, 16)
_NUM_SHARDS = 4


class _Kind(NamedTuple):
    """A kind of items.

    Attributes:
        title: What the table says.
        counts: Microbatches that are measured, by the number of workers.
        shard_size: Where one of 20 microbatches is slow, whole rounds of 20, and larger than the look-ahead.
        wait_s: How long an item waits.
        ahead: Microbatches ahead; None: the library's default.
        targets: By the number of workers: what is compared, and how large it has to be.
    """

    title: str
    counts: tuple[int, int, int, int, int]
    shard_size: int
    wait_s: float = 0.0
    ahead: int | None = None
    targets: Mapping[int, str] = {}


KINDS = {
    "waiting": _Kind(
        "Items that wait 2 ms, 16 microbatches ahead",
        (32, 60, 120, 240, 480),
        40 * BATCH_SIZE,
        wait_s=0.002,
        ahead=16,
        targets={8: "6.5 times one, torch's 8"},
    ),
    "tar": _Kind("JPEGs from tars", (32, 60, 60, 60, 60), SHARD_SIZE),
    "slow": _Kind(
        "Every 20th microbatch 20 times as slow, default look-ahead",
        (60, 80, 160, 200, 240),
        400 * BATCH_SIZE,
        wait_s=0.0005,
        targets={8: "2 times torch's"},
    ),
    "far": _Kind("Items that wait 10 ms, 16 microbatches ahead", (12, 20, 40, 80, 160), 40 * BATCH_SIZE, 0.01, 16),
    "ready": _Kind(
        "Items that are ready, 16 microbatches ahead", (500, 500, 500, 500, 500), 200 * BATCH_SIZE, ahead=16
    ),
}


def trial(contestant: str, kind: str, workers: int, count: int, folder: str, shard_size: int) -> dict[str, Any]:
    imported(contestant)
    # Begin when each worker has made microbatches; end while microbatches are left to make.
    num_first = 2 + 2 * workers
    num_shards = -(-(1 + num_first + count + 32) * BATCH_SIZE // shard_size)
    source = Source(kind, folder, shard_size, num_shards, KINDS[kind].wait_s)
    with ProcessTree() as tree:
        opened_cpu_s, opened_s = tree.cpu_s(), time.perf_counter()
        with BATCHERS[contestant](source, workers, KINDS[kind].ahead) as epoch:
            microbatches = iter(epoch())
            next(microbatches)
            first_s, first_cpu_s = time.perf_counter() - opened_s, tree.cpu_s() - opened_cpu_s
            measure.take(microbatches, num_first)
            began_cpu_s, began_s = tree.cpu_s(), time.perf_counter()
            measure.take(microbatches, count)
            wall_s, cpu_s = time.perf_counter() - began_s, tree.cpu_s() - began_cpu_s
            peak_mb = tree.peak_mb()
            del microbatches  # until then, Ray Data goes on, also where its cluster is gone
    return {
        "wall_s": wall_s,
        "per_s": count / wall_s,
        "cpu_ms": 1e3 * cpu_s / count,
        "first_s": first_s,
        "first_cpu_s": first_cpu_s,
        "peak_mb": peak_mb,
    }


def run(settings: Settings) -> list[Table]:
    names = ["ours", "ours, threads", "torch", *BATCHER_PEERS]
    return tables(settings, ("waiting", "tar", "slow"), names, BATCHER_PEERS, WORKERS)


def tables(
    settings: Settings, kinds: Iterable[str], contestants: list[str], peers: Iterable[str], numbers: tuple[int, ...]
) -> list[Table]:
    tables: list[Table] = []
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_") as folder:
        for kind in settings.wanted_workloads(kinds):
            shard_size = KINDS[kind].shard_size if settings.scale >= 0.1 else 2 * BATCH_SIZE
            if kind == "tar":
                make_jpegs(folder, kind, shard_size, _NUM_SHARDS)
            left_out = peers if kind == "slow" else ()
            names = settings.wanted_contestants([name for name in contestants if name not in left_out], peers)
            found: dict[int, dict[str, Trials]] = {}
            for workers in settings.workers or numbers:
                nearest = min(range(len(WORKERS)), key=lambda place: abs(WORKERS[place] - workers))
                count = settings.count(KINDS[kind].counts[nearest])
                arguments = {"kind": kind, "workers": workers, "count": count, "folder": folder}
                arguments["shard_size"] = shard_size
                found[workers] = measure.of_contestants(settings, "scaling", names, peers=peers, **arguments)
            tables.append(_table(KINDS[kind], found))
    return tables


def _table(kind: _Kind, found: dict[int, dict[str, Trials]]) -> Table:
    fewest = min(found)
    rows: list[list[str]] = []
    for workers, by_name in found.items():
        rates = {name: medians(done)("per_s") for name, done in by_name.items()}
        for name, done in by_name.items():
            times = f"{rates[name] / medians(found[fewest][name])('per_s'):.1f}"
            ratio = f"{rates['ours'] / rates[name]:.1f}" if "ours" in rates and name != "ours" else ""
            target = kind.targets.get(workers, "") if name == "ours" else ""
            costs = cells(done, cpu_ms=",.1f", peak_mb=",.0f", first_s=".2f", first_cpu_s=".2f")
            rows.append([f"{workers}", name, f"{rates[name]:,.1f}", times, ratio, target, *costs])
    headers = ["workers (threads)", "library", "microbatches/s", f"times its {fewest}", "ours / it"]
    headers += ["target (at least)", "CPU ms each", "peak MB (PSS)", "first, s", "CPU s until then"]
    return Table(kind.title, headers, rows)
