"""Stored files: their size, their hash, and their compression, by the names in the index."""

import bz2
import gzip
import hashlib
import os
import secrets
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardError, ShardNotFoundError
from fkat_data.files.shard import FileInfo
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.runtime.machine import path_in_file_system, required


def named(error: OSError, path: str) -> OSError:
    """Return an error of the operating system with the file in it, which reads of an open one do not name."""
    if error.filename is None and error.errno is not None:
        error.filename = path
    return error


def file_size(path: Path) -> int:
    """Return a regular file's size in bytes. Refuse pipes and devices, which could block forever when opened.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: The path is a directory, a pipe or a device.
    """
    try:
        found = path.stat()
    except genuine(FileNotFoundError, NotADirectoryError) as error:
        raise ShardNotFoundError(str(path), "no such file") from error
    if not stat.S_ISREG(found.st_mode):
        raise ShardCorruptError(str(path), "not a regular file")
    return found.st_size


def directory_key(path: Path) -> object:
    """Return what two paths have in common if they lead to one directory: by links, bind mounts or relative paths.

    Its device and inode are not enough: where a file server shows Btrfs, the root of every subvolume has the same ones.

    Raises:
        OSError: There is no such directory.
    """
    real = os.path.realpath(path)
    found = path.stat()
    # Some file systems do not tell letters from capital ones.
    return found.st_dev, found.st_ino, path_in_file_system(real).casefold()


def is_same_path(first: Path, second: Path) -> bool:
    """Return whether two paths lead to one file or directory, whatever their spelling, even before it exists.

    Symbolic links, relative paths and bind mounts do not matter; two hard links are one file.
    """
    try:
        is_one = first.samefile(second)
        return is_one and (not first.is_dir() or directory_key(first) == directory_key(second))
    except genuine(OSError):
        # Unlike Path.resolve, this does not raise for links that lead in a circle.
        first, second = Path(os.path.realpath(first)), Path(os.path.realpath(second))
    if first == second:
        return True
    if first.name != second.name or first.parent == first or second.parent == second:
        return False
    return is_same_path(first.parent, second.parent)


_CHUNK_BYTES = 1 << 20
_XXHASH_ALGORITHMS = ("xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128")
_HASHLIB_ALGORITHMS = (
    *("blake2b", "blake2s", "md5", "sha1", "sha224", "sha256", "sha384", "sha512"),
    *("sha3_224", "sha3_256", "sha3_384", "sha3_512"),
)

#: Every hash algorithm.
HASHES = (*_HASHLIB_ALGORITHMS, *_XXHASH_ALGORITHMS)


def new_hash(algorithm: str) -> Any:
    """Return a hash object with the ``update`` and ``hexdigest`` of ``hashlib``.

    Raises:
        ConfigurationError: The algorithm is unknown, or needs a package that is not installed.
    """
    if algorithm in _XXHASH_ALGORITHMS:
        return getattr(required("xxhash", "streaming"), algorithm)()
    if algorithm not in _HASHLIB_ALGORITHMS:
        raise ConfigurationError("hash", algorithm, f"one of {', '.join(HASHES)}")
    make: Callable[..., Any] = getattr(hashlib, algorithm)
    # These hashes protect no secret. Saying so allows md5 on machines that forbid it for security.
    return make(usedforsecurity=False)


def hash_of(data: bytes, algorithm: str) -> str:
    """Return the hash of some bytes as lower-case hexadecimal digits.

    Raises:
        ConfigurationError: The algorithm is unknown, or needs a package that is not installed.
    """
    made = new_hash(algorithm)
    made.update(data)
    return made.hexdigest()


def check_size(path: Path, info: FileInfo) -> None:
    """Check that a file exists and has the size in the index.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: The size differs, or the path is not a regular file.
    """
    found = file_size(path)
    if found != info.bytes:
        raise ShardCorruptError.of_field(path, "size in bytes", f"{info.bytes}, as in the index", found)


def hash_in_index(info: FileInfo, algorithm: str, shown: object) -> str:
    """Return the hash that the index has of a file.

    Raises:
        ConfigurationError: It has none by this algorithm.
    """
    if algorithm not in info.hashes:
        known = ", ".join(info.hashes) or "none"
        raise ConfigurationError("validate_hash", algorithm, f"a hash that the index has for {shown} ({known})")
    return info.hashes[algorithm]


def validate_file(path: Path, info: FileInfo, algorithm: str | None = None) -> None:
    """Check that a file has the size and the hash in the index.

    Args:
        path: Path of the file.
        info: The index's description of the file.
        algorithm: The hash to compare; None to compare only the size.

    Raises:
        ConfigurationError: The algorithm is unknown, or the index lacks this hash.
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: The size or the hash differs.
    """
    check_size(path, info)
    if algorithm is None:
        return
    made = new_hash(algorithm)
    digest = hash_in_index(info, algorithm, path)
    try:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                made.update(chunk)
    except genuine(FileNotFoundError) as error:
        # A cache may evict it at any time.
        raise ShardNotFoundError(str(path), "no such file") from error
    except genuine(OSError) as error:
        raise named(error, str(path)) from None
    if made.hexdigest() != digest:
        expected = f"{digest}, as in the index"
        raise ShardCorruptError.of_field(path, algorithm, expected, made.hexdigest())


#: Upper bound of snappy's compression ratio: it encodes a copy of 64 bytes in 3.
_SNAPPY_GROWTH = 22


class Family(NamedTuple):
    """A compression algorithm with its levels.

    Attributes:
        compress: Function from bytes and level to compressed bytes.
        decompressed: Function from an open file and the expected size of its content to the content in chunks.
        levels: Valid levels; empty if the algorithm has none.
        default_level: Level to use if the name states none.
    """

    compress: Callable[[bytes, int], bytes]
    decompressed: Callable[[BinaryIO, int], Iterator[bytes]]
    levels: range
    default_level: int


def _compress_brotli(data: bytes, level: int) -> bytes:
    return required("brotli", "streaming").compress(data, quality=level)


def _brotli_chunks(file: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    del size_bytes
    brotli = required("brotli", "streaming")
    decompressor = brotli.Decompressor()
    try:
        while not decompressor.is_finished():
            chunk = file.read(_CHUNK_BYTES) if decompressor.can_accept_more_data() else b""
            text = decompressor.process(chunk, output_buffer_limit=_CHUNK_BYTES)
            if not chunk and not text and decompressor.can_accept_more_data():
                raise _BrokenError("the data end too early")
            yield text
    except genuine(brotli.error) as error:
        raise _BrokenError(str(error)) from error
    if file.read(1):
        raise _BrokenError("extra bytes follow the compressed data")


def _file_chunks(open_file: Callable[[BinaryIO], Any]) -> Callable[[BinaryIO, int], Iterator[bytes]]:
    def decompressed(file: BinaryIO, size_bytes: int) -> Iterator[bytes]:
        del size_bytes
        try:
            with open_file(file) as text:
                while chunk := text.read(_CHUNK_BYTES):
                    yield chunk
        except genuine(OSError, EOFError, ValueError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk failed; the data may be intact
            raise _BrokenError(str(error)) from error

    return decompressed


def _compress_gzip(data: bytes, level: int) -> bytes:
    # Without a timestamp, the same data give the same bytes.
    return gzip.compress(data, level, mtime=0)


def _compress_snappy(data: bytes, level: int) -> bytes:
    del level
    return bytes(required("cramjam", "streaming").snappy.compress_raw(data))


def _snappy_chunks(file: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    # The raw format cannot be read in chunks. Its header states how much memory decompression allocates.
    cramjam = required("cramjam", "streaming")
    data = file.read()
    try:
        stated_bytes: int = cramjam.snappy.decompress_raw_len(data)
        if stated_bytes != size_bytes or stated_bytes > _SNAPPY_GROWTH * len(data) + 64:
            raise _BrokenError(f"its header states {stated_bytes} decompressed bytes")
        yield bytes(cramjam.snappy.decompress_raw(data))
    except genuine(cramjam.DecompressionError) as error:
        raise _BrokenError(str(error)) from error


#: What zstd says of memory that it does not get.
NO_MEMORY = "not enough memory"
#: The largest window that a file of zstd may have, as ``zstd --long=31`` writes it. Only what its text fills is used.
ZSTD_WINDOW_BYTES = 1 << 31


def _compress_zstd(data: bytes, level: int) -> bytes:
    return required("zstandard", "streaming").ZstdCompressor(level=level).compress(data)


def _zstd_chunks(file: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    del size_bytes
    zstandard = required("zstandard", "streaming")
    try:
        decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
        with decompressor.stream_reader(file, read_across_frames=True, closefd=False) as text:
            while chunk := text.read(_CHUNK_BYTES):
                yield chunk
    except genuine(zstandard.ZstdError) as error:
        raise _BrokenError(str(error)) from error


#: Every family by its name, which is also the extension of its files.
FAMILIES = {
    "br": Family(_compress_brotli, _brotli_chunks, range(12), 11),
    "bz2": Family(bz2.compress, _file_chunks(bz2.BZ2File), range(1, 10), 9),
    "gz": Family(
        _compress_gzip,
        _file_chunks(lambda file: gzip.GzipFile(fileobj=file)),
        range(10),
        9,
    ),
    "snappy": Family(_compress_snappy, _snappy_chunks, range(0), 0),
    "zstd": Family(_compress_zstd, _zstd_chunks, range(1, 23), 3),
}

#: Every name that a writer accepts: a family such as "zstd", or a family and a level such as "zstd:7".
COMPRESSIONS = tuple(
    name
    for family, settings in FAMILIES.items()
    for name in (family, *(f"{family}:{level}" for level in settings.levels))
)
_EXPECTED = (
    ", ".join(
        f"{family} or {family}:{settings.levels[0]} to {family}:{settings.levels[-1]}" if settings.levels else family
        for family, settings in FAMILIES.items()
    )
    + "; None for no compression"
)


class _BrokenError(Exception):
    """Compressed bytes are invalid. The caller adds the file's name."""


def checked_compression(compression: object) -> str:
    """Return the name of a compression.

    Raises:
        ConfigurationError: It is unknown.
    """
    if not isinstance(compression, str) or compression not in COMPRESSIONS:
        raise ConfigurationError("compression", compression, _EXPECTED)
    return compression


def extension_of(compression: str) -> str:
    """Return the extension of files with this compression, without a dot: the name of its family.

    Raises:
        ConfigurationError: The compression is unknown.
    """
    family = compression.partition(":")[0]
    if family not in FAMILIES:
        raise ConfigurationError("compression", compression, _EXPECTED)
    return family


def compress(data: bytes, compression: str) -> bytes:
    """Return the compressed bytes.

    Args:
        data: Bytes to compress.
        compression: One of ``COMPRESSIONS``.

    Raises:
        ConfigurationError: The compression is unknown, or needs a package that is not installed.
    """
    checked_compression(compression)
    family, _, level = compression.partition(":")
    settings = FAMILIES[family]
    return settings.compress(data, int(level) if level else settings.default_level)


def decompress_into(compression: str, source: Path, output: BinaryIO, raw: FileInfo) -> None:
    """Write a compressed file's content into an open file.

    Write at most ``raw.bytes``, and use about 2 MiB of memory. (snappy needs memory for the whole file, zstd for its
    window, of at most 2 GiB.)

    Args:
        compression: The compression's name in the index.
        source: The compressed file.
        output: The file to write to, at its current position.
        raw: The index's description of the content.

    Raises:
        ConfigurationError: The compression is unknown, or needs a package that is not installed.
        ShardNotFoundError: ``source`` does not exist.
        ShardCorruptError: ``source`` is invalid, or its content is larger or smaller than the index states.
        ShardError: There is not enough memory.
        OSError: ``output`` cannot be written.
    """
    family = extension_of(compression)
    file_size(source)
    size_bytes = 0
    try:
        with source.open("rb") as file:
            for chunk in _named_reads(source, FAMILIES[family].decompressed(file, raw.bytes)):
                size_bytes += len(chunk)
                if size_bytes > raw.bytes:
                    break
                output.write(chunk)
    except _BrokenError as error:
        kind = ShardError if NO_MEMORY in str(error) else ShardCorruptError
        raise kind(str(source), f"{family}: {error}") from error
    if size_bytes != raw.bytes:
        found = f"<more than {raw.bytes}>" if size_bytes > raw.bytes else size_bytes
        raise ShardCorruptError.of_field(source, "decompressed size in bytes", f"{raw.bytes}, as in the index", found)


def _named_reads(source: Path, chunks: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from chunks
    except genuine(OSError) as error:
        raise named(error, str(source)) from None


def decompress_file(compression: str, source: Path, target: Path, raw: FileInfo) -> None:
    """Write a compressed file's content to another file, which appears only once it is complete.

    Args:
        compression: The compression's name in the index.
        source: The compressed file.
        target: Path of the file to write; an existing one is replaced.
        raw: The index's description of the content.

    Raises:
        ConfigurationError: The compression is unknown, or needs a package that is not installed.
        ShardNotFoundError: ``source`` does not exist.
        ShardCorruptError: ``source`` is invalid, or its content is larger or smaller than the index states.
        OSError: ``target`` cannot be written.
    """
    extension_of(compression)
    file_size(source)
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as output:
            decompress_into(compression, source, output, raw)
        temporary.replace(target)
    except genuine(OSError) as error:
        named(error, str(target))
        raise
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
