"""A shard's files mapped into memory, and their offsets, which are checked once on opening."""

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ShardCorruptError, ShardNotFoundError
from fkat_data.streaming.formats.entry import FileInfo
from fkat_data.streaming.formats.hashing import check_size

__all__ = ["mapped", "mapped_span", "offsets_of"]

_OFFSET_BYTES = 4


def mapped(path: Path, info: FileInfo) -> memoryview:
    """Map a file into memory and return its bytes, read-only. The kernel loads pages on first access.

    The map outlives the file's name, so readers keep working after the file is deleted.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: The size differs from the index, or the path is not a regular file.
        OSError: The file cannot be read.
    """
    check_size(path, info)
    if not info.bytes:
        return memoryview(b"")
    try:
        with path.open("rb", buffering=0) as file:
            # The explicit length makes mmap raise if the file has shrunk since the check.
            return memoryview(mmap.mmap(file.fileno(), info.bytes, access=mmap.ACCESS_READ))
    except FileNotFoundError as error:
        raise ShardNotFoundError(str(path), "no such file") from error
    except ValueError as error:
        raise ShardCorruptError(str(path), f"the file shrank below {info.bytes} bytes while it was opened") from error


def mapped_span(path: Path, info: FileInfo, start: int, stop: int) -> memoryview:
    """Map the bytes of a file from ``start`` to ``stop``, and no others; see ``mapped``.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: The size differs from the index, or the path is not a regular file.
        OSError: The file cannot be read.
    """
    check_size(path, info)
    if start >= stop:
        return memoryview(b"")
    first = start - start % mmap.ALLOCATIONGRANULARITY
    try:
        with path.open("rb", buffering=0) as file:
            content = mmap.mmap(file.fileno(), stop - first, access=mmap.ACCESS_READ, offset=first)
    except FileNotFoundError as error:
        raise ShardNotFoundError(str(path), "no such file") from error
    except ValueError as error:
        raise ShardCorruptError(str(path), f"the file shrank below {stop} bytes while it was opened") from error
    return memoryview(content)[start - first :]


def offsets_of(path: Path, content: memoryview, num_samples: int, data_bytes: int) -> npt.NDArray[np.int64]:
    """Return the offsets of samples: sample *i* has the bytes from ``offsets[i]`` to ``offsets[i + 1]``.

    Args:
        path: Path of the file with the offsets, for messages.
        content: Bytes of that file: the number of samples, then the offsets.
        num_samples: Number of samples in the index.
        data_bytes: Size of the file with the samples, where the offsets must end.

    Returns:
        The offsets: shape (num_samples + 1,), int64.

    Raises:
        ShardCorruptError: The number of samples differs, an offset is below the one before it, or the last is not
            ``data_bytes``.
    """
    after = _OFFSET_BYTES * (num_samples + 2)
    if len(content) < after:
        raise ShardCorruptError.of_field(path, "size in bytes", f"at least {after} for the offsets", len(content))
    stored = int.from_bytes(content[:_OFFSET_BYTES], "little")
    if stored != num_samples:
        raise ShardCorruptError.of_field(path, "number of samples", f"{num_samples}, as in the index", stored)
    offsets = np.frombuffer(content, "<u4", num_samples + 1, _OFFSET_BYTES).astype(np.int64)
    falling = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falling):
        index = int(falling[0])
        expected = f"at least offsets[{index}] = {offsets[index]}"
        raise ShardCorruptError.of_field(path, f"offsets[{index + 1}]", expected, int(offsets[index + 1]))
    if offsets[-1] != data_bytes:
        expected = f"{data_bytes}, where the data end"
        raise ShardCorruptError.of_field(path, f"offsets[{num_samples}]", expected, int(offsets[-1]))
    return offsets
