"""A map-style dataset of shards on this machine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch.utils.data import Dataset

from fkat_data import arguments
from fkat_data.files.tar import DecoderName
from fkat_data.location import resolved
from fkat_data.streaming.reading.catalog import Catalog
from fkat_data.streaming.reading.open_shards import OpenShards
from fkat_data.streaming.reading.stream import Stream
from fkat_data.streaming.sample_access import SampleAccess
from fkat_data.wording import Described, place_of


class LocalDataset(Described, SampleAccess, Dataset[Any]):
    """A map-style dataset of the shards in a directory, to inspect them or to use with any sampler.

    Samples are dicts from column to value, in the order of writing. The dataset pickles without its open shards.

    Args:
        local: The directory; or Parquet or tar files: one, or a pattern such as ``data/*.parquet``.
        split: A directory within it.
        allow_unsafe_types: Whether columns of pickles may be read, which runs code of the files' author.
        arrays: Whether ``ndarray`` columns give NumPy arrays or torch tensors.
        writable: Whether arrays belong to the caller; otherwise they are read-only views of the shard.
        columns: The columns to read; None: all.
        transform: Called with each sample that is read; returns what the dataset gives instead. With
            ``fkat_data.item_generators`` its random draws are exact in a ``ShardedDataLoader``.
        decode: How members of tar files are decoded; see ``Stream``.

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
        transform: Callable[[Any], Any] | None = None,
        decode: Mapping[str, DecoderName] | DecoderName | None = None,
    ) -> None:
        self.local: str = resolved("local", local, "the path of a directory")
        arguments.choice("arrays", arrays, ("numpy", "torch"))
        self._transform = None if transform is None else arguments.function("transform", transform)
        self.split = split
        self._catalog = Catalog(
            [Stream(local=self.local, split=split, columns=columns, decode=decode)],
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

    def _repr_facts(self) -> Iterator[tuple[str, object]]:
        yield "local", place_of(self.local)
        yield "split", self.split
        yield "num_samples", self._catalog.num_samples
        yield "num_shards", len(self._catalog.entries)

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._catalog.num_samples
