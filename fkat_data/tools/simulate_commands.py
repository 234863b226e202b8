"""The command that simulates a streaming run without data."""

import json
import math
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fkat_data import arguments
from fkat_data.arguments import count_of, size_bytes_of
from fkat_data.errors import ConfigurationError
from fkat_data.files.index import INDEX_NAME
from fkat_data.streaming.dataset import StreamingDataset
from fkat_data.tools.console import exit_on_failure, long_work, say, terminal
from fkat_data.tools.hydra_config import Config, Key, Nodes, Overrides, Ranks, streaming_dataset
from fkat_data.tools.play import Simulation
from fkat_data.tools.simulate import simulate_dataset
from fkat_data.wording import readable_bytes, readable_duration

_NUM_PIECES = 8
_BAR_WIDTH = 40

simulate_app: typer.Typer = typer.Typer()


@simulate_app.command("simulate")
def simulate_command(
    config: Config,
    step_time: Annotated[float, typer.Option(help="Seconds of a step, without waiting for data.", min=0)],
    bandwidth: Annotated[str, typer.Option(help="Bytes a second that a node receives, such as 1gb; inf: unlimited.")],
    overrides: Overrides = None,
    nodes: Nodes = 1,
    ranks_per_node: Ranks = 1,
    workers: Annotated[int | None, typer.Option(help="Workers of each rank. [default: the loader's, or 0]")] = None,
    worker_start: Annotated[float, typer.Option(help="Seconds to start the workers, in each epoch.", min=0)] = 0.0,
    latency: Annotated[float, typer.Option(help="Seconds from a request to its first byte.", min=0)] = 0.05,
    connection_bandwidth: Annotated[str, typer.Option(help="Bytes a second of one transfer, at most.")] = "inf",
    store_bandwidth: Annotated[str, typer.Option(help="Bytes a second to all nodes together, at most.")] = "inf",
    decompression: Annotated[str, typer.Option(help="Bytes a second that a thread decompresses.")] = "500mb",
    predownload: Annotated[str | None, typer.Option(help="Samples fetched ahead. [default: the dataset's]")] = None,
    cache_limit: Annotated[
        str | None, typer.Option(help="Limit of a node's shard cache; none: unlimited. [default: the dataset's]")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps.", min=1)] = None,
    epochs: Annotated[int | None, typer.Option(help="Number of epochs. [default: 1]", min=1)] = None,
    shards: Annotated[int | None, typer.Option(help="Simulate a synthetic dataset of this many shards.", min=1)] = None,
    samples_per_shard: Annotated[int, typer.Option(help="Samples in a synthetic shard.", min=1)] = 4096,
    shard_bytes: Annotated[str, typer.Option(help="Size of a synthetic shard.")] = "64mb",
    compressed_bytes: Annotated[str | None, typer.Option(help="Compressed size of a synthetic shard.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    key: Key = None,
) -> None:
    """Simulate a streaming run without data.

    It shows what the run waits for, fetches and caches. It reads only the dataset's index.

    Exit code 0: simulated. 2: the configuration does not work.
    """
    console = terminal()
    with (
        exit_on_failure(console, "nothing was simulated"),
        long_work(console, "simulating"),
        tempfile.TemporaryDirectory() as directory,
    ):
        replaced: dict[str, Any] = {}
        if shards is not None:
            write_synthetic_shards(Path(directory), shards, samples_per_shard, shard_bytes, compressed_bytes)
            replaced = {"local": directory, "remote": None, "streams": None, "stream_config": None}
        made, dataset = streaming_dataset(config, overrides or [], key, nodes, ranks_per_node, **replaced)
        numbers: dict[str, Any] = {"cache_limit_bytes": _limit(dataset, cache_limit)}
        if predownload is not None:
            numbers["predownload"] = count_of("--predownload", predownload)
        numbers |= {
            "ranks_per_node": ranks_per_node,
            "workers_per_rank": int(getattr(made, "num_workers", 0)) if workers is None else workers,
            "worker_start_s": worker_start,
            "step_s": step_time,
            "bandwidth_bytes_per_s": _rate("--bandwidth", bandwidth),
            "connection_bytes_per_s": _rate("--connection-bandwidth", connection_bandwidth),
            "store_bytes_per_s": _rate("--store-bandwidth", store_bandwidth),
            "decompress_bytes_per_s": _rate("--decompression", decompression),
            "latency_s": latency,
        }
        result = simulate_dataset(dataset, num_nodes=nodes, num_steps=steps, num_epochs=epochs, **numbers)
    if as_json:
        say(console, json.dumps(result.as_dict(), allow_nan=False))
        return
    table = Table("", "", show_header=False, title=f"{result.num_steps:,} steps, simulated")
    for name, value in _numbers(result):
        table.add_row(name, value)
    console.print(table)
    show_waits(console, result)


def show_waits(console: Console, result: Simulation) -> None:
    """Draw how much of its time a run waits, over its steps."""
    table = Table("steps", "waited", "share", "", title="waiting over time")
    num_pieces = min(_NUM_PIECES, result.num_steps)
    for first, stop in pairwise(result.num_steps * piece // num_pieces for piece in range(num_pieces + 1)):
        waited_s = float(result.wait_s[first:stop].sum())
        total_s = waited_s + (stop - first) * result.setup.step_s
        share = waited_s / total_s if total_s else 0.0
        bar = "█" * round(_BAR_WIDTH * share)
        table.add_row(f"{first:,} to {stop:,}", readable_duration(waited_s), f"{share:.1%}", bar)
    console.print(table)


def _numbers(result: Simulation) -> list[tuple[str, str]]:
    nodes = result.nodes
    return [
        ("nodes", f"{len(nodes):,}"),
        ("steps", f"{result.num_steps:,}"),
        ("time spent waiting", f"{result.waited_share:.1%}"),
        ("waiting, excluding first steps", f"{result.later_share:.1%}"),
        ("total time", readable_duration(result.duration_s)),
        ("waited", readable_duration(result.waited_s)),
        ("time to the first batch", readable_duration(result.first_batch_s)),
        ("steps that waited", f"{result.num_waits:,}"),
        ("epochs started", f"{result.num_epochs:,}"),
        ("fetched by one node, at most", readable_bytes(max(node.fetched_bytes for node in nodes))),
        ("fetched by all nodes", readable_bytes(sum(node.fetched_bytes for node in nodes))),
        ("shards used", f"{result.num_shards:,}"),
        ("repeated fetches in an epoch", f"{sum(node.num_fetched_again for node in nodes):,}"),
        ("evictions", f"{sum(node.num_evictions for node in nodes):,}"),
        ("on one node's disk, at most", readable_bytes(max(node.most_bytes for node in nodes))),
        ("used by one node, at most", readable_bytes(result.whole_bytes)),
    ]


def _limit(dataset: StreamingDataset, given: str | None) -> int | None:
    if given is None:
        return dataset.cache_limit
    return None if given == "none" else size_bytes_of("--cache-limit", given)


def _rate(option: str, given: str) -> float:
    return math.inf if given == "inf" else float(size_bytes_of(option, given))


def write_synthetic_shards(
    directory: Path, num_shards: int, samples_per_shard: int, shard_bytes: str, compressed_bytes: str | None
) -> None:
    """Write an index of equal shards, without the shards.

    Args:
        directory: The folder that gets the index.
        num_shards: Number of shards.
        samples_per_shard: Samples in each shard.
        shard_bytes: Size of each shard, such as ``"64mb"``.
        compressed_bytes: Compressed size of each shard; None: uncompressed.

    Raises:
        ConfigurationError: A number or size is invalid, or a shard is too small for its samples.
    """
    arguments.integer("--shards", num_shards, minimum=1)
    arguments.integer("--samples-per-shard", samples_per_shard, minimum=1)
    size_bytes = size_bytes_of("--shard-bytes", shard_bytes)
    # An MDS shard has a header, and an offset of 4 bytes for each sample.
    least_bytes = 4 * (samples_per_shard + 2) + 1000
    if size_bytes < least_bytes:
        expected = f"at least {least_bytes} bytes for {samples_per_shard} samples"
        raise ConfigurationError("--shard-bytes", shard_bytes, expected)
    shard: dict[str, Any] = {
        "column_encodings": ["bytes"],
        "column_names": ["data"],
        "column_sizes": [None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "samples": samples_per_shard,
        "size_limit": size_bytes,
        "version": 2,
        "zip_data": None,
    }
    shards: list[dict[str, Any]] = []
    zip_bytes = None if compressed_bytes is None else size_bytes_of("--compressed-bytes", compressed_bytes)
    for number in range(num_shards):
        name = f"shard.{number:05d}.mds"
        files: dict[str, Any] = {"raw_data": _file(name, size_bytes)}
        if zip_bytes is not None:
            files |= {"compression": "zstd", "zip_data": _file(f"{name}.zstd", zip_bytes)}
        shards.append(shard | files)
    (directory / INDEX_NAME).write_text(json.dumps({"shards": shards, "version": 2}), encoding="utf-8")


def _file(basename: str, size_bytes: int) -> dict[str, Any]:
    return {"basename": basename, "bytes": size_bytes, "hashes": {}}
