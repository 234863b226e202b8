"""Combine several named datasets into one whose indices are pairs (name, index)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Self, cast

from torch.utils.data import Dataset

from fkat_data import arguments
from fkat_data.datasets.item_index import is_map_style, items_at
from fkat_data.errors import ConfigurationError
from fkat_data.wording import Described


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
