"""Merging: one index for all datasets below a directory."""

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeAlias, cast, overload

from fkat_data.errors import ConfigurationError, ShardNotFoundError, arguments
from fkat_data.files.index import INDEX_NAME, parse_index
from fkat_data.storage.location import is_url, replacing
from fkat_data.streaming.writing.destination import local_and_remote
from fkat_data.streaming.writing.directories import RemoteDirectory


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that compares numbers in names as numbers: ``2`` before ``10``."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts if part]


IndexLocation: TypeAlias = str | Path | tuple[str, str]
"""A local directory, a URL, or (local directory, URL or directory)."""

_FILE_KEYS = ("raw_data", "zip_data", "raw_meta", "zip_meta")


@overload
def merge_index(
    out: IndexLocation,
    /,
    *,
    keep_local: bool = True,
    natural_order: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> int: ...
@overload
def merge_index(
    index_urls: Sequence[IndexLocation],
    out: IndexLocation,
    /,
    *,
    keep_local: bool = True,
    natural_order: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> int: ...
def merge_index(
    *locations: Any,
    keep_local: bool = True,
    natural_order: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Write one index for the datasets below a directory, which makes them one dataset.

    ``merge_index(out)`` merges every ``index.json`` in the subdirectories of ``out``, at any depth, and replaces the
    one in ``out`` itself. ``merge_index(index_urls, out)`` merges the given ones, in their order.

    Read and check every index first. The new one appears atomically.

    Args:
        locations: ``out``, or ``index_urls`` and ``out``. ``out`` is a local directory, a URL, or (local directory,
            URL or directory) to write the index to both. ``index_urls`` is a list of directories below ``out``, or of
            the indices in them. Each is a path, a URL, or (path, URL), whose path is preferred if it exists.
        keep_local: Whether to write the index to the local directory too, if ``out`` also has a remote one.
        natural_order: Whether ``merge_index(out)`` sorts numbers as numbers, ``2/`` before ``10/``. Otherwise it sorts
            names as text.
        storage_options: The options of fsspec's file system for the URL.

    Returns:
        Number of samples in the merged dataset.

    Raises:
        ConfigurationError: No index was found, or one is not below ``out``.
        ShardNotFoundError: A given index does not exist.
        ShardCorruptError: An index is invalid. The message names it.
        OSError: The file system failed. This is its error.
    """
    if not 1 <= len(locations) <= 2:
        raise ConfigurationError("locations", locations, "out, or index_urls and out")
    arguments.boolean("keep_local", keep_local)
    out = _Root.of("out", locations[-1], storage_options)
    names = out.named(locations[0]) if len(locations) == 2 else out.found(natural_order=natural_order)
    if not names:
        argument = "out" if len(locations) == 1 else "index_urls"
        raise ConfigurationError(argument, locations[0], "at least one index.json")
    shards: list[dict[str, Any]] = []
    for name in names:
        shards += _rebased(out.read(name), f"{out.shown}/{name}", PurePosixPath(name).parent)
    out.write(json.dumps({"version": 2, "shards": shards}).encode(), keep_local=keep_local)
    return sum(shard["samples"] for shard in shards)


class _Root(NamedTuple):
    """The directory of the merged dataset, with a local side, a remote one, or both."""

    local: str | None
    url: str | None
    remote: RemoteDirectory | None

    @classmethod
    def of(cls, argument: str, location: Any, storage_options: Mapping[str, Any] | None) -> "_Root":
        local, url = local_and_remote(argument, location)
        remote = None if url is None else RemoteDirectory(url, argument, storage_options)
        return cls(local and _absolute(local), url, remote)

    @property
    def shown(self) -> str:
        """The directory without secrets, for messages."""
        return self.local or (self.remote.shown if self.remote is not None else "")

    def found(self, *, natural_order: bool) -> list[str]:
        """Return the paths of all indices in subdirectories, relative to this directory."""
        names: list[str] = []
        if self.local is not None:
            paths = Path(self.local).rglob(INDEX_NAME)
            names = [path.relative_to(self.local).as_posix() for path in paths]
        if self.remote is not None and not names:
            names = self.remote.found(INDEX_NAME)
        return sorted((name for name in names if name != INDEX_NAME), key=natural_key if natural_order else None)

    def named(self, index_urls: Any) -> list[str]:
        """Return the paths of the given indices, relative to this directory, without duplicates."""
        if isinstance(index_urls, (str, Path)) or not isinstance(index_urls, Sequence):
            raise ConfigurationError("index_urls", index_urls, "a list of paths or URLs")
        items = cast("Sequence[Any]", index_urls)
        return list(dict.fromkeys(self._relative(f"index_urls[{number}]", item) for number, item in enumerate(items)))

    def _relative(self, argument: str, item: Any) -> str:
        for side, root in zip(local_and_remote(argument, item), (self.local, self.url), strict=True):
            if side is None or root is None:
                continue
            path, root_path = _absolute(side.rstrip("/").removesuffix(f"/{INDEX_NAME}")), _absolute(root)
            if path.startswith(f"{root_path}/"):
                return f"{path[len(root_path) + 1 :]}/{INDEX_NAME}"
        expected = f"a directory below out = {self.shown!r} (a path below a path, a URL below a URL)"
        raise ConfigurationError(argument, item, expected)

    def read(self, name: str) -> bytes:
        if self.local is not None and (self.remote is None or Path(self.local, name).exists()):
            try:
                return Path(self.local, name).read_bytes()
            except FileNotFoundError as error:
                raise ShardNotFoundError(str(Path(self.local, name)), "no such file") from error
        if self.remote is None:
            raise TypeError("out needs a local directory or a URL")
        try:
            return self.remote.read(name)
        except FileNotFoundError as error:
            raise ShardNotFoundError(f"{self.shown}/{name}", "no such file") from error

    def write(self, index: bytes, *, keep_local: bool) -> None:
        if self.remote is not None:
            with tempfile.NamedTemporaryFile() as file:
                file.write(index)
                file.flush()
                self.remote.upload(file.name, INDEX_NAME)
        if self.local is not None and (keep_local or self.remote is None):
            with replacing(Path(self.local, INDEX_NAME)) as temporary:
                temporary.write_bytes(index)


def _rebased(index: bytes, file: str, directory: PurePosixPath) -> list[dict[str, Any]]:
    """Return the shards of an index with paths relative to the merged dataset's directory."""
    parse_index(index, file)
    shards: list[dict[str, Any]] = json.loads(index)["shards"]
    for shard in shards:
        for key in _FILE_KEYS:
            if shard.get(key):
                shard[key]["basename"] = (directory / shard[key]["basename"]).as_posix()
    return shards


def _absolute(location: str) -> str:
    return location.rstrip("/") if is_url(location) else str(Path(location).resolve())
