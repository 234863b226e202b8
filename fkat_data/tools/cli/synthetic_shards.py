"""A dataset that there is not: an index of shards of one size, for a simulation."""

import json
from pathlib import Path
from typing import Any

from fkat_data import arguments
from fkat_data.errors import ConfigurationError
from fkat_data.sizes import size_bytes_of
from fkat_data.streaming.formats.index import INDEX_NAME

__all__ = ["write_synthetic_shards"]


def write_synthetic_shards(
    directory: Path, num_shards: int, samples_per_shard: int, shard_bytes: str, compressed_bytes: str | None
) -> None:
    """Write the index of shards that do not exist.

    Args:
        directory: Where.
        num_shards: How many.
        samples_per_shard: Samples of each.
        shard_bytes: Size of each, as people write it.
        compressed_bytes: What a shard is compressed to; None: it is not.

    Raises:
        ConfigurationError: A size is none, or too small for so many samples.
    """
    arguments.integer("--shards", num_shards, minimum=1)
    arguments.integer("--samples-per-shard", samples_per_shard, minimum=1)
    size_bytes = size_bytes_of("--shard-bytes", shard_bytes)
    # An MDS shard has an offset of 4 bytes for each sample, and a header.
    least_bytes = 4 * (samples_per_shard + 2) + 1000
    if size_bytes < least_bytes:
        raise ConfigurationError("--shard-bytes", shard_bytes, f"room for the samples: at least {least_bytes} bytes")
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
