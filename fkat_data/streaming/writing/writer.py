"""The writers: group samples into shards, write their files, and write the index last."""

import json
import logging
import os
import struct
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self, TypedDict, Unpack, cast

import numpy as np

from fkat_data.errors import ConfigurationError, SampleError, arguments
from fkat_data.errors.arguments import size_bytes_of
from fkat_data.errors.wording import Described, redacted_location
from fkat_data.files.encoding import Encoding, EncodingError
from fkat_data.files.encodings import encoding_of
from fkat_data.files.index import TEXT_ENCODINGS
from fkat_data.files.stored import HASHES, checked_compression, compress, extension_of, hash_of
from fkat_data.runtime.machine import required
from fkat_data.streaming.writing.destination import Destination

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
        self.keep_local: bool = arguments.boolean("keep_local", keep_local)
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
        self.shards: list[dict[str, Any]] = []
        self._samples: list[bytes] = []
        self._base_bytes = self._empty_shard_bytes()
        self._shard_bytes = self._base_bytes
        self._is_open = True
        is_shown = arguments.boolean("progress_bar", progress_bar)
        self._bar: Any = required("tqdm", "streaming").tqdm(unit=" samples") if is_shown else None
        self._destination = Destination(
            out,
            keep_local=self.keep_local,
            max_workers=None if max_workers is None else arguments.integer("max_workers", max_workers, minimum=1),
            num_attempts=arguments.integer("retry", retry, minimum=1),
            exist_ok=arguments.boolean("exist_ok", exist_ok),
            storage_options=storage_options,
        )
        # Runs at the program's end, too, before the modules that it needs are gone.
        self._if_dropped = weakref.finalize(self, _abandon_dropped, self._destination, os.getpid())

    def _repr_facts(self) -> Iterable[tuple[str, object]]:
        return [
            ("out", redacted_location(self._destination.shown)),
            ("samples", self.num_samples),
            ("shards", len(self.shards)),
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
        if limit < self._shard_bytes + added_bytes:
            self._write_shard()
        if self._base_bytes + added_bytes > _MAX_SHARD_BYTES:
            raise SampleError("<all>", f"<{len(encoded)} bytes>", f"at most {_MAX_SHARD_BYTES} bytes")
        self._samples.append(encoded)
        self._shard_bytes += added_bytes
        self.num_samples += 1
        if self._bar is not None:
            self._bar.update()

    def flush_shard(self) -> None:
        """End the shard under way: the next sample begins another one. Without samples in it, nothing happens.

        Raises:
            ValueError: The writer is finished.
            OSError: A file cannot be written, or an upload failed. Some file systems raise errors of their own.
        """
        self._check_open()
        self._destination.raise_failure()
        self._write_shard()

    def get_config(self) -> dict[str, Any]:
        """Return the index fields that all shards have in common: format, compression, hashes, columns and so on."""
        return dict(self._config)

    @property
    def column_names(self) -> list[str]:
        """The names of the columns, in the order in which they are stored."""
        return list(self.columns)

    @property
    def column_encodings(self) -> list[str]:
        """The encodings of the columns, in that order."""
        return list(self.columns.values())

    @property
    def local(self) -> str:
        """The directory that files are written to; below the temporary directory if ``out`` is a URL."""
        return str(self._destination.local)

    @property
    def remote(self) -> str | None:
        """The URL or directory that files are uploaded to; None if there is none."""
        return self._destination.remote

    def finish(self) -> None:
        """Write the last shard, wait for uploads, and write the index. A second call does nothing.

        Raises:
            OSError: A file cannot be written, or an upload failed, so the dataset has no index. Some file systems
                raise errors of their own.
        """
        if not self._is_open:
            return
        try:
            self._write_shard()
            index = json.dumps({"version": _VERSION, "shards": self.shards}, sort_keys=True)
            self._destination.publish(index.encode())
        except BaseException:
            self.abandon()
            raise
        self._end()

    def abandon(self) -> None:
        """Give up the dataset: write no index, and remove the local files."""
        if self._is_open:
            self._end()
            self._destination.abandon()

    def _end(self) -> None:
        self._is_open = False
        self._samples = []
        self._if_dropped.detach()
        if self._bar is not None:
            self._bar.close()

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
        if not self._samples:
            return
        entry: dict[str, Any] = {**self._config, "samples": len(self._samples)}
        for part, suffix, content in self._files(self._samples):
            name = f"shard.{len(self.shards):05}.{self.format}{suffix}"
            entry[f"raw_{part}"] = self._file_info(name, content)
            entry[f"zip_{part}"] = compressed = None
            if self.compression is not None:
                # The index describes the raw file too, but only the compressed one is written.
                compressed = compress(content, self.compression)
                name = f"{name}.{extension_of(self.compression)}"
                entry[f"zip_{part}"] = self._file_info(name, compressed)
            self._destination.add(name, content if compressed is None else compressed)
        self.shards.append(entry)
        if self._bar is not None:
            self._bar.set_postfix(shards=len(self.shards), refresh=False)
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
    size_bytes = size_bytes_of("size_limit", size_limit)
    return arguments.integer("size_limit", size_bytes, minimum=0, maximum=(1 << 32) - 1) or None


class MDSWriter(ShardWriter):
    """Writes samples in the MDS format. It takes the arguments of ``ShardWriter``.

    A column's encoding is one of ``fkat_data.files.encodings.ENCODINGS``, or ``ndarray``,
    ``ndarray:DTYPE``, ``ndarray:DTYPE:D0,D1``.

    For any encoding, a value of type ``bytes`` counts as already encoded, such as the content of a JPEG file, and is
    written unchanged. The writer decodes it once as a check, except images in files and pickles.
    """

    format: ClassVar[str] = "mds"
    sample_overhead_bytes: ClassVar[int] = 4  # the sample's offset

    def _described(self) -> dict[str, Any]:
        self._encodings = {name: _encoding(name, encoding) for name, encoding in self.columns.items()}
        return {
            "column_names": self.column_names,
            "column_encodings": self.column_encodings,
            "column_sizes": self.column_sizes,
        }

    @property
    def column_sizes(self) -> list[int | None]:
        """The size of each column's values in bytes; None if it varies."""
        return [encoding.size_bytes for encoding in self._encodings.values()]

    def _empty_shard_bytes(self) -> int:
        self._config_json = json.dumps(self._config).encode()
        return 8 + len(self._config_json)

    def _encoded(self, sample: Mapping[str, Any]) -> bytes:
        lengths: list[int] = []
        payloads: list[bytes] = []
        for name, encoding in self._encodings.items():
            payload = _payload(name, encoding, sample[name])
            if encoding.size_bytes is None:
                lengths.append(len(payload))
            payloads.append(payload)
        return struct.pack(f"<{len(lengths)}I", *lengths) + b"".join(payloads)

    def _files(self, samples: list[bytes]) -> list[ShardFile]:
        begin = 8 + 4 * len(samples) + len(self._config_json)
        offsets = accumulate(map(len, samples), initial=begin)
        header = struct.pack(f"<{len(samples) + 2}I", len(samples), *offsets)
        return [ShardFile("data", "", b"".join([header, self._config_json, *samples]))]


def _encoding(name: str, encoding: str) -> Encoding:
    try:
        return encoding_of(encoding)
    except EncodingError as error:
        raise ConfigurationError(f"columns[{name!r}]", encoding, str(error)) from None


def _payload(name: str, encoding: Encoding, value: Any) -> bytes:
    if not isinstance(value, bytes):
        try:
            return encoding.encode(value)
        except EncodingError as error:
            raise SampleError(name, value, str(error)) from error
    if encoding.size_bytes is not None and len(value) != encoding.size_bytes:
        raise SampleError(name, value, f"{encoding.size_bytes} bytes, not {len(value)}")
    if encoding.is_checked:
        try:
            encoding.decode(memoryview(value))
        except ValueError as error:
            raise SampleError(name, value, f"bytes that the encoding can decode ({error})") from error
    return value


_KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int, np.integer), "float": (float, np.floating)}
_PLAIN: dict[str, Callable[[Any], Any]] = {"str": str, "int": int, "float": float}
#: Python converts no int of more than 4,300 digits to text, or back.
_MOST_BITS = 14_000


class WriterSettings(TypedDict, total=False):
    """The arguments of ``ShardWriter`` for every format."""

    keep_local: bool
    compression: str | None
    hashes: Sequence[str] | None
    size_limit: int | str | None
    progress_bar: bool
    max_workers: int | None
    retry: int
    exist_ok: bool
    storage_options: Mapping[str, Any] | None


class LinesWriter(ShardWriter):
    r"""Base of writers whose samples are lines.

    Args:
        columns: Encoding by column name: ``str``, ``int`` or ``float``.
        out: See ``ShardWriter``.
        newline: End of a line. For JSON lines ``"\n"``, ``"\r\n"`` or other white space.
        settings: The other arguments of ``ShardWriter``.

    Raises:
        ConfigurationError: An argument is invalid.
        FileExistsError: ``out`` already has content, and ``exist_ok`` is false.
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        out: str | Path | tuple[str, str],
        newline: str = "\n",
        **settings: Unpack[WriterSettings],
    ) -> None:
        self.newline: str = newline
        super().__init__(columns=columns, out=out, **settings)

    def _described(self) -> dict[str, Any]:
        for name, encoding in self.columns.items():
            arguments.choice(f"columns[{name!r}]", encoding, TEXT_ENCODINGS)
        if not isinstance(self.newline, str) or not self.newline:
            raise ConfigurationError("newline", self.newline, "a string of at least one character")
        return {"newline": self.newline}

    def _empty_shard_bytes(self) -> int:
        return 0  # the limit counts only samples

    def _header(self) -> bytes:
        return b""

    def _files(self, samples: list[bytes]) -> list[ShardFile]:
        header = self._header()
        offsets = accumulate(map(len, samples), initial=len(header))
        meta = struct.pack(f"<{len(samples) + 2}I", len(samples), *offsets) + json.dumps(self._config).encode()
        return [ShardFile("data", "", b"".join([header, *samples])), ShardFile("meta", ".meta", meta)]

    def _values(self, sample: Mapping[str, Any]) -> dict[str, str | int | float]:
        return {name: _checked(name, encoding, sample[name]) for name, encoding in self.columns.items()}


def _checked(name: str, encoding: str, value: Any) -> str | int | float:
    if not isinstance(value, _KINDS[encoding]):
        raise SampleError(name, value, f"{'an' if encoding == 'int' else 'a'} {encoding}")
    plain = value if isinstance(value, bool) else _PLAIN[encoding](value)
    if encoding == "int" and plain.bit_length() > _MOST_BITS:
        raise SampleError(name, f"<an int of {plain.bit_length()} bits>", f"an int of at most {_MOST_BITS} bits")
    return plain


class JSONWriter(LinesWriter):
    """Writes samples as JSON lines, and their offsets in a second file. It takes the arguments of ``LinesWriter``."""

    format: ClassVar[str] = "json"

    def _described(self) -> dict[str, Any]:
        described = super()._described()
        if self.newline.strip(" \t\r\n"):
            raise ConfigurationError("newline", self.newline, "white space that JSON ignores")
        return {**described, "columns": self.columns}

    def _encoded(self, sample: Mapping[str, Any]) -> bytes:
        return (json.dumps(self._values(sample), sort_keys=True) + self.newline).encode()


class _SeparatedWriter(LinesWriter):
    #: What separates the values of a line.
    separator: str

    def _described(self) -> dict[str, Any]:
        described = super()._described()
        if not isinstance(self.separator, str) or not self.separator or self.separator in self.newline:
            raise ConfigurationError("separator", self.separator, "a non-empty string that is not part of the newline")
        if self.newline in self.separator:
            raise ConfigurationError("newline", self.newline, "a string that is not part of the separator")
        if not self._can_be_read([*self.columns]):
            raise ConfigurationError("columns", [*self.columns], "names without separator and newline")
        of_xsv = {"separator": self.separator} if self.format == "xsv" else {}
        return {
            **described,
            **of_xsv,
            "column_names": self.column_names,
            "column_encodings": self.column_encodings,
        }

    def _header(self) -> bytes:
        return self._line([*self.columns])

    def _encoded(self, sample: Mapping[str, Any]) -> bytes:
        typed = self._values(sample)
        for name, value in typed.items():
            if isinstance(value, bool):
                raise SampleError(name, value, "an int, because the text of a bool cannot be read back as one")
        values = {name: str(value) for name, value in typed.items()}
        if not self._can_be_read([*values.values()]):
            for name, value in values.items():
                if not self._can_be_read([value]):
                    raise SampleError(name, value, f"text without {self.separator!r} or {self.newline!r}")
            raise SampleError("<all>", values, f"values that can be joined with {self.separator!r} and split again")
        try:
            return self._line([*values.values()])
        except UnicodeEncodeError as error:
            raise SampleError("<all>", values, f"text that UTF-8 can encode ({error})") from None

    def _line(self, values: list[str]) -> bytes:
        return (self.separator.join(values) + self.newline).encode()

    def _can_be_read(self, values: list[str]) -> bool:
        # Join and split again, because a separator of several characters can arise where two values meet it.
        line = self.separator.join(values)
        return line.split(self.separator) == values and self.newline not in line


class XSVWriter(_SeparatedWriter):
    """Writes samples as lines of separated values after a header line, and their offsets in a second file.

    The format has no quoting, so ``write`` refuses a value that contains the separator or the newline.

    Args:
        separator: Separator between values.
        columns: Encoding by column name: ``str``, ``int`` or ``float``.
        out: See ``ShardWriter``.
        newline: End of a line.
        settings: The other arguments of ``ShardWriter``.

    Raises:
        ConfigurationError: An argument is invalid.
        FileExistsError: ``out`` already has content, and ``exist_ok`` is false.
    """

    format: ClassVar[str] = "xsv"

    def __init__(
        self,
        *,
        separator: str,
        columns: Mapping[str, str],
        out: str | Path | tuple[str, str],
        newline: str = "\n",
        **settings: Unpack[WriterSettings],
    ) -> None:
        self.separator = separator
        super().__init__(columns=columns, out=out, newline=newline, **settings)


class CSVWriter(_SeparatedWriter):
    """Writes samples as comma-separated values. See ``XSVWriter``."""

    format: ClassVar[str] = "csv"
    separator = ","


class TSVWriter(_SeparatedWriter):
    """Writes samples as tab-separated values. See ``XSVWriter``."""

    format: ClassVar[str] = "tsv"
    separator = "\t"
