"""The command that says what the nodes of a streaming run will fetch."""

import json
import math
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fkat_data.errors import ConfigurationError, arguments
from fkat_data.errors.arguments import size_bytes_of
from fkat_data.errors.wording import readable_bytes
from fkat_data.files.index import INDEX_NAME
from fkat_data.tools.console import exit_on_failure, long_work, say, terminal
from fkat_data.tools.hydra_config import Config, Key, Nodes, Overrides, Ranks, streaming_dataset
from fkat_data.tools.simulate import Simulation, simulate_dataset

simulate_app: typer.Typer = typer.Typer()


@simulate_app.command("simulate")
def simulate_command(
    config: Config,
    overrides: Overrides = None,
    nodes: Nodes = 1,
    ranks_per_node: Ranks = 1,
    cache_limit: Annotated[
        str | None, typer.Option(help="Limit of a node's shard cache; none: unlimited. [default: the dataset's]")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Number of epochs.", min=1)] = 1,
    shards: Annotated[int | None, typer.Option(help="Invent a dataset of this many shards.", min=1)] = None,
    samples_per_shard: Annotated[int, typer.Option(help="Samples in an invented shard.", min=1)] = 4096,
    shard_bytes: Annotated[str, typer.Option(help="Size of an invented shard.")] = "64mb",
    compressed_bytes: Annotated[str | None, typer.Option(help="Compressed size of an invented shard.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    key: Key = None,
) -> None:
    """Say what the nodes of a streaming run will fetch.

    It reads only the dataset's index.

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
        dataset = streaming_dataset(config, overrides or [], key, nodes, ranks_per_node, **replaced)
        result = simulate_dataset(
            dataset,
            num_nodes=nodes,
            ranks_per_node=ranks_per_node,
            num_epochs=epochs,
            cache_limit_bytes=_limit(cache_limit),
        )
    if as_json:
        say(console, json.dumps(result.as_dict()))
    else:
        _show(console, result)


def _show(console: Console, result: Simulation) -> None:
    table = Table(
        *("epoch", "steps", "fetched by all nodes", "by one node, at most"),
        *("shards read by one node, at most", "on its disk", "fetched again"),
    )
    for epoch, (num_steps, nodes) in enumerate(zip(result.num_steps, result.epochs, strict=True)):
        fetched = [node.fetched_bytes for node in nodes]
        table.add_row(
            f"{epoch}",
            f"{num_steps:,}",
            *(readable_bytes(sum(fetched)), readable_bytes(max(fetched))),
            f"{max(node.num_shards for node in nodes):,}",
            readable_bytes(max(node.shard_bytes for node in nodes)),
            f"{sum(node.num_fetched_again for node in nodes):,}",
        )
    console.print(table)


def _limit(given: str | None) -> float | None:
    return None if given is None else math.inf if given == "none" else size_bytes_of("--cache-limit", given)


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
    columns = {"column_names": ["data"], "column_encodings": ["bytes"], "column_sizes": [None]}
    shard: dict[str, Any] = {"format": "mds", "version": 2, "samples": samples_per_shard, **columns}
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
