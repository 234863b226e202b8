"""The sources of a stream's shards: the interface between reading and the storage of the files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.streaming.cache.cache_budget import CacheBudget
from fkat_data.streaming.cache.cache_directory import make_safe
from fkat_data.streaming.formats.compression import decompress_file
from fkat_data.streaming.formats.entry import FileInfo, ShardEntry
from fkat_data.streaming.formats.hashing import validate_file
from fkat_data.streaming.formats.index import INDEX_NAME, read_index
from fkat_data.streaming.formats.mapping import MapRegister
from fkat_data.streaming.reading.cached_source import CachedSource, Evictable
from fkat_data.streaming.reading.file_pattern import FilePattern
from fkat_data.streaming.reading.generated_index import GeneratedIndex, kept_path
from fkat_data.streaming.reading.stream import Stream, own_directory
from fkat_data.streaming.store.open_store import open_store

__all__ = ["DirectorySource", "ShardSource", "sources_of"]


class ShardSource(Protocol):
    """The source of a stream's shards. It pickles, and many threads and processes may use it at a time.

    Attributes:
        is_immediate: Whether shards need no fetching; known once the index was read.
        directory: The directory of the index, and of the raw files of uncompressed shards.
        map_register: Records which files are mapped; None if no file is evicted.
    """

    is_immediate: bool
    directory: Path
    map_register: MapRegister | None

    def read_index(self) -> list[ShardEntry]:
        """Return what the index says about the shards, in its order."""
        ...

    def fetch(self, entry: ShardEntry, *, wait: bool = True) -> Path | None:
        """Fetch a shard's raw files unless they are there; return the directory of their basenames.

        Args:
            entry: The shard.
            wait: Whether to wait while another process fetches the shard; if not, None is returned instead.
        """
        ...

    def touch(self, entry: ShardEntry) -> None:
        """Mark a shard as used now."""
        ...

    def is_there(self, entry: ShardEntry) -> bool:
        """Return whether a shard that was fetched has not been evicted."""
        ...

    def evict(self, entry: ShardEntry) -> int:
        """Remove a shard's files if they can be fetched again; return their size in bytes."""
        ...


def sources_of(streams: Sequence[Stream]) -> tuple[list[ShardSource], CacheBudget | None]:
    """Return the source of each stream's shards, and the budget of those cached on this node; None if none are.

    Raises:
        ConfigurationError: A URL cannot be opened, or a directory cannot be a cache.
        OSError: A directory cannot be made.
    """
    remotes: dict[Path, str] = {}
    for stream in streams:
        directory = stream.cache_directory
        origin = f"{stream.remote_location} {stream.file_pattern}"
        if directory is not None and remotes.setdefault(directory, origin) != origin:
            raise ConfigurationError(
                "local", str(directory), "another directory for each remote: their files would overwrite each other"
            )
        if directory is not None and stream.local_directory is None:
            # Below the shared temporary directory, the owner of the folder in between could replace this one.
            make_safe(directory.parent)
    kept = list(remotes)
    evictable = Evictable()
    budget = CacheBudget(kept, None, evictable) if kept else None
    sources: list[ShardSource] = []
    for stream in streams:
        directory = stream.cache_directory
        if directory is None or budget is None:
            sources.append(_in_place(stream))
            continue
        store = open_store(
            stream.remote_location,
            storage_options=stream.storage_options,
            num_retries=stream.download_retry or 0,
            timeout_s=stream.download_timeout or 0,
        )
        sources.append(
            CachedSource(
                store,
                directory,
                budget,
                evictable,
                validate_hash=stream.validate_hash,
                keep_zip=bool(stream.keep_zip),
                pattern=stream.file_pattern,
                columns=stream.columns,
            )
        )
    return sources, budget


def _in_place(stream: Stream) -> "DirectorySource":
    directory = stream.local_directory or stream.remote_directory
    if directory is None:
        raise ConfigurationError("local", stream.local, "a directory, if there is no remote")
    # A directory that is read in place may be shared, and is not written to.
    decompressed = directory if stream.local_directory is not None else own_directory(str(directory.absolute()))
    pattern = stream.file_pattern or FilePattern("")
    generated = GeneratedIndex(
        open_store(directory, storage_options=None, num_retries=0, timeout_s=stream.download_timeout or 60),
        pattern,
        stream.columns,
        kept_path(f"{directory.absolute()}/{pattern.text}"),
    )
    is_listed = stream.file_pattern is not None
    return DirectorySource(directory, decompressed, stream.validate_hash, generated, is_listed=is_listed)


class DirectorySource:
    """Shards in a directory of this machine, read in place. Nothing is deleted.

    A shard that is compressed is decompressed under another name, then renamed. So any number of processes may do this
    side by side.

    Args:
        directory: The directory.
        decompressed: Where compressed shards are decompressed.
        validate_hash: The hash of the index that files are compared with; None: their sizes alone.
        generated: Makes the index of files that have none.
        is_listed: Whether the files are listed even if there is an index.

    Attributes:
        is_immediate: Whether no shard is compressed; known once the index was read.
        directory: The directory.
        map_register: None.
    """

    def __init__(
        self,
        directory: Path,
        decompressed: Path,
        validate_hash: str | None,
        generated: GeneratedIndex,
        *,
        is_listed: bool,
    ) -> None:
        self.is_immediate = True
        self.directory = directory
        self.map_register: MapRegister | None = None
        self._decompressed = decompressed
        self._validate_hash = validate_hash
        self._generated = generated
        self._is_listed = is_listed
        self._validated: set[str] = set()

    def read_index(self) -> list[ShardEntry]:
        """Return what the index says about the shards, in its order.

        Raises:
            ShardNotFoundError: The directory has no index, and no files that need none.
            ShardCorruptError: The index or such a file is malformed.
            ConfigurationError: Such files have several formats, or no chosen column.
        """
        path = self.directory / INDEX_NAME
        if self._is_listed or not path.exists():
            try:
                return self._generated.read().entries(is_in_place=True)
            except ShardNotFoundError:
                if self._is_listed:
                    raise
        entries = read_index(path)
        self.is_immediate = not any(entry.compression for entry in entries)
        return entries

    def fetch(self, entry: ShardEntry, *, wait: bool = True) -> Path:
        """Decompress a shard's files if needed; return the directory of the raw ones.

        Raises:
            ConfigurationError: The index lacks the hash to compare files with.
            ShardNotFoundError: A file is missing.
            ShardCorruptError: A file's size or hash differs from what the index says.
            OSError: A file cannot be read or written.
        """
        del wait
        directory = self.directory if entry.compression is None else self._decompressed
        for raw, compressed in entry.files:
            path = directory / raw.basename
            if compressed is None or _is_whole(path, raw):
                self._validate(path, raw)
                continue
            source = self.directory / compressed.basename
            validate_file(source, compressed, self._validate_hash)
            if directory != self.directory:
                make_safe(directory.parent)
                make_safe(directory)
            path.parent.mkdir(parents=True, exist_ok=True)
            decompress_file(str(entry.compression), source, path, raw)
        return directory

    def touch(self, entry: ShardEntry) -> None:
        """Do nothing: nothing is evicted here."""

    def is_there(self, entry: ShardEntry) -> bool:
        """Return True."""
        del entry
        return True

    def evict(self, entry: ShardEntry) -> int:
        """Return 0 and remove nothing: these files may be the only copy."""
        del entry
        return 0

    def _validate(self, path: Path, info: FileInfo) -> None:
        # Once in a process. Each opening compares the size.
        if self._validate_hash is not None and info.basename not in self._validated:
            validate_file(path, info, self._validate_hash)
            self._validated.add(info.basename)


def _is_whole(path: Path, info: FileInfo) -> bool:
    try:
        validate_file(path, info)
    except (ShardNotFoundError, ShardCorruptError):
        return False
    return True
