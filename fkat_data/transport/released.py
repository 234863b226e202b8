"""The pickle of a shipment whose content is in a loader's parent: a large one is released, but for a digest of it."""

import ctypes
import mmap
import os

LEAST_RELEASED_BYTES = 16 << 20
_END_BYTES = 8
_MARK, _DIGEST_BYTES = b"\0", 16  # a pickle begins with another byte
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


def release_pickle(descriptor: int, start: int, end: int) -> None:
    """Give back the memory of a pickle that was read, if that is large; its digest takes its place.

    Args:
        descriptor: The shipment's file.
        start: Where the pickle begins that the digest is of.
        end: Where it ends. Buffers follow, which stay.
    """
    if end < LEAST_RELEASED_BYTES:
        return
    digest = digest_of_pickle(descriptor, start)
    length = end // mmap.PAGESIZE * mmap.PAGESIZE
    mode = _KEEP_SIZE | _PUNCH_HOLE
    if ctypes.CDLL(None).fallocate(descriptor, mode, ctypes.c_int64(0), ctypes.c_int64(length)) == 0:
        os.pwrite(descriptor, _MARK + digest, 0)


def released_digest(descriptor: int) -> bytes:
    """Return the digest of a pickle that was released; empty: it is there."""
    found = os.pread(descriptor, len(_MARK) + _DIGEST_BYTES, 0)
    return found[len(_MARK) :] if found.startswith(_MARK) else b""


def digest_of_pickle(descriptor: int, start: int) -> bytes:
    """Return a digest of a shipment's pickle and of the buffers behind it.

    Args:
        descriptor: The shipment's file.
        start: Where the pickle begins.
    """
    # Imported here, because most processes digest nothing.
    import xxhash  # noqa: PLC0415 - see above

    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as file, memoryview(file) as content:
        table_start = int.from_bytes(content[-_END_BYTES:], "little")
        with content[start:table_start] as part:
            return xxhash.xxh3_128(part).digest()
