"""Measure how fast a cold cache fills: ours and MosaicML's streaming in turn, over S3, from a slow store on loopback."""

import tempfile
from typing import Any

from measure import Result, Settings, Table, in_turn, medians

_COUNT = 40_000
_PEER = "mosaicml-streaming"
#: Bytes a second for all connections together, and seconds before each response.
_STORES = {"100 MB/s": (100e6, 0.0), "100 MB/s, 50 ms": (100e6, 0.05), "20 MB/s": (20e6, 0.0)}


def run(settings: Settings) -> Result:
    """Read two epochs from each store, the first with an empty cache."""
    contestants = settings.wanted_contestants(["ours", *([_PEER] if settings.peers else [])]) or ["ours"]
    rows: list[list[str]] = []
    trials: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_") as folder:
        for store, (bytes_per_s, latency_s) in _STORES.items():
            arguments = {
                "folder": folder,
                "count": settings.count(_COUNT, at_least=4000),
                "bytes_per_s": bytes_per_s,
                "latency_s": latency_s,
            }
            variants = {name: ("remote_trial", arguments | {"contestant": name}) for name in contestants}
            pythons = {_PEER: settings.peers} if settings.peers else {}
            found = in_turn(settings, variants, pythons=pythons)
            for name, done in found.items():
                middle = medians(done)
                ratio = middle("cold_s") / middle("transfer_s")
                rows.append(
                    [
                        store,
                        name,
                        f"{1000 * middle('first_s'):.0f}",
                        f"{middle('cold_s'):.2f}",
                        f"{ratio:.2f}",
                        f"{middle('warm_samples_per_s'):,.0f}",
                    ]
                )
            trials += [trial for done in found.values() for trial in done]
    headers = ["store", "library", "first batch, ms", "cold epoch, s", "relative to the transfer", "warm, samples/s"]
    return Result([Table(f"{_COUNT:,} samples in shards of 4 MiB, shuffled (py1e), no workers", headers, rows)], trials)
