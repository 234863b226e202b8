"""Measure how production scales with the number of workers: ours and torch's ``DataLoader``, in turn.

- ``waiting``: 32 items that wait 2 ms each, at most 16 microbatches ahead. Peers with threads take part.
- ``tar``, ``mds``: 32 JPEGs, decoded, cropped and resized to (3, 224, 224), from shards of 512, each library's default
  look-ahead. What cores there are bound them.
- ``slow``: 32 items that wait 0.5 ms each, in every 20th microbatch 20 times as long, each library's default look-ahead.

torch starts its workers as it does by default, by forking the trainer. CPU seconds and memory (PSS) are of all processes
together. The rate is that of the microbatches after the start.
"""

import importlib
import itertools
import tempfile
import time
from typing import Any

import measure
from batchers import BATCHER_PEERS, BATCHERS, imported
from items import BATCH_SIZE, SHARD_SIZE, Source, make_jpegs
from measure import Result, Settings, Table, medians
from process_tree import ProcessTree

KINDS = ("waiting", "tar", "mds", "slow")
WORKERS = (1, 2, 4, 8, 16)
_TITLES = {
    "waiting": "Items that wait 2 ms, 16 microbatches ahead",
    "tar": "JPEGs from tars",
    "mds": "JPEGs from MDS shards",
    "slow": "Every 20th microbatch 20 times as slow, default look-ahead",
}
_WAITS_S = {"waiting": 0.002, "slow": 0.0005, "tar": 0.0, "mds": 0.0}
_AHEAD = {"waiting": 16}
#: Microbatches that are measured, by the number of workers.
_COUNTS = {
    "waiting": {1: 32, 2: 60, 4: 120, 8: 240, 16: 480},
    "tar": {1: 32, 2: 60, 4: 60, 8: 60, 16: 60},
    "mds": {1: 32, 2: 60, 4: 60, 8: 60, 16: 60},
    # Whole rounds of 20.
    "slow": {1: 60, 2: 80, 4: 160, 8: 200, 16: 240},
}
#: Whole rounds of 20, and larger than the look-ahead, where one of 20 microbatches is slow.
_SHARD_SIZES = {"waiting": 40 * BATCH_SIZE, "tar": SHARD_SIZE, "mds": SHARD_SIZE, "slow": 400 * BATCH_SIZE}
_NUM_SHARDS = 4
#: Against the number of workers: what is compared, and how large it has to be.
_TARGETS = {"waiting": {8: "6.5 times one, torch's 8"}, "slow": {8: "2 times torch's"}}


def trial(contestant: str, kind: str, workers: int, count: int, folder: str, shard_size: int) -> dict[str, Any]:
    imported(contestant)
    if kind == "mds":
        importlib.import_module("fkat_data.streaming")
    ahead = _AHEAD.get(kind)
    # Begin when each worker has made microbatches; end while microbatches are left to make.
    num_first = 2 + 2 * workers
    num_shards = -(-(1 + num_first + count + 32) * BATCH_SIZE // shard_size)
    source = Source(kind, folder, shard_size, num_shards, _WAITS_S[kind])
    with ProcessTree() as tree:
        opened_cpu_s, opened_s = tree.cpu_s(), time.perf_counter()
        with BATCHERS[contestant](source, workers, ahead) as epoch:
            microbatches = iter(epoch())
            next(microbatches)
            first_s, first_cpu_s = time.perf_counter() - opened_s, tree.cpu_s() - opened_cpu_s
            _take(microbatches, num_first)
            began_cpu_s, began_s = tree.cpu_s(), time.perf_counter()
            _take(microbatches, count)
            wall_s, cpu_s = time.perf_counter() - began_s, tree.cpu_s() - began_cpu_s
            peak_mb = tree.peak_mb()
    return {
        "wall_s": wall_s,
        "per_s": count / wall_s,
        "cpu_ms": 1e3 * cpu_s / count,
        "first_s": first_s,
        "first_cpu_s": first_cpu_s,
        "peak_mb": peak_mb,
    }


def run(settings: Settings) -> Result:
    tables: list[Table] = []
    trials: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_") as folder:
        for kind in settings.wanted_workloads(KINDS):
            shard_size = _SHARD_SIZES[kind] if settings.scale >= 0.1 else 2 * BATCH_SIZE
            if kind in {"tar", "mds"}:
                make_jpegs(folder, kind, shard_size, _NUM_SHARDS)
            names = ["ours", "torch", *(BATCHER_PEERS if kind == "waiting" and settings.peers else ())]
            contestants = settings.wanted_contestants(names)
            found = {
                workers: _measured(settings, contestants, kind, workers, folder, shard_size)
                for workers in settings.workers or WORKERS
            }
            tables.append(_table(kind, contestants, found))
            trials += [trial for each in found.values() for some in each.values() for trial in some]
    return Result(tables, trials)


def _measured(
    settings: Settings, contestants: list[str], kind: str, workers: int, folder: str, shard_size: int
) -> dict[str, list[dict[str, Any]]]:
    nearest = min(WORKERS, key=lambda number: abs(number - workers))
    count = settings.count(_COUNTS[kind][nearest])
    arguments = {"kind": kind, "workers": workers, "count": count, "folder": folder, "shard_size": shard_size}
    variants = {name: ("scaling", {"contestant": name, **arguments}) for name in contestants}
    return measure.in_turn(settings, variants, pythons=settings.pythons(BATCHER_PEERS))


def _table(kind: str, contestants: list[str], found: dict[int, dict[str, list[dict[str, Any]]]]) -> Table:
    fewest = min(found)
    rows: list[list[str]] = []
    for workers, name in itertools.product(found, contestants):
        middle, one = medians(found[workers][name]), medians(found[fewest][name])
        ours = medians(found[workers]["ours"]) if "ours" in found[workers] else None
        rows.append(
            [
                f"{workers}",
                name,
                f"{middle('per_s'):,.1f}",
                f"{middle('per_s') / one('per_s'):.1f}",
                f"{ours('per_s') / middle('per_s'):.1f}" if ours and name != "ours" else "",
                _TARGETS.get(kind, {}).get(workers, "") if name == "ours" else "",
                f"{middle('cpu_ms'):,.1f}",
                f"{middle('peak_mb'):,.0f}",
                f"{middle('first_s'):.2f}",
                f"{middle('first_cpu_s'):.2f}",
            ]
        )
    headers = [
        "workers (threads)",
        "library",
        "microbatches/s",
        f"times its {fewest}",
        "ours / it",
        "target (at least)",
        "CPU ms each",
        "peak MB (PSS)",
        "first, s",
        "CPU s until then",
    ]
    return Table(_TITLES[kind], headers, rows)


def _take(microbatches: Any, count: int) -> None:
    for _ in itertools.islice(microbatches, count):
        pass
