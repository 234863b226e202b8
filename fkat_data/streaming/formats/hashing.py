"""Hashes of files by the names that an index gives them, and the check of a file against its index."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.requirement import required
from fkat_data.streaming.formats.entry import FileInfo
from fkat_data.streaming.formats.files import file_size

__all__ = ["HASHES", "check_size", "hash_of", "new_hash", "validate_file"]

_CHUNK_BYTES = 1 << 20
_OF_XXHASH = ("xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128")
_OF_HASHLIB = (
    *("blake2b", "blake2s", "md5", "sha1", "sha224", "sha256", "sha384", "sha512"),
    *("sha3_224", "sha3_256", "sha3_384", "sha3_512"),
)

#: Every algorithm that a file can be hashed by.
HASHES = (*_OF_HASHLIB, *_OF_XXHASH)


def new_hash(algorithm: str) -> Any:
    """Return an object with ``update`` and ``hexdigest``, as those of ``hashlib``.

    Raises:
        ConfigurationError: There is no such algorithm, or it needs a package that is not installed.
    """
    if algorithm in _OF_XXHASH:
        return getattr(required("xxhash", "streaming"), algorithm)()
    if algorithm not in _OF_HASHLIB:
        raise ConfigurationError("hash", algorithm, f"one of {', '.join(HASHES)}")
    make: Callable[..., Any] = getattr(hashlib, algorithm)
    # No secret is kept by it: machines that forbid md5 for secrets allow this.
    return make(usedforsecurity=False)


def hash_of(data: bytes, algorithm: str) -> str:
    """Return the hash of some bytes as lower-case hexadecimal digits.

    Raises:
        ConfigurationError: There is no such algorithm.
    """
    made = new_hash(algorithm)
    made.update(data)
    return made.hexdigest()


def check_size(path: Path, info: FileInfo) -> None:
    """Return if a file is there and as long as its index says.

    Raises:
        ShardNotFoundError: There is no such file.
        ShardCorruptError: It is longer or shorter, or no file.
    """
    found = file_size(path)
    if found != info.bytes:
        raise ShardCorruptError.of_field(path, "size in bytes", f"{info.bytes}, as in the index", found)


def validate_file(path: Path, info: FileInfo, algorithm: str | None = None) -> None:
    """Return if a file has the size, and the hash, that its index says.

    Args:
        path: The file.
        info: What the index says of it.
        algorithm: Which hash to compute; None: compare the size alone.

    Raises:
        ConfigurationError: The index has no hash of that algorithm.
        ShardNotFoundError: There is no such file.
        ShardCorruptError: Its size or its hash differs.
    """
    check_size(path, info)
    if algorithm is None:
        return
    made = new_hash(algorithm)
    if algorithm not in info.hashes:
        there = ", ".join(info.hashes) or "none"
        raise ConfigurationError("validate_hash", algorithm, f"a hash that the index has of {path} ({there})")
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            made.update(chunk)
    if made.hexdigest() != info.hashes[algorithm]:
        expected = f"{info.hashes[algorithm]}, as in the index"
        raise ShardCorruptError.of_field(path, algorithm, expected, made.hexdigest())
