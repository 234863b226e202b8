"""Measure how fast ours, MosaicML's streaming and litdata read shards and plan an epoch, in turn."""

import tempfile
from pathlib import Path
from typing import Any

from measure import Result, Settings, Table, in_turn, medians
from streaming_contestants import OURS_PARQUET

_COUNT = 40_000
_PEERS = ("mosaicml-streaming", "litdata")
_WORKERS = {0: "in the trainer's process", 1: "through one worker"}

#: What to plan: contestant, algorithm, samples, share of the epoch before the resume, rank of 64.
_PLANS: dict[str, tuple[str, str, int, float, int]] = {
    "block, 10^8 samples": ("ours", "block", 10**8, 0.0, 63),
    "block, 10^8, resumed at 90 %": ("ours", "block", 10**8, 0.9, 63),
    "block, 10^9 samples": ("ours", "block", 10**9, 0.0, 63),
    "py1e, 10^8 samples": ("ours", "py1e", 10**8, 0.0, 63),
    "py1e, 10^8 samples: mosaicml-streaming": ("mosaicml-streaming", "py1e", 10**8, 0.0, 63),
}


def run(settings: Settings) -> Result:
    """Read both kinds of samples, with and without a worker, then plan epochs."""
    contestants = ["ours", OURS_PARQUET, *(_PEERS if settings.peers else ())]
    contestants = settings.wanted_contestants(contestants) or contestants
    trials: list[dict[str, Any]] = []
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_") as folder:
        for workload in ("tokens", "text"):
            for num_workers, where in _WORKERS.items():
                found = _read(settings, folder, workload, num_workers, contestants)
                rates = {name: medians(done)("samples_per_s") for name, done in found.items()}
                ours = rates.get("ours", 0.0)
                for name, rate in rates.items():
                    ratio = "" if name == "ours" else f"{ours / rate:.1f}"
                    first = f"{1000 * medians(found[name])('first_s'):.0f}"
                    rows.append([f"{workload}, {where}", name, f"{rate:,.0f}", ratio, first])
                trials += [trial for done in found.values() for trial in done]
    headers = ["work", "library", "samples/s", "ours / library", "first batch, ms"]
    tables = [Table(f"{_COUNT:,} samples, shuffled, batches of 32", headers, rows)]
    planned, plans = _planned(settings)
    return Result([*tables, planned], [*trials, *plans])


def _read(
    settings: Settings, folder: str, workload: str, num_workers: int, contestants: list[str]
) -> dict[str, list[dict[str, Any]]]:
    variants = {
        name: (
            "streaming_trial",
            {
                "folder": folder,
                "workload": workload,
                "count": settings.count(_COUNT, at_least=2000),
                "contestant": name,
                "num_workers": num_workers,
            },
        )
        for name in contestants
    }
    return in_turn(settings, variants, pythons=_pythons(settings))


def _planned(settings: Settings) -> tuple[Table, list[dict[str, Any]]]:
    variants: dict[str, tuple[str, dict[str, Any]]] = {}
    pythons: dict[str, Path] = {}
    for name, (contestant, algorithm, count, resumed_at, rank) in _PLANS.items():
        if contestant in _PEERS and (settings.peers is None or not settings.wanted_contestants([contestant])):
            continue
        arguments = {"contestant": contestant, "algorithm": algorithm, "resumed_at": resumed_at, "rank": rank}
        variants[name] = ("plan_trial", arguments | {"count": settings.count(count, at_least=100_000)})
        if contestant in _PEERS and settings.peers:
            pythons[name] = settings.peers
    found = in_turn(settings, variants, pythons=pythons)
    rows = [
        [name, f"{medians(done)('wall_s'):.3f}", f"{medians(done)('memory_mib'):,.0f}"] for name, done in found.items()
    ]
    table = Table("An epoch planned in shards of 4,096, to a rank's first batch", ["order", "seconds", "MiB"], rows)
    return table, [trial for done in found.values() for trial in done]


def _pythons(settings: Settings) -> dict[str, Path]:
    return dict.fromkeys(_PEERS, settings.peers) if settings.peers else {}
