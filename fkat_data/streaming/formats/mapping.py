"""A shard's files mapped into memory, and their offsets, which are checked once on opening."""

import mmap
import os
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ShardCorruptError, ShardNotFoundError
from fkat_data.interruption import genuine
from fkat_data.streaming.formats.entry import FileInfo
from fkat_data.streaming.formats.hashing import check_size
from fkat_data.streaming.formats.memory_map import map_file

_OFFSET_BYTES = 4


class MapRegister(Protocol):
    """Records which files this process has mapped."""

    def enter(self, path: Path, found: os.stat_result) -> object | None:
        """Record that this process maps a file; return what is to live as long as the map does.

        Args:
            path: The file's path.
            found: What ``fstat`` returned for the open file.

        Raises:
            FileNotFoundError: The path no longer leads to the file.
        """
        ...


def mapped(path: Path, info: FileInfo, register: MapRegister | None = None) -> memoryview:
    """Map a file into memory and return its bytes, read-only. The kernel loads pages on first access.

    The map outlives the file's name, so readers keep working after the file is deleted. It takes no descriptor.

    Args:
        path: The file.
        info: The index's description of it.
        register: Records the map as long as it exists; None: it is not recorded.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: The size differs from the index, or the path is not a regular file.
        OSError: The file cannot be read.
    """
    check_size(path, info)
    return _mapped(path, 0, info.bytes, register)


def mapped_span(path: Path, info: FileInfo, start: int, stop: int, register: MapRegister | None = None) -> memoryview:
    """Map the bytes of a file from ``start`` to ``stop``, and no others; see ``mapped``.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: The size differs from the index, or the path is not a regular file.
        OSError: The file cannot be read.
    """
    check_size(path, info)
    return _mapped(path, start, stop, register)


def _mapped(path: Path, start: int, stop: int, register: MapRegister | None) -> memoryview:
    if start >= stop:
        return memoryview(b"")
    first = start - start % mmap.ALLOCATIONGRANULARITY
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            # A map beyond the file's end would end the process at the first access.
            if found.st_size < stop:
                raise ShardCorruptError(str(path), f"the file shrank below {stop} bytes while it was opened")

            def enter() -> object | None:
                return register.enter(path, found) if register else None

            return map_file(descriptor, stop - first, enter, start=first)[start - first :]
        finally:
            os.close(descriptor)
    except genuine(FileNotFoundError) as error:
        raise ShardNotFoundError(str(path), "no such file") from error


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
