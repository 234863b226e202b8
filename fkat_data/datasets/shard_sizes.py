"""How many samples each shard has: as given, as remembered in a file, or counted once, several at a time."""

import json
import os
from collections.abc import Callable, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from fkat_data.arguments import integer
from fkat_data.errors import ConfigurationError

__all__ = ["cached_sizes", "checked_sizes", "size_of"]

_CACHE_VERSION = 1


def size_of(shard_key: str, shard: object) -> int:
    """Return a shard's number of samples.

    Raises:
        ConfigurationError: It has no length.
    """
    if not isinstance(shard, Sized) or not hasattr(shard, "__getitem__"):
        raise ConfigurationError(
            "dataset_type", shard, f"a dataset with a length and items by index: that of shard {shard_key!r} is none"
        )
    return len(shard)


def checked_sizes(shard_keys: list[str], shard_sizes: object) -> dict[str, int]:
    """Return given sizes, once it is clear that they are those of the shards.

    Raises:
        ConfigurationError: They are no mapping, a shard has none, or one is no integer of at least 0.
    """
    if not isinstance(shard_sizes, Mapping):
        raise ConfigurationError("shard_sizes", shard_sizes, "a mapping from shard keys to numbers of samples")
    sizes = cast("Mapping[str, Any]", shard_sizes)
    if set(sizes) != set(shard_keys):
        odd = sorted(map(str, set(sizes) ^ set(shard_keys)))
        raise ConfigurationError("shard_sizes", odd, "the keys of shard_params; these are in one of the two only")
    return {key: integer(f"shard_sizes[{key!r}]", sizes[key], minimum=0) for key in shard_keys}


def cached_sizes(
    shard_keys: list[str],
    load_shard: Callable[[str], object],
    path: str | os.PathLike[str] | None,
    num_threads: int,
) -> dict[str, int]:
    """Return the shards' sizes; those that the file at ``path`` does not know are counted, and added to it.

    Args:
        shard_keys: The shards.
        load_shard: Opens a shard.
        path: A JSON file, of these shards alone; None: nothing is remembered. Several ranks may use one.
        num_threads: Shards that are opened at a time.

    Raises:
        ConfigurationError: The file is there and no such file, or a shard has no length.
        Exception: Whatever opening a shard raises.
    """

    def count(key: str) -> int:
        return size_of(key, load_shard(key))

    known = {} if path is None else _read(Path(path))
    unknown = [key for key in shard_keys if key not in known]
    if unknown:
        with ThreadPoolExecutor(num_threads, "fkat_data count") as threads:
            known |= zip(unknown, threads.map(count, unknown), strict=True)
        if path is not None:
            _write(Path(path), known)
    return {key: known[key] for key in shard_keys}


def _read(path: Path) -> dict[str, int]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigurationError("sizes_cache", str(path), f"a file that this class wrote: {error}") from error
    if not isinstance(content, dict) or cast("dict[str, Any]", content).get("version") != _CACHE_VERSION:
        raise ConfigurationError("sizes_cache", str(path), f"a file of version {_CACHE_VERSION} that this class wrote")
    sizes = cast("dict[str, Any]", content).get("sizes")
    if not isinstance(sizes, dict):
        raise ConfigurationError("sizes_cache", str(path), "a file with sizes")
    entries = cast("dict[str, Any]", sizes)
    return {key: integer(f"sizes_cache[{key!r}]", size, minimum=0) for key, size in entries.items()}


def _write(path: Path, sizes: dict[str, int]) -> None:
    # Renamed into place: a reader sees the whole file or none.
    partial = path.with_name(f".{path.name}.{uuid4().hex}.partial")
    partial.write_text(json.dumps({"version": _CACHE_VERSION, "sizes": sizes}, indent=1, sort_keys=True), "utf-8")
    partial.replace(path)
