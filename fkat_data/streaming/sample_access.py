"""Samples by their numbers, as the user's code makes them: a ``transform``, or what a subclass overrides; and a map-style dataset of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from fkat_data.errors import arguments
from fkat_data.errors.sample_errors import early_end
from fkat_data.errors.wording import Described, redacted_location
from fkat_data.files.shard import ShardEntry
from fkat_data.files.tar import DecoderName
from fkat_data.runtime.interruption import genuine
from fkat_data.seeding import call_in_rng_scope
from fkat_data.storage.location import resolved
from fkat_data.streaming.epoch.rank_batches import PickedSamples
from fkat_data.streaming.order.spans import Spanner
from fkat_data.streaming.reading.catalog import Catalog
from fkat_data.streaming.reading.open_shards import OpenShards, index_tree
from fkat_data.streaming.reading.stream import Stream

_Integers = npt.NDArray[np.int64]


class SampleMaker:
    """What makes samples as the user's code does.

    Where a subclass, an instance or a patch overrides ``__getitem__`` or ``get_item``, every sample comes from there.
    Where only ``__getitems__`` is overridden, batches come from there.

    Args:
        dataset: The dataset.
        shards: Its shards.
        transform: Its ``transform``.
    """

    def __init__(
        self, dataset: "SampleAccess", shards: OpenShards, transform: Callable[[Any], Any] | None = None
    ) -> None:
        self._dataset = dataset
        self.shards: OpenShards = shards
        self.transform: Callable[[Any], Any] | None = transform

    @property
    def has_user_code(self) -> bool:
        """Whether user code makes the samples: a ``transform``, or an override."""
        return self.transform is not None or is_overridden(self._dataset, "__getitem__", "get_item", "__getitems__")

    def picked(self, picks: PickedSamples) -> Iterator[Any]:
        """Yield the samples of a batch, each made at its position. If one fails, those before it still come first."""
        dataset = self._dataset
        if not is_overridden(dataset, "__getitems__") or is_overridden(dataset, "__getitem__", "get_item"):
            yield from self.one_by_one(picks)
        elif len(picks.ids):
            together = partial(dataset.__getitems__, picks.ids.tolist())
            if picks.positions is not None:
                together = partial(call_in_rng_scope, picks.seed, int(picks.positions[0]), together)
            yield from _made(together)

    def one_by_one(self, picks: PickedSamples) -> Iterator[Any]:
        """Yield the samples of a batch without ``__getitems__``, see ``picked``."""
        make: Callable[[Any], Any] | None = self.transform
        made_of: Iterable[Any] = ()
        if is_overridden(self._dataset, "__getitem__", "get_item"):
            # As an attribute, so that an instance's own is found.
            make, made_of = self._dataset.__getitem__, picks.ids.tolist()
        else:
            made_of = self.shards.in_turn(picks.ids)
        if make is None:
            yield from made_of
        elif picks.positions is None:
            for given in made_of:
                yield _made(make, given)
        else:
            for position, given in zip(picks.positions.tolist(), made_of, strict=True):
                yield _made(call_in_rng_scope, picks.seed, position, make, given)


class SampleAccess:
    """The methods that return samples by their numbers."""

    @property
    def size(self) -> int:
        """Number of samples, each counted once."""
        raise NotImplementedError

    @property
    def _sample_maker(self) -> SampleMaker:
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Any:
        """Return a sample by its number, or samples by a slice, or by a list or array of numbers, nested or not.

        Raises:
            IndexError: The sample does not exist.
            ConfigurationError: The index has another type.
            ShardCorruptError: A shard contradicts itself.
        """
        maker = self._sample_maker
        if maker.has_user_code:
            return index_tree(index, self.size, self.get_item, self._made)
        return index_tree(index, self.size, maker.shards.sample, maker.shards.samples)

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Return a sample by its number; fetch its shard if needed.

        Args:
            sample_id: From minus the number of samples to that number minus 1.
            retry: Accepted for callers of other libraries, without effect: ``download_retry`` decides.

        Raises:
            IndexError: The sample does not exist.
            Exception: Why the shard could not be fetched, or what ``transform`` raises.
        """
        arguments.integer("retry", retry, minimum=0)
        number, maker = arguments.integer("sample_id", sample_id), self._sample_maker
        sample = index_tree(number, self.size, maker.shards.sample, maker.shards.samples)
        return sample if maker.transform is None else maker.transform(sample)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return samples by their numbers, read together unless ``__getitem__`` or ``get_item`` is overridden."""
        return index_tree(list(indices), self.size, self.get_item, self._made)

    def _made(self, sample_ids: _Integers) -> list[Any]:
        # Not by `__getitems__`, which may be what asks.
        return list(self._sample_maker.one_by_one(PickedSamples(sample_ids)))


def _made(make: Callable[..., Any], *given: Any) -> Any:
    """Return what code of the user's makes, whose StopIteration does not pass for the end of the samples."""
    try:
        return make(*given)
    except genuine(StopIteration) as error:
        raise early_end("the dataset") from error


#: Before anybody patches them.
_OWN = {name: vars(SampleAccess)[name] for name in ("__getitem__", "get_item", "__getitems__")}


def is_overridden(dataset: SampleAccess, *names: str) -> bool:
    """Return whether a subclass, the instance or a patch overrides one of these methods of ``SampleAccess``."""
    return any(getattr(getattr(dataset, name, None), "__func__", None) is not _OWN[name] for name in names)


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
        tokens: How files of tokens become samples; see ``Stream``.

    Raises:
        ConfigurationError: An argument is invalid, or a column holds pickles.
        ShardNotFoundError: The directory has no index.
        ShardCorruptError: The index is malformed.
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
        tokens: Mapping[str, Any] | None = None,
    ) -> None:
        self.local: str = resolved("local", local, "the path of a directory")
        arguments.choice("arrays", arrays, ("numpy", "torch"))
        self._transform = None if transform is None else arguments.function("transform", transform)
        self.split: str = split or ""
        self._catalog = Catalog(
            [Stream(local=self.local, split=split, columns=columns, decode=decode, tokens=tokens)],
            allow_unsafe_types=arguments.boolean("allow_unsafe_types", allow_unsafe_types),
        )
        self._shards = OpenShards(
            self._catalog,
            allow_unsafe_types=allow_unsafe_types,
            arrays=arrays,
            writable=arguments.boolean("writable", writable),
        )

    @property
    def _sample_maker(self) -> SampleMaker:
        return SampleMaker(self, self._shards, self._transform)

    @property
    def size(self) -> int:
        """Number of samples."""
        return self._catalog.num_samples

    @property
    def num_samples(self) -> int:
        """The same as ``size``."""
        return self._catalog.num_samples

    @property
    def shards(self) -> list[ShardEntry]:
        """The entries of the shards in the index."""
        return self._catalog.entries

    @property
    def spanner(self) -> Spanner:
        """Maps a sample's number to its shard and row: ``spanner[number]``."""
        return self._catalog.spanner

    @property
    def of_files(self) -> Catalog:
        """The object that writes into a state what the files of tokens were, and checks it at a load."""
        return self._catalog

    def _repr_facts(self) -> Iterator[tuple[str, object]]:
        yield "local", redacted_location(self.local)
        yield "split", self.split
        yield "num_samples", self._catalog.num_samples
        yield "num_shards", len(self._catalog.entries)

    def __iter__(self) -> Iterator[Any]:
        """Yield the samples in order; by indices alone, an ``IndexError`` of ``transform`` would end them in silence."""
        return (self[index] for index in range(len(self)))

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._catalog.num_samples
