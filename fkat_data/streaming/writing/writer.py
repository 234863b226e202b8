"""The base of all writers: group samples into shards, write their files, and write the index last."""

import json
import logging
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self, cast

from fkat_data import arguments
from fkat_data.arguments import size_bytes_of
from fkat_data.errors import ConfigurationError, SampleError
from fkat_data.files.stored import HASHES, checked_compression, compress, extension_of, hash_of
from fkat_data.machine import required
from fkat_data.streaming.writing.destination import Destination
from fkat_data.wording import Described, place_of

DEFAULT_SIZE_LIMIT = 1 << 26

_logger = logging.getLogger(__name__)

_VERSION = 2
# Offsets in a shard are 32 bits wide. Reserve 1 MiB for the header.
_MAX_SHARD_BYTES = (1 << 32) - (1 << 20)


class ShardFile(NamedTuple):
    """A file of a shard to write.

    Attributes:
        part: ``data`` or ``meta``. The keys in the index are this with the prefixes ``raw_`` and ``zip_``.
        suffix: Suffix of the file's name, after the format's.
        content: Uncompressed content.
    """

    part: str
    suffix: str
    content: bytes


class ShardWriter(Described, ABC):
    """Base of all writers: a context manager that writes one dataset.

    On exit, it writes the index as the last file. On an exception, it writes no index and removes its local files, so
    that a partial dataset never looks complete.

    A writer keeps samples in memory until their shard is full. Only one thread at a time may use it.

    Args:
        columns: Encoding by column name.
        out: A local directory, a URL of any file system that fsspec supports, or (local directory, URL or directory).
        keep_local: Whether to keep local files after their upload.
        compression: ``br``, ``bz2``, ``gz``, ``snappy`` or ``zstd``, or all but snappy with a level, such as ``zstd:7``;
            None or empty for no compression.
        hashes: Hash algorithms for the files, from ``HASHES``.
        size_limit: Maximum size of a shard in bytes, as a number or a string such as ``"64mb"``; None or 0 for 4 GiB,
            the format's limit. A larger sample gets its own shard.
        progress_bar: Whether to show how many samples and shards are written.
        max_workers: Number of upload threads; None for the standard library's default.
        retry: Maximum number of attempts to upload a file, at least 1.
        exist_ok: Whether to replace an existing dataset. Its files are removed; other files stay. An ``index.json`` that
            is not a dataset's is refused.
        storage_options: The options of fsspec's file system for the URL, as for reading.

    Raises:
        ConfigurationError: An argument is invalid, the URL's bucket does not exist, or another writer is writing there.
        FileExistsError: ``out`` already has content, and ``exist_ok`` is false; or it has an ``index.json`` of another
            program.
        OSError: A directory cannot be made, or an old file cannot be removed. Some file systems raise errors of their
            own.
    """

    format: ClassVar[str]
    #: Bytes that a shard needs for each sample in addition to the encoded sample.
    sample_overhead_bytes: ClassVar[int] = 0

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        out: str | Path | tuple[str, str],
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = DEFAULT_SIZE_LIMIT,
        progress_bar: bool = False,
        max_workers: int | None = None,
        retry: int = 2,
        exist_ok: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.columns: dict[str, str] = _sorted_columns(columns)
        self.compression: str | None = checked_compression(compression) if compression else None
        self.hashes: list[str] = _sorted_hashes(hashes)
        self.size_limit: int | None = _size_limit(size_limit)
        self.num_samples: int = 0
        _check_installed(self.compression, self.hashes)
        described = {
            "version": _VERSION,
            "format": self.format,
            "compression": self.compression,
            "hashes": self.hashes,
            "size_limit": self.size_limit,
            **self._described(),
        }
        # The order in which files have these keys.
        self._config = dict(sorted(described.items()))
        self._shards: list[dict[str, Any]] = []
        self._samples: list[bytes] = []
        self._base_bytes = self._empty_shard_bytes()
        self._shard_bytes = self._base_bytes
        self._is_open = True
        arguments.boolean("keep_local", keep_local)
        self._progress = Progress(is_shown=arguments.boolean("progress_bar", progress_bar))
        self._destination = Destination(
            out,
            keep_local=keep_local,
            max_workers=None if max_workers is None else arguments.integer("max_workers", max_workers, minimum=1),
            num_attempts=arguments.integer("retry", retry, minimum=1),
            exist_ok=arguments.boolean("exist_ok", exist_ok),
            storage_options=storage_options,
        )
        # Runs at the program's end, too, before the modules that it needs are gone.
        self._if_dropped = weakref.finalize(self, _abandon_dropped, self._destination, os.getpid())

    def _repr_facts(self) -> Iterable[tuple[str, object]]:
        return [
            ("out", place_of(self._destination.shown)),
            ("samples", self.num_samples),
            ("shards", len(self._shards)),
            ("is_finished", not self._is_open),
            ("columns", ", ".join(self.columns)),
        ]

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add a sample. Ignore keys that are not columns.

        Raises:
            SampleError: A column is missing, or its value cannot be encoded. The message names the column.
            ValueError: The writer is finished.
            OSError: A file cannot be written, or an upload failed. Some file systems raise errors of their own.
        """
        self._check_open()
        self._destination.raise_failure()
        if not isinstance(sample, Mapping):
            raise SampleError("<all>", sample, "a dict from column to value")
        for name in self.columns:
            if name not in sample:
                raise SampleError(name, "<missing>", "a value")
        encoded = self._encoded(sample)
        added_bytes = len(encoded) + self.sample_overhead_bytes
        limit = self.size_limit or _MAX_SHARD_BYTES
        if self._samples and limit < self._shard_bytes + added_bytes:
            self._write_shard()
        if self._base_bytes + added_bytes > _MAX_SHARD_BYTES:
            raise SampleError("<all>", f"<{len(encoded)} bytes>", f"at most {_MAX_SHARD_BYTES} bytes")
        self._samples.append(encoded)
        self._shard_bytes += added_bytes
        self.num_samples += 1
        self._progress.advance(self.num_samples, len(self._shards))

    def finish(self) -> None:
        """Write the last shard, wait for uploads, and write the index. A second call does nothing.

        Raises:
            OSError: A file cannot be written, or an upload failed, so the dataset has no index. Some file systems
                raise errors of their own.
        """
        if not self._is_open:
            return
        try:
            if self._samples:
                self._write_shard()
            index = json.dumps({"version": _VERSION, "shards": self._shards}, sort_keys=True)
            self._destination.publish(index.encode())
        except BaseException:
            self.abandon()
            raise
        self._is_open = False
        self._if_dropped.detach()
        self._progress.close()

    def abandon(self) -> None:
        """Give up the dataset: write no index, and remove the local files."""
        if self._is_open:
            self._is_open = False
            self._samples = []
            self._if_dropped.detach()
            self._progress.close()
            self._destination.abandon()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.abandon()

    @abstractmethod
    def _described(self) -> dict[str, Any]:
        """Return the index fields that all shards of this format share, including the columns."""

    @abstractmethod
    def _encoded(self, sample: Mapping[str, Any]) -> bytes:
        """Return a sample's bytes.

        Raises:
            SampleError: A value cannot be encoded.
        """

    @abstractmethod
    def _empty_shard_bytes(self) -> int:
        """Return the size of a shard without samples, as counted against ``size_limit``, in bytes."""

    @abstractmethod
    def _files(self, samples: list[bytes]) -> list[ShardFile]:
        """Return a shard's files, given its encoded samples."""

    def _write_shard(self) -> None:
        entry: dict[str, Any] = {**self._config, "samples": len(self._samples)}
        for part, suffix, content in self._files(self._samples):
            name = f"shard.{len(self._shards):05}.{self.format}{suffix}"
            entry[f"raw_{part}"] = self._file_info(name, content)
            entry[f"zip_{part}"] = compressed = None
            if self.compression is not None:
                # The index describes the raw file too, but only the compressed one is written.
                compressed = compress(content, self.compression)
                name = f"{name}.{extension_of(self.compression)}"
                entry[f"zip_{part}"] = self._file_info(name, compressed)
            self._destination.add(name, content if compressed is None else compressed)
        self._shards.append(entry)
        self._samples = []
        self._shard_bytes = self._base_bytes

    def _file_info(self, name: str, content: bytes) -> dict[str, Any]:
        hashes = {algorithm: hash_of(content, algorithm) for algorithm in self.hashes}
        return {"basename": name, "bytes": len(content), "hashes": hashes}

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError("the writer is finished and accepts no more samples")


def _abandon_dropped(destination: Destination, pid: int) -> None:
    # A forked process has a copy of the writer, and no right to its files.
    if os.getpid() == pid:
        _logger.warning(
            "a writer to %s was dropped without finish(): there is no index, and its samples are lost",
            destination.shown,
        )
        # An upload may need a lock that this thread holds.
        destination.abandon(wait=False)


def _sorted_columns(columns: Any) -> dict[str, str]:
    given = cast("Mapping[Any, Any]", columns if isinstance(columns, Mapping) else {})
    if not given or not all(isinstance(text, str) for pair in given.items() for text in pair):
        expected = "a non-empty dict from column name to encoding"
        raise ConfigurationError("columns", cast("object", columns), expected)
    return dict(sorted(given.items()))


def _sorted_hashes(hashes: Sequence[str] | None) -> list[str]:
    if isinstance(hashes, str):
        raise ConfigurationError("hashes", hashes, "a list of names")
    return sorted({arguments.choice("hashes", algorithm, HASHES) for algorithm in hashes or ()})


def _check_installed(compression: str | None, hashes: Sequence[str]) -> None:
    # Report a missing package now instead of when the first shard is full.
    if compression is not None:
        compress(b"", compression)
    for algorithm in hashes:
        hash_of(b"", algorithm)


def _size_limit(size_limit: int | str | None) -> int | None:
    if not size_limit:
        return None
    return (
        arguments.integer("size_limit", size_bytes_of("size_limit", size_limit), minimum=0, maximum=(1 << 32) - 1)
        or None
    )


class Progress:
    """A progress bar of tqdm, which can be off.

    Args:
        is_shown: Whether to show the bar.

    Raises:
        ConfigurationError: The bar needs tqdm, which is not installed.
    """

    def __init__(self, *, is_shown: bool) -> None:
        self._bar: Any = required("tqdm", "streaming").tqdm(unit=" samples") if is_shown else None
        self._num_shards = 0

    def advance(self, num_samples: int, num_shards: int) -> None:
        """Show how many samples and shards are written."""
        if self._bar is None:
            return
        if num_shards != self._num_shards:
            self._num_shards = num_shards
            self._bar.set_postfix(shards=num_shards, refresh=False)
        self._bar.update(num_samples - self._bar.n)

    def close(self) -> None:
        """Stop the bar, and leave its line on the terminal."""
        if self._bar is not None:
            self._bar.close()
