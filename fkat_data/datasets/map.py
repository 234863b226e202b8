"""Apply a function to every sample of another dataset."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

from torch.utils.data import Dataset, IterableDataset

from fkat_data import arguments
from fkat_data.datasets.item_index import is_map_style, items_at
from fkat_data.errors import ConfigurationError
from fkat_data.files.counted_file import CountedFile, counted_files_of
from fkat_data.sample_errors import note_place, note_places, place_of_sample, says_places
from fkat_data.wording import Described


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


class MapDataset(_Mapped, Dataset[Any]):
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
            note_places(error, self.dataset, [index])
            raise

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Return the samples at ``indices``, in that order.

        Raises:
            Exception: Whatever the dataset and ``fn`` raise; an error of ``fn`` has a note of the sample's file and place.
        """
        samples = items_at(self.dataset, indices)  # what this raises may be about any of them
        made: list[Any] = []
        for sample in samples:
            try:
                made.append(self.fn(sample))
            except Exception as error:
                note_places(error, self.dataset, indices[len(made) : len(made) + 1])
                raise
        return made

    def sample_place(self, index: Any) -> str | None:
        """Return the file of a sample and its place there; None where the dataset does not say."""
        return place_of_sample(self.dataset, index)


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
        return self._of_placed() if says_places(self.dataset) else map(self.fn, self.dataset)

    def _of_placed(self) -> Iterator[Any]:
        for sample, place in self.dataset.placed_samples():
            try:
                made = self.fn(sample)
            except Exception as error:
                note_place(error, self.dataset.place_text(place))
                raise
            yield made
