"""Write the index of a synthetic dataset, so that a run can be simulated before the data exist."""

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
