"""Files whose content follows from their names, and caches of them."""

import hashlib
import struct
from pathlib import Path

from fkat_data.files.mapping import mapped
from fkat_data.streaming.cache import Cache, CacheBudget
from fkat_data.streaming.formats import FileInfo

BOOKKEEPING = ".fkat_data"


def content(name, size_bytes):
    """What a file must hold: no two names, sizes or places look alike."""
    seed = hashlib.blake2b(f"{name} {size_bytes}".encode()).digest()
    blocks = (hashlib.blake2b(seed + number.to_bytes(4, "little")).digest() for number in range(size_bytes // 64 + 1))
    return b"".join(blocks)[:size_bytes]


def filler(name, size_bytes, calls=None):
    """Return what writes a file; every call is noted in ``calls``."""

    def fill(file):
        if calls is not None:
            calls.append(name)
        data = content(name, size_bytes)
        file.write(data[: size_bytes // 2])
        file.flush()
        file.write(data[size_bytes // 2 :])

    return fill


def is_shard(directory, name):
    """Whether a file may be removed; a function of a module, so that it pickles."""
    return name.endswith(".mds")


def cache_in(directory, limit_bytes=None, **options):
    return Cache(directory, CacheBudget([directory], limit_bytes, is_shard), **options)


def get(cache, name, size_bytes, calls=None, **options):
    return cache.get(name, size_bytes, filler(name, size_bytes, calls), **options)


def is_right(path, name, size_bytes):
    return Path(path).read_bytes() == content(name, size_bytes)


def shards_in(directory):
    """The names of the files that are there, without the cache's own."""
    paths = (path.relative_to(directory) for path in Path(directory).rglob("*") if path.is_file())
    return sorted(str(path) for path in paths if path.parts[0] != BOOKKEEPING)


def leftovers_in(directory):
    """Files that are being made, or were, and claims."""
    own = Path(directory) / BOOKKEEPING
    return sorted(str(path.relative_to(own)) for folder in ("making", "claims") for path in (own / folder).iterdir())


def counted_bytes(directory):
    """What the files that are there take."""
    return sum((Path(directory) / name).stat().st_size for name in shards_in(directory))


def recorded_bytes(directory):
    """What the cache has recorded that its files take; None if the record says that it does not know."""
    path = Path(directory) / BOOKKEEPING / "budget"
    record = path.read_bytes() if path.exists() else b""
    head, digest = record[:48], record[48:56]
    is_whole = len(head) == 48 and hashlib.blake2b(head, digest_size=8).digest() == digest
    return struct.unpack("<2Q4q", head)[2] if is_whole else None


def is_exact(directory):
    """Whether the record says what the files take, or that it does not know."""
    return recorded_bytes(directory) in (None, counted_bytes(directory))


def map_from(cache, name, size_bytes):
    """Map a file as readers of shards do."""
    return mapped(cache.directory / name, FileInfo(name, size_bytes), cache.mapped_files)
