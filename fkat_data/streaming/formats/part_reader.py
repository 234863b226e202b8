"""The base of readers of files that come without an index: a shard is such a file, or a part of one."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy.typing as npt

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.interruption import genuine
from fkat_data.streaming.formats.decoded_groups import DecodedGroups
from fkat_data.streaming.formats.entry import Origin, ShardEntry


class PartOptions(TypedDict):
    """The options of ``PartReader``.

    Attributes:
        arrays: Whether arrays are NumPy arrays or torch tensors.
        writable: Whether NumPy arrays belong to the caller.
        decoded: Keeps what was decoded.
    """

    arrays: Literal["numpy", "torch"]
    writable: bool
    decoded: DecodedGroups


class PartReader(ABC):
    """An open part of a file. ``decoded`` keeps what its rows have in common, which is decoded when one is read.

    Args:
        directory: Directory of the dataset, or of its cache.
        entry: The shard.
        **options: See ``PartOptions``.
    """

    def __init__(self, directory: Path, entry: ShardEntry, **options: Unpack[PartOptions]) -> None:
        if entry.raw_data.origin is None:
            raise TypeError(f"a shard of format {entry.format!r} is a part of a file")
        self.num_samples: int = entry.samples
        self._name = entry.name
        self._origin: Origin = entry.raw_data.origin
        self._path = directory / entry.raw_data.basename
        self._is_in_place = entry.raw_data.basename == self._origin.name
        self._arrays: Literal["numpy", "torch"] = options["arrays"]
        self._writable = options["writable"]
        self._decoded = options["decoded"]

    def sample(self, row: int) -> dict[str, Any]:
        """Return a sample; see ``ShardReader``."""
        return self.samples([row])[0]

    @abstractmethod
    def samples(self, rows: Sequence[int] | npt.NDArray[Any]) -> list[dict[str, Any]]:
        """Return samples; see ``ShardReader``."""

    def raw(self, row: int) -> memoryview:
        """Raise ``ConfigurationError``: the bytes of a row are not side by side."""
        raise ConfigurationError("row", row, f"a shard whose rows have bytes of their own, unlike {self._name}")

    def _check_version(self) -> None:
        """Check that a file that is read in place is the one that the index was made of.

        Raises:
            ShardNotFoundError: The file does not exist.
            ShardCorruptError: It was written again.
        """
        # A part in a cache has a name of its own, which has the version in it.
        if not self._is_in_place or not self._origin.version:
            return
        try:
            found = str(self._path.stat().st_mtime_ns)
        except genuine(FileNotFoundError) as error:
            raise ShardNotFoundError(str(self._path), "no such file") from error
        if found != self._origin.version:
            raise self._written_again()

    def _written_again(self) -> ShardCorruptError:
        return ShardCorruptError(self._name, "the file was written again after its index was made")
