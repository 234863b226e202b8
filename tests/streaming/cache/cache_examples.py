"""Files whose content follows from their names, and caches of them."""

import hashlib
from pathlib import Path

from fkat_data.files.mapping import mapped
from fkat_data.files.shard import FileInfo
from fkat_data.streaming.cache.cache import Cache
from fkat_data.streaming.cache.cache_budget import CacheBudget
from fkat_data.streaming.cache.cache_directory import CacheDirectory
from fkat_data.streaming.cache.paths import BOOKKEEPING, MAKING
from fkat_data.streaming.cache.stock import Stock


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
    return sorted(str(path.relative_to(own)) for folder in (MAKING, "claims") for path in (own / folder).iterdir())


def recorded_and_counted(directory):
    """What the ledger says that the files take, None if it says that it does not know; and what they take."""
    directory = CacheDirectory(Path(directory))
    with directory.ledger() as ledger:
        recorded = None if ledger.counts is None else ledger.counts.total_bytes
        return recorded, sum(file.size_bytes for file in directory.files())


def is_exact(directory):
    """Whether the ledger says what the files take, or that it does not know; what is counted then is recorded."""
    recorded, counted = recorded_and_counted(directory)
    with Stock(CacheDirectory(Path(directory)), None) as stock:
        return recorded in (None, counted) and stock.total_bytes == counted


def map_from(cache, name, size_bytes):
    """Map a file as readers of shards do."""
    return mapped(cache.directory / name, FileInfo(name, size_bytes), cache.mapped_files)
