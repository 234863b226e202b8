"""Read text files, plain, gzip or zstd, in pieces or by offset."""

import gzip
import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from fkat_data.datasets.file_version import FileVersion, changed
from fkat_data.datasets.last_used import LastUsed
from fkat_data.datasets.opening import local_path, not_found, open_uri
from fkat_data.datasets.ranged_file import RangedFile
from fkat_data.dropped import Descriptor
from fkat_data.errors import ShardCorruptError
from fkat_data.interruption import genuine
from fkat_data.requirement import required

_CHUNK_BYTES = 1 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_COMPRESSED = (".gz", ".zst", ".zstd")
# Feeding zstd 1 KiB at a time bounds the output: 4 bytes can expand to 128 KiB.
_ZSTD_PIECE_BYTES = 1 << 10


class TextFile:
    """Decompressed text of a local or remote file; its first bytes tell the compression. Threads may share it.

    Args:
        path: A local path, or a URI that fsspec supports.
        storage_options: Options for fsspec, for files that are not local.

    Attributes:
        version_read: What the file was when ``chunks`` was last begun; None: it was not.
    """

    def __init__(self, path: str, storage_options: Mapping[str, Any]) -> None:
        self.path = path
        self._storage_options = storage_options
        self._decompressed: Descriptor | None = None  # the decompressed text; forked children share it
        self._version_of_text: FileVersion | None = None  # the file of which the decompressed text is
        self._plain: LastUsed[RangedFile | None] = LastUsed(1)
        self.version_read: FileVersion | None = None

    def chunks(self) -> Iterator[bytes]:
        """Yield the text in pieces of about 1 MiB, or at most 32 MiB for zstd.

        Raises:
            ShardNotFoundError: The file does not exist.
            ShardCorruptError: The compressed data is damaged or truncated, or the file is written while it is read.
            ConfigurationError: The file is zstd but zstandard is not installed, or no file system opens the URI.
        """
        with self._open() as file:
            self.version_read = before = self._version(file)
            for chunk in self._text(file):
                if self._version(file) != before:
                    break
                yield chunk
            if self._version(file) != before:
                raise changed(self.path, "it was written while it was read")

    def version(self) -> FileVersion:
        """Return what the file is of which ``read`` returns text."""
        plain = None if self._decompressed is not None else self._plain.get(0, self._open_for_offsets)
        return cast("FileVersion", self._version_of_text) if plain is None else plain.version()

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes of the text from ``offset`` on.

        The first call decompresses a compressed file to an unnamed temporary file.

        Raises:
            ShardNotFoundError: The file does not exist.
            ShardCorruptError: The compressed data is damaged or truncated, or a plain file has become shorter.
        """
        plain = None if self._decompressed is not None else self._plain.get(0, self._open_for_offsets)
        if plain is not None:
            return plain.read(offset, offset + size)
        return os.pread(cast("Descriptor", self._decompressed).fileno(), size, offset)

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

    def _open(self) -> Any:
        local = local_path(self.path)
        if local is None:
            return open_uri(self.path, self._storage_options)
        try:
            return Path(local).open("rb", buffering=0)
        except genuine(FileNotFoundError) as error:
            raise not_found(self.path) from error

    def _open_for_offsets(self) -> RangedFile | None:
        """Return the file if it is plain; else decompress it."""
        with self._open() as file:
            start = file.read(len(_ZSTD))
        if not start.startswith(_GZIP) and start != _ZSTD:
            return RangedFile(self.path, self._storage_options)
        with tempfile.TemporaryFile(buffering=0) as text:
            for chunk in self.chunks():
                view = memoryview(chunk)
                while view:
                    view = view[text.write(view) :]
            self._decompressed, self._version_of_text = Descriptor(os.dup(text.fileno())), self.version_read
        return None

    def _version(self, file: Any) -> FileVersion:
        return FileVersion.of_remote(file) if local_path(self.path) is None else FileVersion.of(file.fileno())

    def _text(self, file: Any) -> Iterator[bytes]:
        start = file.read(len(_ZSTD))
        file.seek(0)
        if start.startswith(_GZIP):
            yield from self._of_gzip(file)
        elif start == _ZSTD:
            yield from self._of_zstd(file)
        elif not start and self.path.lower().endswith(_COMPRESSED):
            raise ShardCorruptError(self.path, "the file is empty, and its name says that it is compressed")
        else:
            yield from iter(lambda: file.read(_CHUNK_BYTES), b"")

    def _of_gzip(self, file: Any) -> Iterator[bytes]:
        try:
            with gzip.GzipFile(fileobj=file) as text:
                while chunk := text.read(_CHUNK_BYTES):
                    yield chunk
        except genuine(EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ShardCorruptError(self.path, f"gzip: {error}") from error

    def _of_zstd(self, file: Any) -> Iterator[bytes]:
        zstandard = required("zstandard", "json")
        decompressor = zstandard.ZstdDecompressor()
        frame: Any = None  # the current one
        try:
            while chunk := file.read(_CHUNK_BYTES):
                for start in range(0, len(chunk), _ZSTD_PIECE_BYTES):
                    piece = chunk[start : start + _ZSTD_PIECE_BYTES]
                    while piece:
                        frame = frame or decompressor.decompressobj()
                        text = frame.decompress(piece)
                        piece, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
                        if text:
                            yield text
        except genuine(zstandard.ZstdError) as error:
            raise ShardCorruptError(self.path, f"zstd: {error}") from error
        if frame is not None:
            raise ShardCorruptError(self.path, "zstd: the file ends in the middle of a frame")
