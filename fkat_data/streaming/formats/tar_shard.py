"""Tar files of webdataset as shards."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch

from fkat_data.archives.member_decoding import DECODERS
from fkat_data.archives.tar_samples import TarIndex
from fkat_data.streaming.formats.entry import FileInfo, ShardEntry
from fkat_data.streaming.formats.mapping import MapRegister, mapped
from fkat_data.streaming.formats.part_reader import PartOptions, PartReader
from fkat_data.streaming.formats.reader import checked_rows, dicts_of

__all__ = ["TarReader"]

_HOP_BYTES = 4 << 10


class TarReader(PartReader):
    """An open tar file. Its headers are read when the first of its rows is read, and again if they were dropped since.

    Args:
        directory: Directory of the dataset, or of its cache.
        entry: The shard.
        register: Records the file as mapped.
        **options: The other arguments of ``PartReader``.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: The file's size contradicts the index.
    """

    def __init__(
        self, directory: Path, entry: ShardEntry, *, register: MapRegister | None = None, **options: Unpack[PartOptions]
    ) -> None:
        super().__init__(directory, entry, **options)
        origin = self._origin
        self._content = mapped(self._path, FileInfo(origin.name, origin.size_bytes), register)
        self._key = (str(self._path), origin.size_bytes, origin.version)
        self._decoders = {
            column.name: _decoder(column.encoding, self._arrays, self._writable) for column in entry.columns
        }
        self._check_version()

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
            raise self._written_again()
        return index, index.size_bytes


def _decoder(name: str, arrays: str, is_writable: bool) -> Callable[[bytes], Any]:
    decode = DECODERS[name]
    if name == "npy" and arrays == "torch":
        return lambda content: torch.from_numpy(np.array(decode(content)))
    return decode if name != "npy" or not is_writable else lambda content: decode(content).copy()
