"""A map-style dataset of shards on this machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from torch.utils.data import Dataset

from fkat_data import arguments
from fkat_data.errors import ConfigurationError
from fkat_data.streaming.reading.catalog import Catalog
from fkat_data.streaming.reading.index_tree import index_tree
from fkat_data.streaming.reading.open_shards import OpenShards
from fkat_data.streaming.reading.stream import Stream

__all__ = ["LocalDataset"]


class LocalDataset(Dataset[dict[str, Any]]):
    """A map-style dataset of the shards in a directory, to inspect them or to use with any sampler.

    Samples are dicts from column to value, in the order of writing. The dataset pickles without its open shards.

    Args:
        local: The directory; or Parquet files: one, or a pattern such as ``data/*.parquet``.
        split: A directory within it.
        allow_unsafe_types: Whether columns of pickles may be read, which runs code of the files' author.
        arrays: Whether ``ndarray`` columns give NumPy arrays or torch tensors.
        writable: Whether arrays belong to the caller; otherwise they are read-only views of the shard.
        columns: The columns to read; None: all.

    Raises:
        ConfigurationError: An argument is invalid, or a column holds pickles.
        ShardNotFoundError: The directory has no index.
        ShardCorruptError: The index is malformed, or has no samples.
    """

    def __init__(
        self,
        local: str | Path,
        split: str | None = None,
        *,
        allow_unsafe_types: bool = False,
        arrays: Literal["numpy", "torch"] = "numpy",
        writable: bool = False,
        columns: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(local, (str, Path)) or not str(local):
            raise ConfigurationError("local", local, "the path of a directory")
        arguments.choice("arrays", arrays, ("numpy", "torch"))
        self.local = str(local)
        self.split = split
        self._catalog = Catalog(
            [Stream(local=self.local, split=split, columns=columns)],
            allow_unsafe_types=arguments.boolean("allow_unsafe_types", allow_unsafe_types),
        )
        self._shards = OpenShards(
            self._catalog,
            allow_unsafe_types=allow_unsafe_types,
            arrays=arrays,
            writable=arguments.boolean("writable", writable),
        )

    @property
    def size(self) -> int:
        """Number of samples."""
        return self._catalog.num_samples

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._catalog.num_samples

    def __getitem__(self, index: Any) -> Any:
        """Return a sample by its number, or samples by a slice, or by a list or array of numbers, nested or not.

        Raises:
            IndexError: The sample does not exist.
            ConfigurationError: The index has another type.
            ShardCorruptError: A shard contradicts itself.
        """
        return index_tree(index, len(self), self._shards)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples by their numbers, read together."""
        return self[list(indices)]
