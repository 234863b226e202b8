"""Sizes of shards: passed by the caller, read from a cache file, or counted in parallel."""

import json
import os
from collections.abc import Callable, Mapping, Sized
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from fkat_data.arguments import integer
from fkat_data.background import in_parallel
from fkat_data.errors import ConfigurationError
from fkat_data.interruption import genuine

_CACHE_VERSION = 1


def size_of(shard_key: str, shard: object) -> int:
    """Return a shard's number of samples.

    Raises:
        ConfigurationError: The shard is not a map-style dataset.
    """
    if not isinstance(shard, Sized) or not hasattr(shard, "__getitem__"):
        raise ConfigurationError(
            "dataset_type", shard, f"a dataset with __len__() and __getitem__(index) for shard {shard_key!r}"
        )
    return len(shard)


def checked_sizes(shard_keys: list[str], shard_sizes: object) -> dict[str, int]:
    """Return the given sizes after checking them.

    Raises:
        ConfigurationError: ``shard_sizes`` is not a mapping with exactly the shards' keys, or a size is negative or not
            an integer.
    """
    if not isinstance(shard_sizes, Mapping):
        raise ConfigurationError("shard_sizes", shard_sizes, "a mapping from shard keys to numbers of samples")
    sizes = cast("Mapping[str, Any]", shard_sizes)
    if set(sizes) != set(shard_keys):
        unmatched = sorted(map(str, set(sizes) ^ set(shard_keys)))
        raise ConfigurationError("shard_sizes", unmatched, "the keys of shard_params; these are in only one of the two")
    return {key: integer(f"shard_sizes[{key!r}]", sizes[key], minimum=0) for key in shard_keys}


def cached_sizes(
    shard_keys: list[str],
    load_shard: Callable[[str], object],
    path: str | os.PathLike[str] | None,
    num_threads: int,
) -> dict[str, int]:
    """Return the shards' sizes. Those missing in the file at ``path`` are counted and added to it.

    Args:
        shard_keys: Keys of the shards.
        load_shard: Opens a shard by key.
        path: JSON file for the sizes, which several ranks may share; None: store nothing.
        num_threads: Number of shards to open at a time.

    Raises:
        ConfigurationError: The file is not one that this function wrote, or a shard has no length.
        Exception: Any exception of ``load_shard``.
    """

    def count(key: str) -> int:
        return size_of(key, load_shard(key))

    file = None if path is None else Path(path).expanduser()
    known = {} if file is None else _read(file)
    unknown = [key for key in shard_keys if key not in known]
    if unknown:
        known |= zip(unknown, in_parallel(count, unknown, num_threads), strict=True)
        if file is not None:
            _write(file, known)
    return {key: known[key] for key in shard_keys}


def _read(path: Path) -> dict[str, int]:
    try:
        content = json.loads(path.read_bytes())
    except genuine(FileNotFoundError):
        return {}
    except genuine(ValueError) as error:
        raise ConfigurationError("sizes_cache", str(path), f"a JSON file of shard sizes: {error}") from error
    if not isinstance(content, dict) or cast("dict[str, Any]", content).get("version") != _CACHE_VERSION:
        raise ConfigurationError("sizes_cache", str(path), f"a file of shard sizes with version {_CACHE_VERSION}")
    sizes = cast("dict[str, Any]", content).get("sizes")
    if not isinstance(sizes, dict):
        raise ConfigurationError("sizes_cache", str(path), "a file of shard sizes with a mapping `sizes`")
    entries = cast("dict[str, Any]", sizes)
    return {key: integer(f"sizes_cache[{key!r}]", size, minimum=0) for key, size in entries.items()}


def _write(path: Path, sizes: dict[str, int]) -> None:
    # Renamed into place, so that a reader sees the whole file or none.
    partial = path.with_name(f".{path.name}.{uuid4().hex}.partial")
    partial.write_text(json.dumps({"version": _CACHE_VERSION, "sizes": sizes}, indent=1, sort_keys=True), "utf-8")
    partial.replace(path)
