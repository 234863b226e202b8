"""Measure how fast a cold cache fills: ours and MosaicML's streaming in turn, over S3, from a slow store on loopback.

A trial is a cold epoch, starting with the construction of the dataset, and a warm one.
"""

import importlib
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from format_contestants import BATCH_SIZE, write_mds
from measure import Settings, Table, cells, of_contestants
from stand_ins import imported
from store_server import served

_COUNT = 40_000
_PEER = "mosaicml-streaming"
#: Bytes a second for all connections together, and seconds before each response.
_STORES = {"100 MB/s": (100e6, 0.0), "100 MB/s, 50 ms": (100e6, 0.05), "20 MB/s": (20e6, 0.0)}
_SHARD_BYTES = 4 << 20


def trial(folder: str, count: int, contestant: str, bytes_per_s: float, latency_s: float) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    data = Path(folder, f"remote-{count}")
    if not data.is_dir():
        write_mds(data, "tokens", count, size_limit=_SHARD_BYTES)
    with served(data, bytes_per_s, latency_s) as port, tempfile.TemporaryDirectory(dir=folder) as local:
        os.environ |= {
            "S3_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "anyone",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        modules = _library(contestant)
        began_s = time.perf_counter()
        loader = _loader(modules, contestant, f"{local}/cache")
        cold = _epoch(loader, count, began_s)
        warm = _epoch(loader, count, time.perf_counter())
    size_bytes = sum(path.stat().st_size for path in data.glob("shard.*"))
    relative = cold[1] * bytes_per_s / size_bytes
    return {"first_ms": 1e3 * cold[0], "cold_s": cold[1], "relative": relative, "samples_per_s": count / warm[1]}


def _library(contestant: str) -> Any:
    if contestant == "ours":
        importlib.import_module("s3fs")
        return importlib.import_module("fkat_data.streaming")
    importlib.import_module("boto3")
    library = imported("streaming", " over S3")
    library.base.util.clean_stale_shared_memory()
    return library


def _loader(library: Any, contestant: str, local: str) -> Any:
    # The same order, so that both read the same shards in the same sequence.
    options = {"remote": "s3://bucket", "local": local, "shuffle": True, "shuffle_algo": "py1e"}
    if contestant == "ours":
        options["validate_hash"] = None
    # Four shards.
    dataset = library.StreamingDataset(batch_size=BATCH_SIZE, shuffle_block_size=4 * (_SHARD_BYTES // 2056), **options)
    return library.StreamingDataLoader(dataset, batch_size=BATCH_SIZE)


def _epoch(loader: Any, count: int, began_s: float) -> tuple[float, float]:
    batches = iter(loader)
    num_samples = len(next(batches)["tokens"])
    first_s = time.perf_counter() - began_s
    num_samples += sum(len(batch["tokens"]) for batch in batches)
    if num_samples < count:
        raise RuntimeError(f"{num_samples} of {count} samples")
    return first_s, time.perf_counter() - began_s


def run(settings: Settings) -> list[Table]:
    """Read two epochs from each store, the first with an empty cache."""
    contestants = settings.wanted_contestants(["ours", _PEER], [_PEER]) or ["ours"]
    count = settings.count(_COUNT, at_least=4000)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_") as folder:
        for store, (bytes_per_s, latency_s) in _STORES.items():
            arguments = {"folder": folder, "count": count, "bytes_per_s": bytes_per_s, "latency_s": latency_s}
            found = of_contestants(settings, "remote", contestants, peers=[_PEER], **arguments)
            for name, done in found.items():
                numbers = cells(done, first_ms=".0f", cold_s=".2f", relative=".2f", samples_per_s=",.0f")
                rows.append([store, name, *numbers])
    headers = ["store", "library", "first batch, ms", "cold epoch, s", "relative to the transfer", "warm, samples/s"]
    return [Table(f"{count:,} samples in shards of 4 MiB, shuffled (py1e), no workers", headers, rows)]
