"""Several datasets under their names, as one whose indices are (name, index)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self, cast

from torch.utils.data import Dataset

from fkat_data import arguments
from fkat_data.errors import ConfigurationError

__all__ = ["DictDataset"]


class DictDataset(Dataset[dict[str, Any]]):
    """Several map-style datasets as one; each sample is labelled with the name of the one that it is from.

    A ``DictBatchSampler`` gives the indices that it takes: a pair of a name and that dataset's own index, or for a
    whole microbatch a pair of a name and a list of them.

    Args:
        datasets: The datasets by their names. Their samples are mappings.
        key: The field of a sample that gets the name.

    Raises:
        ConfigurationError: There is no dataset, one of them has no indices, or ``key`` is no string.
    """

    def __init__(self, datasets: Mapping[str, Any], key: str = "dataset") -> None:
        if not isinstance(datasets, Mapping) or not datasets or not all(isinstance(name, str) for name in datasets):
            raise ConfigurationError("datasets", datasets, "a mapping from names to datasets, not empty")
        for name, dataset in datasets.items():
            if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
                raise ConfigurationError(f"datasets[{name!r}]", dataset, "a dataset with __getitem__ and __len__")
        if not isinstance(key, str):
            raise ConfigurationError("key", key, "the name of a field")
        self.datasets = dict(datasets)
        self.key = key

    @classmethod
    def over(cls, dataset_generators: Mapping[str, Callable[..., Any]], key: str = "dataset") -> Callable[..., Self]:
        """Return a ``dataset_generator`` for a ``DataLoaderFactory``: it makes each of the datasets of a shard.

        Args:
            dataset_generators: By their names; each is called with the shard and returns a dataset.
            key: As for the class.

        Raises:
            ConfigurationError: One of the generators cannot be called.
        """
        for name, generate in dataset_generators.items():
            arguments.function(f"dataset_generators[{name!r}]", generate)
        return partial(cls._generate, dict(dataset_generators), key)

    @classmethod
    def _generate(cls, dataset_generators: Mapping[str, Callable[..., Any]], key: str, shard: Any) -> Self:
        return cls({name: generate(shard) for name, generate in dataset_generators.items()}, key)

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self.datasets.values())

    def __getitem__(self, index: tuple[str, Any]) -> dict[str, Any]:
        name, place = index
        return self._labelled(name, self._dataset(name)[place])

    def __getitems__(self, indices: tuple[str, Sequence[Any]] | Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
        """Return the samples at ``indices``, in that order.

        Args:
            indices: A name and that dataset's indices; or pairs of a name and an index.

        Raises:
            KeyError: There is no dataset of that name.
            ValueError: A sample has the field ``key`` already.
            TypeError: A sample is no mapping.
        """
        if not indices or not isinstance(indices[0], str):
            return [self[index] for index in cast("Sequence[tuple[str, Any]]", indices)]
        name, places = cast("tuple[str, Sequence[Any]]", indices)
        dataset = self._dataset(name)
        together = cast("Callable[..., list[Any]] | None", getattr(dataset, "__getitems__", None))
        samples: list[Any] = together(places) if together else [dataset[place] for place in places]
        return [self._labelled(name, sample) for sample in samples]

    def _dataset(self, name: str) -> Any:
        if name not in self.datasets:
            raise KeyError(f"no dataset {name!r}; there are {', '.join(self.datasets)}")
        return self.datasets[name]

    def _labelled(self, name: str, sample: Any) -> dict[str, Any]:
        if not isinstance(sample, Mapping):
            raise TypeError(
                f"a sample of dataset {name!r} is to be a mapping, to label it, not {type(sample).__name__}"
            )
        if self.key in sample:
            raise ValueError(f"a sample of dataset {name!r} has a field {self.key!r} of its own: choose another key")
        return {**cast("Mapping[str, Any]", sample), self.key: name}
