"""Measure how fast ours, MosaicML's streaming and litdata read shards, in turn, in the trainer's process and by a worker.

It is `formats` without the resume, and with a worker.
"""

import tempfile

from format_contestants import PEERS, WORKLOADS
from measure import Settings, Table, cells, medians, of_contestants

_COUNT = 40_000
_CONTESTANTS = ("ours, MDS", "ours, Parquet", "mosaicml-streaming, MDS", "litdata, its own")
_WORKERS = {0: "in the trainer's process", 1: "through one worker"}


def run(settings: Settings) -> list[Table]:
    """Read both kinds of samples, with and without a worker."""
    contestants = settings.wanted_contestants(_CONTESTANTS, PEERS) or _CONTESTANTS[:2]
    count = settings.count(_COUNT, at_least=2000)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_") as folder:
        for workload in WORKLOADS:
            for num_workers, where in _WORKERS.items():
                arguments = {"folder": folder, "workload": workload, "count": count, "num_workers": num_workers}
                found = of_contestants(settings, "formats", contestants, peers=PEERS, **arguments, is_resumed=False)
                ours_per_s = medians(next(iter(found.values())))("samples_per_s")
                for name, done in found.items():
                    ratio = f"{ours_per_s / medians(done)('samples_per_s'):.1f}"
                    work = f"{workload}, {where}"
                    rows.append([work, name, *cells(done, samples_per_s=",.0f"), ratio, *cells(done, first_ms=".0f")])
    headers = ["work", "library", "samples/s", "the first / it", "first batch, ms"]
    return [Table(f"{count:,} samples, shuffled, batches of 32", headers, rows)]
