"""Views of datasets: a rank's part of one, several end to end or by their names, and a function on the samples of one."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Literal, Self, TypeVar, cast

from torch.utils.data import Dataset, IterableDataset

from fkat_data.datasets.item_index import InOrder, counted_from_start, is_map_style, items_at
from fkat_data.datasets.resumable import base_state, is_foreign, load_base_state
from fkat_data.errors import ConfigurationError, arguments
from fkat_data.errors.arguments import boolean, checked_state, choice, function, integer
from fkat_data.errors.sample_errors import (
    early_end,
    has_located_samples,
    note_source_location,
    note_source_locations,
    source_location_of,
)
from fkat_data.errors.wording import Described
from fkat_data.files.counted_file import CountedFile, counted_files_of
from fkat_data.runtime.interruption import genuine
from fkat_data.types import Prefetching

_Item_co = TypeVar("_Item_co", covariant=True)
_STATE_VERSION = 1
#: Fields that a state of d9d does not have, and the names of others there.
_NOT_IN_D9D = frozenset({"version", "indexing_mode", "pad_to_equal_size_across_shards"})
_FROM_D9D = {"dataset": "base_dataset"}


class ShardIndexingMode(StrEnum):
    """The assignment of items to views.

    Attributes:
        sequential: In turn: the second of four views has items 1, 5, 9, …
        chunked: In blocks: the second of four views of 14 items has items 4, 5, 6, 7, and the last one 12, 13.
    """

    sequential = "sequential"
    chunked = "chunked"


class ShardedDataset(InOrder, Described, Dataset[_Item_co]):
    """One rank's view of a dataset.

    With padding, each view has ``ceil(items / total_shards)`` items: missing ones repeat the dataset's last item, so
    that all ranks take the same number of steps. Without padding, the views are disjoint and together have every item
    once; with fewer items than views, some views are empty.

    Args:
        dataset: Any map-style dataset. Its length is read on each access, because it may grow.
        total_shards: Number of views, at least 1: the number of data-parallel ranks.
        current_shard: Index of this view, from 0 to ``total_shards - 1``.
        indexing_mode: How items are assigned to views, as ``ShardIndexingMode`` or its name.
        pad_to_equal_size_across_shards: Whether to give all views the same length.

    Raises:
        ConfigurationError: An argument is invalid.
    """

    def __init__(
        self,
        dataset: Dataset[_Item_co],
        total_shards: int,
        current_shard: int,
        indexing_mode: ShardIndexingMode | Literal["sequential", "chunked"],
        pad_to_equal_size_across_shards: bool,
    ) -> None:
        if not is_map_style(dataset):
            raise ConfigurationError("dataset", dataset, "a dataset with __len__() and __getitem__(index)")
        self._dataset: Any = dataset
        self._total_shards = integer("total_shards", total_shards, minimum=1)
        self._current_shard = integer("current_shard", current_shard, minimum=0, maximum=self._total_shards - 1)
        self._indexing_mode = ShardIndexingMode(choice("indexing_mode", indexing_mode, list(ShardIndexingMode)))
        self._is_padded = boolean("pad_to_equal_size_across_shards", pad_to_equal_size_across_shards)

    def _repr_facts(self) -> Iterable[tuple[str, object]]:
        return [
            ("current_shard", self._current_shard),
            ("total_shards", self._total_shards),
            ("indexing_mode", self._indexing_mode.value),
            ("dataset", self._dataset),
        ]

    @classmethod
    def from_mesh(
        cls,
        dataset: Dataset[_Item_co],
        device_mesh: Any,
        dim: str = "dp",
        indexing_mode: ShardIndexingMode | Literal["sequential", "chunked"] = ShardIndexingMode.sequential,
        pad_to_equal_size_across_shards: bool = True,
    ) -> Self:
        """Return this process's view by its rank along one dimension of a ``torch.distributed`` device mesh.

        Args:
            dataset: As in the constructor.
            device_mesh: A ``DeviceMesh`` with named dimensions.
            dim: Name of the data-parallel dimension, which may be a flattened one.
            indexing_mode: As in the constructor.
            pad_to_equal_size_across_shards: As in the constructor.

        Raises:
            ConfigurationError: The mesh has no such dimension, or another argument is invalid.
        """
        names = getattr(device_mesh, "mesh_dim_names", None)
        if not names:
            raise ConfigurationError("device_mesh", device_mesh, "a DeviceMesh with named dimensions")
        try:
            along = device_mesh[dim]
            total_shards, current_shard = int(along.size()), int(along.get_local_rank())
        except genuine(KeyError, RuntimeError, TypeError) as error:
            raise ConfigurationError("dim", dim, f"a dimension of the mesh, one of {names}: {error}") from error
        return cls(dataset, total_shards, current_shard, indexing_mode, pad_to_equal_size_across_shards)

    @property
    def dataset(self) -> Dataset[_Item_co]:
        """The dataset that this is a view of."""
        return self._dataset

    def __len__(self) -> int:
        length = len(self._dataset)
        whole = -(-length // self._total_shards)
        if self._is_padded:
            return whole
        if self._indexing_mode is ShardIndexingMode.sequential:
            return -(-(length - self._current_shard) // self._total_shards) if length > self._current_shard else 0
        return min(whole, max(0, length - self._current_shard * whole))

    def __getitem__(self, index: int) -> _Item_co:
        return self._dataset[self._indices([index])[0]]

    def __getitems__(self, indices: Sequence[int]) -> list[_Item_co]:
        """Return the items at ``indices``, in one call of the dataset if it has ``__getitems__``.

        Raises:
            IndexError: An index is out of range.
        """
        return items_at(self._dataset, self._indices(indices))

    def state_dict(self) -> dict[str, Any]:
        """Return the view's settings as plain values, and the dataset's state if it has one."""
        return {
            "version": _STATE_VERSION,
            "total_shards": self._total_shards,
            "current_shard": self._current_shard,
            "indexing_mode": self._indexing_mode.value,
            "pad_to_equal_size_across_shards": self._is_padded,
            **base_state(self._dataset),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that the state belongs to this view, and restore the dataset's state.

        A state of d9d's ``ShardedDataset`` belongs to this view if it has its ``total_shards`` and ``current_shard``:
        it has no ``indexing_mode`` and no padding.

        Raises:
            StateMismatchError: The state belongs to another view.
        """
        present = self.state_dict()
        if is_foreign(state_dict, "total_shards"):
            present = {name: value for name, value in present.items() if name not in _NOT_IN_D9D}
            state_dict = {_FROM_D9D.get(name, name): value for name, value in state_dict.items()}
        load_base_state(self._dataset, checked_state(state_dict, present))

    def set_epoch(self, epoch: int) -> None:
        """Call ``set_epoch`` of the dataset if it has one."""
        set_base_epoch = getattr(self._dataset, "set_epoch", None)
        if callable(set_base_epoch):
            set_base_epoch(epoch)

    def _indices(self, indices: Sequence[int]) -> list[int]:
        own, length = len(self), len(self._dataset)
        if self._indexing_mode is ShardIndexingMode.sequential:
            first, step = self._current_shard, self._total_shards
        else:
            first, step = self._current_shard * -(-length // self._total_shards), 1
        return [min(first + step * counted_from_start(index, own), length - 1) for index in indices]


class DatasetChain:
    """A ``dataset_generator`` that calls several generators in turn, each with the result of the previous one.

    ``DatasetChain([Documents, partial(BufferSortedDataset, buffer_size=1024, pack_size=16)])`` opens a shard as
    ``BufferSortedDataset(Documents(shard), 1024, 16)``.

    Args:
        generators: At least one callable. The first is called with the shard.

    Raises:
        ConfigurationError: ``generators`` is empty, or one of them is not callable.
    """

    def __init__(self, generators: Sequence[Callable[..., Any]]) -> None:
        if not isinstance(generators, Sequence) or not generators:
            raise ConfigurationError("generators", generators, "a list of at least one callable")
        self.generators: list[Callable[..., Any]] = [
            function(f"generators[{index}]", item) for index, item in enumerate(generators)
        ]

    def __call__(self, shard: Any) -> Any:
        """Return the result of the last generator.

        Raises:
            Exception: Any exception of a generator.
        """
        for generator in self.generators:
            shard = generator(shard)
        return shard


class DictDataset(Described, Dataset[dict[str, Any]]):
    """Several map-style datasets as one, with each sample labelled by the name of its dataset.

    An index is a pair of a name and an index into that dataset. For a whole microbatch, it is a pair of a name and a
    list of indices. A ``DictBatchSampler`` yields such pairs.

    Args:
        datasets: Datasets by name. Their samples must be mappings.
        key: Field that holds the dataset's name in each sample.

    Raises:
        ConfigurationError: ``datasets`` is empty, one of them is not map-style, or ``key`` is not a string.
    """

    def __init__(self, datasets: Mapping[str, Any], key: str = "dataset") -> None:
        _check_names("datasets", datasets)
        for name, dataset in datasets.items():
            if not is_map_style(dataset):
                raise ConfigurationError(f"datasets[{name!r}]", dataset, "a dataset with __getitem__ and __len__")
        if not isinstance(key, str):
            raise ConfigurationError("key", key, "the name of a field")
        self.datasets: dict[str, Any] = dict(datasets)
        self.key = key

    def _repr_facts(self) -> Iterable[tuple[str, object]]:
        return [("datasets", ", ".join(self.datasets)), ("key", self.key)]

    @classmethod
    def over(cls, dataset_generators: Mapping[str, Callable[..., Any]], key: str = "dataset") -> Callable[..., Self]:
        """Return a ``dataset_generator`` for a ``DataLoaderFactory`` that opens all datasets of a shard.

        Args:
            dataset_generators: Generators by name; each is called with the shard and returns a dataset.
            key: As for the class.

        Raises:
            ConfigurationError: ``dataset_generators`` is empty, or a generator is not callable.
        """
        _check_names("dataset_generators", dataset_generators)
        for name, generate in dataset_generators.items():
            arguments.function(f"dataset_generators[{name!r}]", generate)
        return partial(cls._generate, dict(dataset_generators), key)

    @classmethod
    def _generate(cls, dataset_generators: Mapping[str, Callable[..., Any]], key: str, shard: Any) -> Self:
        return cls({name: generate(shard) for name, generate in dataset_generators.items()}, key)

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self.datasets.values())

    def __getitem__(self, index: tuple[str, Any]) -> dict[str, Any]:
        name, sample_index = index
        return self._labelled(name, self._dataset(name)[sample_index])

    def __getitems__(self, indices: tuple[str, Sequence[Any]] | Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
        """Return the samples at ``indices``, in that order.

        Args:
            indices: A pair of a name and a list of indices, or a list of pairs of a name and an index.

        Raises:
            KeyError: No dataset has that name.
            ValueError: A sample already has the field ``key``.
            TypeError: A sample is not a mapping.
        """
        if not indices or not isinstance(indices[0], str):
            return [self[index] for index in cast("Sequence[tuple[str, Any]]", indices)]
        name, sample_indices = cast("tuple[str, Sequence[Any]]", indices)
        return [self._labelled(name, sample) for sample in items_at(self._dataset(name), sample_indices)]

    def _dataset(self, name: str) -> Any:
        if name not in self.datasets:
            raise KeyError(f"no dataset {name!r}; the datasets are {', '.join(self.datasets)}")
        return self.datasets[name]

    def _labelled(self, name: str, sample: Any) -> dict[str, Any]:
        if not isinstance(sample, Mapping):
            raise TypeError(
                f"a sample of dataset {name!r} must be a mapping to be labelled, but is {type(sample).__name__}"
            )
        if self.key in sample:
            raise ValueError(f"a sample of dataset {name!r} already has a field {self.key!r}: choose another key")
        return {**cast("Mapping[str, Any]", sample), self.key: name}


def _check_names(argument: str, named: object) -> None:
    names = list(cast("Mapping[object, object]", named)) if isinstance(named, Mapping) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            argument, cast("object", named), "a non-empty mapping whose keys are the datasets' names"
        )


class _Mapped(Described):
    """Constructor, ``dataset_generator`` and description of both kinds of dataset."""

    def __init__(self, dataset: Any, fn: Callable[[Any], Any]) -> None:
        self.dataset = dataset
        self.fn: Callable[..., Any] = arguments.function("fn", fn)

    def _repr_facts(self) -> Iterable[tuple[str, object]]:
        return [("dataset", self.dataset), ("fn", self.fn)]

    @classmethod
    def over(cls, dataset_generator: Callable[..., Any], fn: Callable[[Any], Any]) -> Callable[..., Self]:
        """Return a ``dataset_generator`` for a ``DataLoaderFactory`` that maps the dataset of another one.

        Args:
            dataset_generator: Called with the shard; returns its dataset.
            fn: As for the class.

        Raises:
            ConfigurationError: An argument is not callable.
        """
        generate = arguments.function("dataset_generator", dataset_generator)
        return _Over(cls, generate, arguments.function("fn", fn))


class _Over:
    """A ``dataset_generator`` of mapped datasets."""

    def __init__(self, kind: type[_Mapped], dataset_generator: Callable[..., Any], fn: Callable[[Any], Any]) -> None:
        self._kind = kind
        self._dataset_generator = dataset_generator
        self._fn = fn

    def __call__(self, shard: Any) -> Any:
        return self._kind(self._dataset_generator(shard), self._fn)

    def counted_files(self, shard: Any) -> list[CountedFile] | None:
        # A class of the user's may have other samples than the dataset that it maps.
        is_known = self._kind in (MapDataset, IterableMapDataset)
        return counted_files_of(self._dataset_generator, shard) if is_known else None


class MapDataset(InOrder, _Mapped, Dataset[Any]):
    """A map-style dataset that applies a function to every sample.

    Args:
        dataset: A dataset with ``__getitem__`` and ``__len__``; its ``__getitems__`` is used if it has one.
        fn: Called with a sample; returns the new sample.

    Raises:
        ConfigurationError: ``dataset`` is not map-style, or ``fn`` is not callable.
    """

    def __init__(self, dataset: Any, fn: Callable[[Any], Any]) -> None:
        if not is_map_style(dataset):
            raise ConfigurationError("dataset", dataset, "a dataset with __getitem__ and __len__")
        super().__init__(dataset, fn)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        sample = self.dataset[index]
        try:
            return self.fn(sample)
        except Exception as error:
            note_source_locations(error, self.dataset, [index])
            raise

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Return the samples at ``indices``, in that order.

        Raises:
            Exception: Whatever the dataset and ``fn`` raise; an error of ``fn`` has a note of the sample's file and row.
        """
        samples = items_at(self.dataset, indices)  # what this raises may be about any of them
        made: list[Any] = []
        for sample in samples:
            try:
                made.append(self.fn(sample))
            except Exception as error:
                note_source_locations(error, self.dataset, indices[len(made) : len(made) + 1])
                raise
        return made

    @property
    def prefetch_items(self) -> Callable[[Sequence[int]], None] | None:
        """Begins to read the dataset's samples at some indices; None: it has nothing to begin."""
        return self.dataset.prefetch_items if isinstance(self.dataset, Prefetching) else None

    def source_location(self, index: Any) -> str | None:
        """Return the file of a sample and its row there; None where the dataset does not say."""
        return source_location_of(self.dataset, index)


class IterableMapDataset(_Mapped, IterableDataset[Any]):
    """An iterable dataset that applies a function to every sample.

    Args:
        dataset: Any iterable of samples.
        fn: Called with a sample; returns the new sample.

    Raises:
        ConfigurationError: ``dataset`` is not iterable, or ``fn`` is not callable.
    """

    def __init__(self, dataset: Iterable[Any], fn: Callable[[Any], Any]) -> None:
        if not isinstance(dataset, Iterable):
            raise ConfigurationError("dataset", dataset, "an iterable of samples")
        super().__init__(dataset, fn)

    def __iter__(self) -> Iterator[Any]:
        return (
            self._of_located() if has_located_samples(self.dataset) else (self._made(sample) for sample in self.dataset)
        )

    def _of_located(self) -> Iterator[Any]:
        for sample, location in self.dataset.located_samples():
            try:
                made = self._made(sample)
            except Exception as error:
                note_source_location(error, self.dataset.location_text(location))
                raise
            yield made

    def _made(self, sample: Any) -> Any:
        try:
            return self.fn(sample)
        except genuine(StopIteration) as error:
            raise early_end("fn") from error
