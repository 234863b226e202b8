"""Compression of whole files by the names that an index gives it; decompression that stops at the stated size."""

import bz2
import contextlib
import gzip
import secrets
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.requirement import required
from fkat_data.streaming.formats.entry import FileInfo
from fkat_data.streaming.formats.files import file_size

__all__ = ["COMPRESSIONS", "FAMILIES", "Family", "compress", "decompress_file", "decompress_into", "extension_of"]

_CHUNK_BYTES = 1 << 20
#: What snappy can make of a byte is bounded: a copy of 64 bytes takes 3.
_SNAPPY_GROWTH = 22


class Family(NamedTuple):
    """One kind of compression, at any level.

    Attributes:
        compress: From bytes and level to bytes.
        decompressed: From an open file, and the size that its content should have, to the content in pieces.
        levels: Levels that there are; empty if there is but one.
        default_level: The level where none is named.
    """

    compress: Callable[[bytes, int], bytes]
    decompressed: Callable[[BinaryIO, int], Iterator[bytes]]
    levels: range
    default_level: int


def _brotli(data: bytes, level: int) -> bytes:
    return required("brotli", "streaming").compress(data, quality=level)


def _of_brotli(file: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    del size_bytes
    brotli = required("brotli", "streaming")
    decompressor = brotli.Decompressor()
    try:
        while not decompressor.is_finished():
            chunk = file.read(_CHUNK_BYTES) if decompressor.can_accept_more_data() else b""
            text = decompressor.process(chunk, output_buffer_limit=_CHUNK_BYTES)
            if not chunk and not text and decompressor.can_accept_more_data():
                raise _BrokenError("it ends too early")
            yield text
    except brotli.error as error:
        raise _BrokenError(str(error)) from error
    if file.read(1):
        raise _BrokenError("more bytes follow its end")


def _of_file(open_file: Callable[[BinaryIO], Any]) -> Callable[[BinaryIO, int], Iterator[bytes]]:
    def decompressed(file: BinaryIO, size_bytes: int) -> Iterator[bytes]:
        del size_bytes
        try:
            with open_file(file) as text:
                while chunk := text.read(_CHUNK_BYTES):
                    yield chunk
        except (OSError, EOFError, ValueError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's error, and not the data's
            raise _BrokenError(str(error)) from error

    return decompressed


def _gzip(data: bytes, level: int) -> bytes:
    # No time of day in the file: the same data make the same bytes.
    return gzip.compress(data, level, mtime=0)


def _snappy(data: bytes, level: int) -> bytes:
    del level
    return bytes(required("cramjam", "streaming").snappy.compress_raw(data))


def _of_snappy(file: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    # The raw format cannot be read in pieces, and says at its start how much memory it wants.
    cramjam = required("cramjam", "streaming")
    data = file.read()
    try:
        stated_bytes: int = cramjam.snappy.decompress_raw_len(data)
        if stated_bytes != size_bytes or stated_bytes > _SNAPPY_GROWTH * len(data) + 64:
            raise _BrokenError(f"it says that it holds {stated_bytes} bytes")
        yield bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise _BrokenError(str(error)) from error


def _zstd(data: bytes, level: int) -> bytes:
    return required("zstandard", "streaming").ZstdCompressor(level=level).compress(data)


def _of_zstd(file: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    del size_bytes
    zstandard = required("zstandard", "streaming")
    try:
        with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=False) as text:
            while chunk := text.read(_CHUNK_BYTES):
                yield chunk
    except zstandard.ZstdError as error:
        raise _BrokenError(str(error)) from error


#: Every family by its name, which is also what the names of its files end in.
FAMILIES = {
    "br": Family(_brotli, _of_brotli, range(12), 11),
    "bz2": Family(bz2.compress, _of_file(bz2.BZ2File), range(1, 10), 9),
    "gz": Family(
        _gzip,
        _of_file(lambda file: gzip.GzipFile(fileobj=file)),
        range(10),
        9,
    ),
    "snappy": Family(_snappy, _of_snappy, range(0), 0),
    "zstd": Family(_zstd, _of_zstd, range(1, 23), 3),
}

#: Every name that a writer takes: a family, or a family and its level.
COMPRESSIONS = tuple(
    name
    for family, settings in FAMILIES.items()
    for name in (family, *(f"{family}:{level}" for level in settings.levels))
)


class _BrokenError(Exception):
    """Compressed bytes make no sense; whoever knows the file says so."""


def extension_of(compression: str) -> str:
    """Return what the names of such files end in, without a dot.

    Raises:
        ConfigurationError: There is no such compression.
    """
    return _family_of(compression)


def compress(data: bytes, compression: str) -> bytes:
    """Return bytes compressed.

    Args:
        data: What to compress.
        compression: One of ``COMPRESSIONS``.

    Raises:
        ConfigurationError: It is none of them, or needs a package that is not installed.
    """
    if compression not in COMPRESSIONS:
        raise ConfigurationError("compression", compression, f"one of {', '.join(COMPRESSIONS)}")
    family, _, level = compression.partition(":")
    settings = FAMILIES[family]
    return settings.compress(data, int(level) if level else settings.default_level)


def decompress_into(compression: str, source: Path, output: BinaryIO, raw: FileInfo) -> None:
    """Write a compressed file's content into an open file.

    It takes about 2 MiB of memory (snappy: the file; zstd: its window, 128 MiB at most), and never writes more than
    ``raw.bytes``.

    Args:
        compression: As the index has it.
        source: The compressed file.
        output: Where the content goes, from its position on.
        raw: What the index says of the content.

    Raises:
        ConfigurationError: There is no such compression, or it needs a package that is not installed.
        ShardNotFoundError: ``source`` does not exist.
        ShardCorruptError: Its bytes make no sense, or hold more or less than the index says.
        OSError: ``output`` cannot be written.
    """
    family = _family_of(compression)
    file_size(source)
    size_bytes = 0
    try:
        with source.open("rb") as file:
            for chunk in FAMILIES[family].decompressed(file, raw.bytes):
                size_bytes += len(chunk)
                if size_bytes > raw.bytes:
                    break
                output.write(chunk)
    except _BrokenError as error:
        raise ShardCorruptError(str(source), f"{family}: {error}") from error
    if size_bytes != raw.bytes:
        found = f"<more than {raw.bytes}>" if size_bytes > raw.bytes else size_bytes
        raise ShardCorruptError.of_field(source, "size of its content in bytes", f"{raw.bytes}, as in the index", found)


def decompress_file(compression: str, source: Path, target: Path, raw: FileInfo) -> None:
    """Write a compressed file's content to another file, which is there only when it is complete.

    Args:
        compression: As the index has it.
        source: The compressed file.
        target: Where the content goes; replaced if it is there.
        raw: What the index says of the content.

    Raises:
        ConfigurationError: There is no such compression, or it needs a package that is not installed.
        ShardNotFoundError: ``source`` does not exist.
        ShardCorruptError: Its bytes make no sense, or hold more or less than the index says.
        OSError: ``target`` cannot be written.
    """
    _family_of(compression)
    file_size(source)
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as output:
            decompress_into(compression, source, output, raw)
        temporary.replace(target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def _family_of(compression: str) -> str:
    family = compression.partition(":")[0]
    if family not in FAMILIES:
        raise ConfigurationError("compression", compression, f"one of {', '.join(COMPRESSIONS)}")
    return family
