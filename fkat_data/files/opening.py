"""Open files by path or URI: whole, by ranges, or as decompressed text."""

import errno
import os
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, cast

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.errors.wording import without_secrets
from fkat_data.files.lru_cache import LruCache
from fkat_data.files.range_requests import Content, Span
from fkat_data.files.remote import RemoteFile
from fkat_data.files.signatures import START_BYTES, check_text, compression_of, decompressed
from fkat_data.files.stored import named
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.runtime.lifetime import Descriptor
from fkat_data.storage.file_identity import FileIdentity
from fkat_data.storage.location import file_system_of, is_chain, path_of, resolved
from fkat_data.storage.store_errors import NoRangesError, StoreCalls, read_in_order

Locations: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""Paths or URIs of one or more files."""

ReadRange: TypeAlias = Callable[[int, int], bytes]
"""Returns the bytes of a file from one offset to another."""


def names_of(argument: str, value: object) -> list[str]:
    """Return one or more names as a list.

    Args:
        argument: Name of the argument that holds the names, for error messages.
        value: A string, a path, or a list of them.

    Raises:
        ConfigurationError: ``value`` is none of them, is empty, or repeats a name.
    """
    given: object = [value] if isinstance(value, str) or hasattr(value, "__fspath__") else value
    try:
        names: list[str] = list(map(os.fspath, cast("Sequence[str]", given))) if isinstance(given, Sequence) else []
    except genuine(TypeError):
        names = []
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ConfigurationError(argument, value, "a string, a path, or a non-empty list of distinct ones")
    return names


def locations_of(argument: str, value: object) -> list[str]:
    """Return one or more paths or URIs as a list. Paths are absolute, so that a later ``chdir`` does not matter.

    Args:
        argument: Name of the argument that holds them, for error messages.
        value: A string, a path, or a list of them.

    Raises:
        ConfigurationError: ``value`` is none of them, is empty, or repeats a file.
    """
    expected = "the path or the URI of a file"
    names = [name if is_chain(name) else resolved(argument, name, expected) for name in names_of(argument, value)]
    return names_of(argument, names)


def local_path(path: str) -> str | None:
    """Return the path of a local file, or None for a URI that needs fsspec."""
    found = None if is_chain(path) else path_of(path)
    return None if found is None else str(found)


def shown_path(path: str) -> str:
    """Return a path as it is, and a URI without what may be secret in it, for messages."""
    return path if local_path(path) is not None else without_secrets(path)


def open_uri(uri: str, storage_options: Mapping[str, Any]) -> RemoteFile:
    """Open a file of any file system that fsspec supports, for reading bytes.

    Args:
        uri: URI such as ``s3://bucket/name``.
        storage_options: Options that fsspec passes to the file system, such as keys and endpoints.

    Raises:
        ConfigurationError: No installed file system opens ``uri``, or it is a folder.
        ShardNotFoundError: The file does not exist.
        DownloadError: Any other error of the file system.
    """
    file_system, name = _file_system(uri, storage_options)
    try:
        file = RemoteFile(file_system, name, uri, is_chained=is_chain(uri), hop_bytes=_HOP_IN_STORE_BYTES)
    except genuine(FileNotFoundError) as error:
        raise (is_folder(uri) if _has_folder(file_system, name) else not_found(uri)) from error
    except genuine(IsADirectoryError) as error:
        raise is_folder(uri) from error
    if not file.size_bytes and _has_folder(file_system, name):
        raise is_folder(uri)  # tools write an empty object for each folder
    return file


#: What fsspec raises where it knows none for a URI, or with these options.
_NO_FILE_SYSTEM = ValueError, TypeError, ImportError


def _file_system(uri: str, storage_options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the file system of a URI, and the name of the file in it; raise as ``open_uri``."""
    try:
        return StoreCalls(uri, storage_options).made(
            lambda: file_system_of(uri, storage_options), has_limit=False, passing=_NO_FILE_SYSTEM
        )
    except genuine(*_NO_FILE_SYSTEM) as error:
        raise ConfigurationError("paths", shown_path(uri), f"a URI that fsspec can open: {error}") from error


def _has_folder(file_system: Any, name: str) -> bool:
    """Return whether a store has files below a name."""
    with suppress(Exception):  # the file is missing, whatever the store answers to this
        return bool(file_system.isdir(name))
    return False


def check_regular(path: str, local: str) -> None:
    """Check that a local file has a size, and that opening it does not wait for another program.

    Raises:
        ConfigurationError: It is a pipe, a socket or a device.
        OSError: There is no such file.
    """
    mode = os.stat(local).st_mode  # noqa: PTH116 - in half the time
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        expected = "a regular file; it is a pipe, a socket or a device: write what it gives to a file first"
        raise ConfigurationError("path", path, expected)


def not_found(path: str) -> ShardNotFoundError:
    """Return the error of a file that does not exist."""
    path = shown_path(path)
    if not set(path) & set("*?["):
        return ShardNotFoundError(path, "no such file")
    advice = "pass the list of files, or a FsShardSampler(folder, glob=...) as the shards of a loader"
    return ShardNotFoundError(path, f"no such file, and patterns are not expanded here: {advice}")


def is_folder(path: str) -> ConfigurationError:
    """Return the error of a folder where a file is expected."""
    return ConfigurationError(
        "path",
        shown_path(path),
        "a file, and it is a folder: pass the list of its files, or a FsShardSampler(folder, glob=...) as the shards of "
        "a loader; fkat_data.streaming.StreamingDataset(local=folder) reads a folder of Parquet, tar or token files "
        "(those with tokens={'window_size': ...}), or one with an index.json",
    )


def changed(path: str, reason: str = "it was written again while it was in use") -> ShardCorruptError:
    """Return the error of a file that is no longer the one that a dataset was made of."""
    return ShardCorruptError(path, f"the file has changed: {reason}; make the dataset again, or restore the file")


#: What is read in the time that another reading takes to begin: of a local file, and of others.
_HOP_BYTES, _HOP_IN_STORE_BYTES = 16 << 10, 2 << 20


class RangedFile:
    """An open file, which threads may share. Forked children may share a local one, and no other.

    Args:
        path: A local path, or a URI that fsspec supports.
        storage_options: Options for fsspec, for files that are not local.

    Raises:
        ShardNotFoundError: The file does not exist.
        ConfigurationError: It is a folder, or no installed file system opens the URI.

    Attributes:
        size_bytes: The size of the file when it was opened.
        hop_bytes: A gap that is smaller takes less time to read than another call of ``read``.
    """

    def __init__(self, path: str, storage_options: Mapping[str, Any]) -> None:
        self._path = path
        self._opened: Descriptor | RemoteFile
        local = local_path(path)
        self.hop_bytes = _HOP_IN_STORE_BYTES if local is None else _HOP_BYTES
        if local is None:
            self._opened = open_uri(path, storage_options)
            self.size_bytes: int = self._opened.size_bytes
            return
        try:
            check_regular(path, local)
            with Path(local).open("rb", buffering=0) as file:
                self.size_bytes = os.fstat(file.fileno()).st_size
                self._opened = Descriptor(os.dup(file.fileno()))
        except genuine(FileNotFoundError, NotADirectoryError) as error:
            raise not_found(path) from error
        except genuine(IsADirectoryError) as error:
            raise is_folder(path) from error

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from ``start`` to ``stop``.

        Raises:
            ShardCorruptError: The file has become shorter.
            OSError: The file cannot be read.
        """
        if isinstance(self._opened, RemoteFile):
            return _as_bytes(self._whole(self._opened.read([(start, stop)])[0], start, stop))
        file, parts = self._opened.fileno(), list[bytes]()
        while start < stop:
            try:
                parts.append(os.pread(file, stop - start, start))
            except genuine(OSError) as error:
                raise named(error, self._path) from None
            start += len(parts[-1])
            if not parts[-1]:
                raise self._shorter(start)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def together(self, spans: Iterable[Span]) -> ReadRange:
        """Return what returns the bytes of some ranges, which a remote file fetches now, in as few requests as it takes.

        Raises:
            Exception: What ``read`` raises.
        """
        if isinstance(self._opened, Descriptor):
            return self.read
        wanted = list(spans)
        contents = dict(zip(wanted, map(_as_bytes, self.buffers(wanted, is_ahead=False)), strict=True))
        return lambda start, stop: contents[start, stop]

    def buffers(self, spans: Sequence[Span], *, is_ahead: bool) -> list[Content]:
        """Return ranges as ``together`` reads them, without a copy: as bytes, or as views that cannot be written to.

        ``is_ahead``: the caller reads ahead itself.
        """
        if isinstance(self._opened, Descriptor):
            return [self.read(*span) for span in spans]
        found = self._opened.read(spans, is_ahead=is_ahead)
        return [self._whole(content, *span) for span, content in zip(spans, found, strict=True)]

    def begin(self, spans: Iterable[Span]) -> None:
        """Have a remote file ask for ranges that ``together`` will be called with; raises what opening it does."""
        if isinstance(self._opened, RemoteFile):
            self._opened.begin(list(spans))

    def read_in_order(self) -> None:
        """Expect to be read from the first byte on: a remote file reads ahead."""
        if isinstance(self._opened, RemoteFile):
            self._opened.read_in_order()

    def read_into(self, buffer: Any, start: int, read: ReadRange) -> None:
        """Fill a contiguous buffer, such as an array, with the bytes from ``start`` on; raise as ``read`` does.

        Args:
            buffer: The buffer.
            start: The first byte.
            read: What ``together`` has returned for this range.
        """
        file, count = self._opened, buffer.nbytes
        try:
            if not count or (isinstance(file, Descriptor) and os.preadv(file.fileno(), (buffer,), start) == count):
                return
        except genuine(OSError) as error:
            raise named(error, self._path) from None
        memoryview(buffer).cast("B")[:] = read(start, start + count)

    def identity(self) -> FileIdentity:
        """Return what the open file is: now, or for a remote one when it was opened."""
        opened = self._opened
        if isinstance(opened, RemoteFile):
            return FileIdentity.of_store(opened.details)
        return FileIdentity.of_descriptor(opened.fileno())

    def _whole(self, content: Content, start: int, stop: int) -> Content:
        if len(content) < stop - start:
            raise self._shorter(start + len(content))
        return content

    def _shorter(self, size_bytes: int) -> ShardCorruptError:
        return changed(self._path, f"it has become shorter and ends at byte {size_bytes:,}")


def _as_bytes(content: Content) -> bytes:
    return content if isinstance(content, bytes) else bytes(content)


_CHUNK_BYTES = 1 << 20
#: Of these stores alone, some have no ranges.
_WEB = ("http://", "https://")


class TextFile:
    """Decompressed text of a local or remote file; its first bytes tell the compression. Threads may share it.

    Args:
        path: A local path, or a URI that fsspec supports.
        storage_options: Options for fsspec, for files that are not local.

    Attributes:
        identity_read: What the file was when ``chunks`` was last begun; None: it was not.
    """

    def __init__(self, path: str, storage_options: Mapping[str, Any]) -> None:
        self.path = path
        self._storage_options = storage_options
        self._decompressed: Descriptor | None = None  # the decompressed text; forked children share it
        self._identity_of_text: FileIdentity | None = None  # the file of which the decompressed text is
        self._plain: LruCache[RangedFile | None] = LruCache(1)
        self.identity_read: FileIdentity | None = None

    def chunks(self) -> Iterator[bytes]:
        """Yield the text in pieces of about 1 MiB, or at most 32 MiB of a compressed file.

        Raises:
            ShardNotFoundError: The file does not exist.
            ShardCorruptError: The compressed data is damaged or truncated, or the file is written while it is read.
            ConfigurationError: The file is no text, by its first bytes; it is zstd but zstandard is not installed; or no file
                system opens the URI.
        """
        try:
            file = RangedFile(self.path, self._storage_options)
        except genuine(NoRangesError):
            self.identity_read = FileIdentity(0)
            yield from self._text(self._in_order(0))
            return
        file.read_in_order()
        self.identity_read = before = file.identity()
        for chunk in self._text(self._stored(file)):
            if file.identity() != before:
                break
            yield chunk
        if file.identity() != before:
            raise changed(self.path, "it was written while it was read")

    def compression(self) -> str | None:
        """Return how the file is compressed; None: it is plain. Raise what ``chunks`` raises."""
        return compression_of(shown_path(self.path), _start_of(RangedFile(self.path, self._storage_options)))

    def identity(self) -> FileIdentity:
        """Return what the file is of which ``read`` returns text."""
        plain = self._ranged()
        return cast("FileIdentity", self._identity_of_text) if plain is None else plain.identity()

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes of the text from ``offset`` on.

        The first call decompresses a compressed file to an unnamed temporary file.

        Raises:
            ShardNotFoundError: The file does not exist.
            ShardCorruptError: The compressed data is damaged or truncated, or a plain file has become shorter.
        """
        if (plain := self._ranged()) is not None:
            return plain.read(offset, offset + size)
        return os.pread(cast("Descriptor", self._decompressed).fileno(), size, offset)

    def together(self, spans: Iterable[Span]) -> ReadRange:
        """Return what reads ranges of the text; see ``RangedFile``. Raise as ``read`` does."""
        if (plain := self._ranged()) is not None:
            return plain.together(spans)
        return lambda start, stop: self.read(start, stop - start)

    def begin(self, spans: Iterable[Span]) -> None:
        """Ask for ranges of the text; see ``RangedFile``."""
        if (plain := self._ranged()) is not None:
            plain.begin(spans)

    @property
    def is_open(self) -> bool:
        """Whether ``read`` need not open the file first."""
        return self._decompressed is not None or 0 in self._plain

    def checksum(self, num_bytes: int) -> int:
        """Return the CRC-32 of the first ``num_bytes`` of the text, or of all of it if it is shorter.

        Raises:
            Exception: What ``read`` raises.
        """
        found = 0
        for offset in range(0, num_bytes, _CHUNK_BYTES):
            found = zlib.crc32(self.read(offset, min(_CHUNK_BYTES, num_bytes - offset)), found)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decompressed": None}

    def _ranged(self) -> RangedFile | None:
        """Return the file, opened by the first call; None: its text is decompressed."""
        return None if self._decompressed is not None else self._plain.get(0, self._open_for_offsets)

    def _open_for_offsets(self) -> RangedFile | None:
        """Return the file if it is plain, and its server has ranges; else write its text to a temporary file."""
        with suppress(NoRangesError):
            file = RangedFile(self.path, self._storage_options)
            if compression_of(shown_path(self.path), _start_of(file)) is None:
                if self.path.startswith(_WEB):
                    file.read(max(0, file.size_bytes - 1), file.size_bytes)
                return file
        with _temporary_file(self.path) as text:
            for chunk in self.chunks():
                _write(text, chunk, self.path)
            self._decompressed, self._identity_of_text = Descriptor(os.dup(text.fileno())), self.identity_read
        return None

    def _stored(self, file: RangedFile) -> Iterator[bytes]:
        at, size_bytes = 0, file.size_bytes
        try:
            while at < size_bytes:
                chunk = file.read(at, min(size_bytes, at + _CHUNK_BYTES))
                at += len(chunk)
                yield chunk
        except genuine(NoRangesError):
            yield from self._in_order(at)

    def _in_order(self, start: int) -> Iterator[bytes]:
        file_system, name = _file_system(self.path, self._storage_options)
        return read_in_order(self.path, file_system, name, start, _CHUNK_BYTES)

    def _text(self, stored: Iterator[bytes]) -> Iterator[bytes]:
        first = b""
        while len(first) < START_BYTES and (chunk := next(stored, b"")):
            first += chunk
        stored = chain([first] if first else [], stored)
        shown = shown_path(self.path)
        compression = compression_of(shown, first[:START_BYTES])
        if compression is None:
            yield from stored
            return
        is_first = True
        for text in decompressed(shown, compression, stored):
            if is_first:
                check_text(shown, text[:START_BYTES])
                is_first = False
            yield text


#: No room on the disk, or in the user's share of it, or a file that is too large for the file system.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _temporary_file(path: str) -> Any:
    """Return a file without a name for a text.

    Raises:
        ConfigurationError: No file can be made there.
    """
    try:
        return tempfile.TemporaryFile(buffering=0)
    except genuine(OSError) as error:
        raise _no_room(path, 0, error) from error


def _write(file: Any, chunk: bytes, path: str) -> None:
    try:
        view = memoryview(chunk)
        while view:
            view = view[file.write(view) :]
    except genuine(OSError) as error:
        if error.errno not in _NO_ROOM:
            raise named(error, path) from None
        raise _no_room(path, file.tell(), error) from error


def _no_room(path: str, num_bytes: int, error: OSError) -> ConfigurationError:
    try:
        folder = tempfile.gettempdir()
    except genuine(FileNotFoundError):
        folder = "<no directory that can be written>"
    return ConfigurationError(
        "TMPDIR",
        folder,
        f"a directory with room for the text of {shown_path(path)}, of which {num_bytes:,} bytes were written "
        f"({error.strerror or error}): set TMPDIR to a larger one, or decompress the file; "
        "fkat_data.datasets.IterableJsonDataset needs no such room",
    )


def _start_of(file: RangedFile) -> bytes:
    return file.read(0, min(START_BYTES, file.size_bytes))
