"""One index for datasets that were written below one directory."""

import json
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeAlias, cast, overload

from fkat_data import arguments
from fkat_data.errors import ConfigurationError, ShardNotFoundError
from fkat_data.streaming.formats.index import INDEX_NAME, parse_index
from fkat_data.streaming.writing.destination import places_of
from fkat_data.streaming.writing.natural_order import natural_key
from fkat_data.streaming.writing.remote_directory import RemoteDirectory, is_remote

__all__ = ["IndexLocation", "merge_index"]

IndexLocation: TypeAlias = str | Path | tuple[str, str]
"""A local directory, a URL, or (local directory, URL or directory)."""

_FILE_KEYS = ("raw_data", "zip_data", "raw_meta", "zip_meta")


@overload
def merge_index(out: IndexLocation, /, *, keep_local: bool = True, natural_order: bool = True) -> int: ...
@overload
def merge_index(
    index_urls: Sequence[IndexLocation], out: IndexLocation, /, *, keep_local: bool = True, natural_order: bool = True
) -> int: ...
def merge_index(*places: Any, keep_local: bool = True, natural_order: bool = True) -> int:
    """Write one index for the datasets below a directory, which are then one dataset.

    ``merge_index(out)`` takes every ``index.json`` below ``out``, however deep, and not the one in ``out`` itself,
    which is replaced. ``merge_index(index_urls, out)`` takes these, in the order in which they are given.

    Every index is read and checked first; the new one appears at once, or not at all.

    Args:
        places: ``out``, or ``index_urls`` and ``out``. ``out`` is a local directory, a URL, or (local directory, URL or
            directory): then the index is written to both. ``index_urls`` are directories below ``out``, or the indices
            in them, as paths, as URLs, or as (path, URL) of which the path is taken if it is there.
        keep_local: Whether the index stays in the local directory if it is written to a remote one, too.
        natural_order: Whether ``merge_index(out)`` takes ``2/`` before ``10/``; otherwise after it, as text is sorted.

    Returns:
        Number of samples of the whole.

    Raises:
        ConfigurationError: There is no index, or one is not below ``out``.
        ShardNotFoundError: One that is named does not exist.
        ShardCorruptError: One makes no sense; the message names it.
        OSError: The file system's error, as it is.
    """
    if not 1 <= len(places) <= 2:
        raise ConfigurationError("places", places, "out, or index_urls and out")
    arguments.boolean("keep_local", keep_local)
    out = _Root.of("out", places[-1])
    names = out.named(places[0]) if len(places) == 2 else out.found(natural_order=natural_order)
    if not names:
        raise ConfigurationError("out" if len(places) == 1 else "index_urls", places[0], "at least one index.json")
    shards: list[dict[str, Any]] = []
    for name in names:
        shards += _moved(out.read(name), f"{out.local or out.url}/{name}", PurePosixPath(name).parent)
    out.write(json.dumps({"version": 2, "shards": shards}).encode(), keep_local=keep_local)
    return sum(shard["samples"] for shard in shards)


class _Root(NamedTuple):
    """The directory of the whole, with a local side, a remote one, or both."""

    local: str | None
    url: str | None
    remote: RemoteDirectory | None

    @classmethod
    def of(cls, argument: str, place: Any) -> "_Root":
        local, url = places_of(argument, place)
        return cls(local and _absolute(local), url, None if url is None else RemoteDirectory(url, argument))

    def found(self, *, natural_order: bool) -> list[str]:
        """Return the indices below, relative to it."""
        names: list[str] = []
        if self.local is not None:
            paths = Path(self.local).rglob(INDEX_NAME)
            names = [path.relative_to(self.local).as_posix() for path in paths]
        if self.remote is not None and not names:
            names = self.remote.found(INDEX_NAME)
        return sorted((name for name in names if name != INDEX_NAME), key=natural_key if natural_order else None)

    def named(self, index_urls: Any) -> list[str]:
        """Return indices that are given, relative to it, each once."""
        if isinstance(index_urls, (str, Path)) or not isinstance(index_urls, Sequence):
            raise ConfigurationError("index_urls", index_urls, "a list of paths or URLs")
        items = cast("Sequence[Any]", index_urls)
        return list(dict.fromkeys(self._relative(f"index_urls[{number}]", item) for number, item in enumerate(items)))

    def _relative(self, argument: str, item: Any) -> str:
        for place, root in zip(places_of(argument, item), (self.local, self.url), strict=True):
            if place is None or root is None:
                continue
            path, root_path = _absolute(place.rstrip("/").removesuffix(f"/{INDEX_NAME}")), _absolute(root)
            if path.startswith(f"{root_path}/"):
                return f"{path[len(root_path) + 1 :]}/{INDEX_NAME}"
        expected = f"a directory below out = {self.local or self.url!r}, on the same side of it"
        raise ConfigurationError(argument, item, expected)

    def read(self, name: str) -> bytes:
        if self.local is not None and (self.remote is None or Path(self.local, name).exists()):
            try:
                return Path(self.local, name).read_bytes()
            except FileNotFoundError as error:
                raise ShardNotFoundError(str(Path(self.local, name)), "no such file") from error
        if self.remote is None:
            raise TypeError("a root has a local side or a remote one")
        try:
            return self.remote.read(name)
        except FileNotFoundError as error:
            raise ShardNotFoundError(f"{self.url}/{name}", "no such file") from error

    def write(self, index: bytes, *, keep_local: bool) -> None:
        if self.remote is not None:
            with tempfile.NamedTemporaryFile() as file:
                file.write(index)
                file.flush()
                self.remote.upload(file.name, INDEX_NAME)
        if self.local is not None and (keep_local or self.remote is None):
            temporary = Path(self.local, f"{INDEX_NAME}.{secrets.token_hex(8)}.tmp")
            try:
                temporary.write_bytes(index)
                temporary.replace(Path(self.local, INDEX_NAME))
            finally:
                temporary.unlink(missing_ok=True)


def _moved(index: bytes, file: str, directory: PurePosixPath) -> list[dict[str, Any]]:
    """Return the shards of an index as seen from the directory of the whole."""
    parse_index(index, file)
    shards: list[dict[str, Any]] = json.loads(index)["shards"]
    for shard in shards:
        for key in _FILE_KEYS:
            if shard.get(key):
                shard[key]["basename"] = (directory / shard[key]["basename"]).as_posix()
    return shards


def _absolute(place: str) -> str:
    return place.rstrip("/") if is_remote(place) else str(Path(place).resolve())
