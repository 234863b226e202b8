"""Measure how fast ours, MosaicML's streaming and litdata read shards, in turn."""

import tempfile
from pathlib import Path
from typing import Any

from measure import Result, Settings, Table, in_turn, medians
from streaming_contestants import OURS_PARQUET

_COUNT = 40_000
_PEERS = ("mosaicml-streaming", "litdata")
_WORKERS = {0: "in the trainer's process", 1: "through one worker"}


def run(settings: Settings) -> Result:
    """Read both kinds of samples, with and without a worker."""
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
    return Result([Table(f"{_COUNT:,} samples, shuffled, batches of 32", headers, rows)], trials)


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


def _pythons(settings: Settings) -> dict[str, Path]:
    return dict.fromkeys(_PEERS, settings.peers) if settings.peers else {}
