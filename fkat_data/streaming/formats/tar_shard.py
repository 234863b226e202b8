"""Tar files of webdataset as shards."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from fkat_data.archives.member_decoding import DECODERS
from fkat_data.archives.tar_samples import TarIndex
from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.streaming.formats.decoded_groups import DecodedGroups
from fkat_data.streaming.formats.entry import FileInfo, ShardEntry
from fkat_data.streaming.formats.mapping import MapRegister, mapped
from fkat_data.streaming.formats.reader import checked_rows, dicts_of

__all__ = ["TarReader"]

_HOP_BYTES = 4 << 10
_WRITTEN_AGAIN = "the file was written again after its index was made"


class TarReader:
    """An open tar file. Its headers are read when the first of its rows is read, and again if they were dropped since.

    Args:
        directory: Directory of the dataset, or of its cache.
        entry: The shard.
        arrays: Whether arrays of ``.npy`` members are NumPy arrays or torch tensors.
        writable: Whether NumPy arrays belong to the caller.
        decoded: Keeps where the members are.
        register: Records the file as mapped.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: The file's size contradicts the index.
    """

    def __init__(
        self,
        directory: Path,
        entry: ShardEntry,
        *,
        arrays: Literal["numpy", "torch"],
        writable: bool,
        decoded: DecodedGroups,
        register: MapRegister | None = None,
    ) -> None:
        origin = entry.raw_data.origin
        if origin is None:
            raise TypeError("a shard of a tar file is a part of a file")
        self.num_samples: int = entry.samples
        self._name = entry.name
        path = directory / entry.raw_data.basename
        self._content = mapped(path, FileInfo(origin.name, origin.size_bytes), register)
        self._key = (str(path), origin.size_bytes, origin.version)
        self._decoders = {column.name: _decoder(column.encoding, arrays, writable) for column in entry.columns}
        self._decoded = decoded
        # A part in a cache has a name of its own, which has the version in it.
        self._path, self._version = path, origin.version if entry.raw_data.basename == origin.name else ""
        self._check_version()

    def sample(self, row: int) -> dict[str, Any]:
        """Return a sample; see ``ShardReader``."""
        return self.samples([row])[0]

    def samples(self, rows: Sequence[int] | npt.NDArray[Any]) -> list[dict[str, Any]]:
        """Return samples; see ``ShardReader``."""
        return dicts_of(self.column_arrays(rows))

    def column_arrays(self, rows: Sequence[int] | npt.NDArray[Any]) -> dict[str, npt.NDArray[Any] | list[Any]]:
        """Return each column's values as a list; see ``ShardReader``."""
        chosen: list[int] = checked_rows(rows, self.num_samples).tolist()
        index = self._decoded.group(self._key, self._scanned)
        return {
            name: index.values(self._name, name, chosen, self._read, decode) for name, decode in self._decoders.items()
        }

    def raw(self, row: int) -> memoryview:
        """Raise ``ConfigurationError``: the members of a sample have headers between them."""
        raise ConfigurationError("row", row, "a shard whose rows have bytes of their own: a tar file has members")

    def close(self) -> None:
        """Release the file; see ``ShardReader``."""
        self.num_samples = 0
        self._decoded.drop(self._key)
        self._content = memoryview(b"")

    def _read(self, start: int, stop: int) -> bytes:
        return bytes(self._content[start:stop])

    def _scanned(self) -> tuple[TarIndex, int]:
        index = TarIndex.of(self._name, self._read, len(self._content), _HOP_BYTES)
        # A process that writes into the file changes what is mapped.
        self._check_version()
        if len(index.keys) != self.num_samples:
            raise ShardCorruptError(self._name, _WRITTEN_AGAIN)
        return index, index.size_bytes

    def _check_version(self) -> None:
        """Check that a file that is read in place is the one that the index was made of."""
        if self._version and str(self._path.stat().st_mtime_ns) != self._version:
            raise ShardCorruptError(self._name, _WRITTEN_AGAIN)


def _decoder(name: str, arrays: str, is_writable: bool) -> Callable[[bytes], Any]:
    decode = DECODERS[name]
    if name == "npy" and arrays == "torch":
        return lambda content: torch.from_numpy(np.array(decode(content)))
    return decode if name != "npy" or not is_writable else lambda content: decode(content).copy()
