"""Files of a shard as memory, and the offsets in them, checked once when they are opened."""

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ShardCorruptError, ShardNotFoundError
from fkat_data.streaming.formats.entry import FileInfo
from fkat_data.streaming.formats.hashing import check_size

__all__ = ["mapped", "offsets_of"]

_OFFSET_BYTES = 4


def mapped(path: Path, info: FileInfo) -> memoryview:
    """Return a file's bytes, read-only: pages come into memory when they are looked at.

    The map outlives the file's name: who deletes the file breaks no reader.

    Raises:
        ShardNotFoundError: There is no such file.
        ShardCorruptError: It is not as long as its index says, or no file.
        OSError: It cannot be read.
    """
    check_size(path, info)
    if not info.bytes:
        return memoryview(b"")
    try:
        with path.open("rb", buffering=0) as file:
            # The length is given: a file that has become shorter since raises here.
            return memoryview(mmap.mmap(file.fileno(), info.bytes, access=mmap.ACCESS_READ))
    except FileNotFoundError as error:
        raise ShardNotFoundError(str(path), "no such file") from error
    except ValueError as error:
        raise ShardCorruptError(str(path), f"it became shorter than {info.bytes} bytes while it was opened") from error


def offsets_of(path: Path, content: memoryview, num_samples: int, data_bytes: int) -> npt.NDArray[np.int64]:
    """Return where samples begin and end: sample *i* from ``offsets[i]`` to ``offsets[i + 1]``.

    Args:
        path: The file that they are in, for messages.
        content: Its bytes: the number of samples, then the offsets.
        num_samples: As the index has it.
        data_bytes: Size of the file that the offsets are about: they end there.

    Raises:
        ShardCorruptError: The number is another one, or the offsets do not rise from sample to sample up to the end.
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
        place = int(falling[0])
        expected = f"at least offsets[{place}] = {offsets[place]}"
        raise ShardCorruptError.of_field(path, f"offsets[{place + 1}]", expected, int(offsets[place + 1]))
    if offsets[-1] != data_bytes:
        expected = f"{data_bytes}, where the data end"
        raise ShardCorruptError.of_field(path, f"offsets[{num_samples}]", expected, int(offsets[-1]))
    return offsets
