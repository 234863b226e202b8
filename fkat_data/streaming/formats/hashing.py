"""Hashes of files, by the names in the index, and checks of a file against the index."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.interruption import genuine
from fkat_data.requirement import required
from fkat_data.streaming.formats.entry import FileInfo
from fkat_data.streaming.formats.files import file_size

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
    if algorithm not in info.hashes:
        known = ", ".join(info.hashes) or "none"
        raise ConfigurationError("validate_hash", algorithm, f"a hash that the index has for {path} ({known})")
    try:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                made.update(chunk)
    except genuine(FileNotFoundError) as error:
        # A cache may evict it at any time.
        raise ShardNotFoundError(str(path), "no such file") from error
    if made.hexdigest() != info.hashes[algorithm]:
        expected = f"{info.hashes[algorithm]}, as in the index"
        raise ShardCorruptError.of_field(path, algorithm, expected, made.hexdigest())
