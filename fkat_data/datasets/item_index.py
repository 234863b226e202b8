"""Datasets by index: indices as a list has them, several items at once, and samples that are in files."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from fkat_data.errors.arguments import integer
from fkat_data.errors.wording import Described, redacted_location
from fkat_data.files.counted_file import CountedFile
from fkat_data.files.opening import Locations, ReadRange, local_path, locations_of
from fkat_data.files.remote import Span
from fkat_data.observe.stages import reading
from fkat_data.runtime.background import in_parallel
from fkat_data.runtime.interruption import suppress

#: Remote files that are opened at a time.
_NUM_FILES_AT_ONCE = 16
MOST_OPEN_IN_STORES = 256
"""Remote files that a dataset keeps open: they have no descriptor, and opening one again takes a request."""


def counted_from_start(index: int, length: int) -> int:
    """Return the non-negative index for one that may count from the end.

    Raises:
        IndexError: ``index`` is out of range.
        TypeError: ``index`` is not an integer.
    """
    number = operator.index(index)
    if not -length <= number < length:
        raise IndexError(f"index {number} is out of range for a dataset of {length} items")
    return number + length if number < 0 else number


def counted_from_starts(indices: Sequence[int], length: int, noun: str) -> npt.NDArray[np.int64]:
    """Return the non-negative indices for many, each of which may count from the end.

    Args:
        indices: The indices.
        length: The number of items.
        noun: What an item is, for messages.

    Raises:
        IndexError: An index is out of range.
        TypeError: An index is not an integer.
    """
    numbers = np.asarray(indices) if len(indices) else np.empty(0, np.int64)
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"{noun} indices must be integers, not {indices!r}")
    found = numbers.astype(np.int64, copy=False)
    # As unsigned numbers, negative ones are the largest: one comparison finds all that need a closer look.
    if not np.count_nonzero(found.view(np.uint64) >= length):
        return found
    outside = (numbers < -length) | (numbers >= length)
    if outside.any():
        raise IndexError(f"index {int(numbers[outside][0])} is out of range for a dataset of {length} {noun}s")
    return np.where(found < 0, found + length, found)


def in_parts(
    items: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield the parts that items are in: a part, which of the items are in it, and their numbers within the part.

    Args:
        items: Numbers of items, from the start of all parts.
        ends: For each part, the number of items up to its end.
    """
    if not len(items):
        return
    part_of_item = np.searchsorted(ends, items, side="right")
    part = int(part_of_item[0])
    if np.count_nonzero(part_of_item == part) == len(items):  # most often, and quicker
        yield part, np.arange(len(items)), items - ends[part - 1] if part else items
        return
    for part in cast("list[int]", np.unique(part_of_item).tolist()):
        positions = np.flatnonzero(part_of_item == part)
        yield part, positions, items[positions] - ends[part - 1] if part else items[positions]


def _listed(rows: npt.NDArray[np.int64]) -> list[int]:
    return rows.tolist()


def is_map_style(dataset: object) -> bool:
    """Return whether a dataset has ``__len__`` and ``__getitem__``."""
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")


def items_at(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Return a dataset's items at ``indices``, in one call if it has ``__getitems__``, as torch does."""
    fetch = cast("Callable[[Sequence[int]], list[Any]] | None", getattr(dataset, "__getitems__", None))
    return fetch(indices) if fetch else [dataset[index] for index in indices]


class InOrder(ABC):
    """A dataset that is iterated up to its length: up to an ``IndexError``, one of a user's code would end it in silence."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: Any) -> Any: ...

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))


class EpochOrder(InOrder):
    """A dataset whose order is that of an epoch, which the caller says or a loader does."""

    _is_epoch_given = False
    _base: Any = None

    @property
    def of_files(self) -> Any:
        """The object that writes into a state what the files were, and checks it at a load; None: there is none."""
        return self._base

    def set_epoch(self, epoch: int) -> None:
        """Switch to the order of an epoch.

        Args:
            epoch: The epoch, from 0.

        Raises:
            ConfigurationError: ``epoch`` is negative or not an integer.
        """
        epoch = integer("epoch", epoch, minimum=0)
        self._is_epoch_given = True
        self._set_epoch(epoch)

    def follow_epoch(self, epoch: int) -> None:
        """Do as ``set_epoch``, unless that was called: a ``fkat_data.DataLoader`` calls this before each epoch."""
        if not self._is_epoch_given:
            self._set_epoch(epoch)

    @abstractmethod
    def _set_epoch(self, epoch: int) -> None:
        """Switch to the order of an epoch."""


class DatasetOfFiles(Described):
    """One or more files, and how to open them.

    Args:
        paths: Local paths, or URIs that fsspec supports.
        storage_options: Options for fsspec, for files that are not local.
        argument: What the caller's argument with the paths is called.

    Raises:
        ConfigurationError: ``paths`` is empty, or repeats a file.
    """

    def __init__(self, paths: Locations, storage_options: Mapping[str, Any] | None, *, argument: str = "paths") -> None:
        super().__init__()
        self.paths: list[str] = locations_of(argument, paths)
        self.storage_options: dict[str, Any] = dict(storage_options or {})
        self._has_remote = any(local_path(path) is None for path in self.paths)

    def _repr_facts(self) -> Iterator[tuple[str, object]]:
        yield "first_file", redacted_location(self.paths[0])
        yield "num_files", len(self.paths)


class IndexedFiles(InOrder, DatasetOfFiles, Dataset[Any]):
    """The samples of files by their numbers. A subclass sets ``_ends`` once it knows how many each file has."""

    #: Samples up to and including each file, or each part of one: int64.
    _ends: npt.NDArray[np.int64]

    def _repr_facts(self) -> Iterator[tuple[str, object]]:
        yield from super()._repr_facts()
        # The __len__ of a subclass may take long.
        yield "num_samples", IndexedFiles.__len__(self)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> Any:
        if type(self).__getitems__ is IndexedFiles.__getitems__:
            # Python's numbers are quicker for one sample than arrays.
            is_plain = type(index) is int and 0 <= index < len(self)
            return self._read_one(index) if is_plain else self._read_together([index])[0]
        return (self._read_together if self._makes_own_items else self.__getitems__)([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples at ``indices``, in that order; those of a file are read together.

        Args:
            indices: Indices of samples; negative ones count from the end.

        Raises:
            IndexError: An index is out of range.
            ShardCorruptError: A sample is invalid, or its file has changed since it was indexed.
        """
        return [self[index] for index in indices] if self._makes_own_items else self._read_together(indices)

    @property
    def _makes_own_items(self) -> bool:
        """Whether a subclass has a ``__getitem__`` alone, which a loader would not ask where there is ``__getitems__``."""
        kind = type(self)
        is_own = kind.__getitem__ is not IndexedFiles.__getitem__
        return is_own and kind.__getitems__ is IndexedFiles.__getitems__

    @property
    def prefetch_items(self) -> Callable[[Sequence[int]], None] | None:
        """Asks stores for the samples at indices that ``__getitems__`` is called with later, and does not wait for them.

        None: the files are local, or a subclass makes samples of its own.
        """
        kind = type(self)
        is_own = kind.__getitem__ is not IndexedFiles.__getitem__ or kind.__getitems__ is not IndexedFiles.__getitems__
        return self._prefetch if self._has_remote and not is_own else None

    def _prefetch(self, indices: Sequence[int]) -> None:
        # What is wrong is raised where the samples are read.
        with suppress(Exception), reading():
            numbers = counted_from_starts(indices, len(self), "sample")
            self._begin([(number, _listed(rows)) for number, _, rows in in_parts(numbers, self._ends)])

    def _begin(self, parts: Sequence[tuple[int, list[int]]]) -> None:
        """Ask stores for some rows of files, and do not wait for them."""
        unopened = [number for number, _ in parts if not self._is_open(number)]
        if len(unopened) > 1:
            in_parallel(self._file, unopened, _NUM_FILES_AT_ONCE)
        for file_number, rows in parts:
            self._file(file_number).begin(self._spans(file_number, rows))

    def _is_open(self, number: int) -> bool:
        """Return whether a file is open."""
        raise NotImplementedError

    def _file(self, number: int) -> Any:
        """Return a file, and open it if it is not open."""
        raise NotImplementedError

    def _spans(self, number: int, rows: list[int]) -> Iterable[Span]:
        """Return the bytes of a file that some rows have."""
        raise NotImplementedError

    def _reader(self, file_number: int, rows: list[int]) -> ReadRange:
        """Return what reads a file's bytes for some rows; a remote file's are fetched now."""
        return self._file(file_number).together(self._spans(file_number, rows))

    def _samples(self, file_number: int, rows: list[int], read: ReadRange) -> Iterable[Any]:
        """Return the samples of a file at some rows.

        Args:
            file_number: The file.
            rows: The rows.
            read: What ``_reader`` has returned for them.
        """
        raise NotImplementedError

    def _in_files(
        self, numbers: npt.NDArray[np.int64]
    ) -> Iterator[tuple[int, npt.NDArray[np.int64], list[int], ReadRange]]:
        """Yield the files that samples are in: which of the samples are in it, their rows there, and what reads them.

        Those of remote files are fetched at the same time.
        """
        parts = [(number, positions, _listed(rows)) for number, positions, rows in in_parts(numbers, self._ends)]
        if self._has_remote and len(parts) > 1:
            with reading():
                self._begin([(number, rows) for number, _, rows in parts])
        for number, positions, rows in parts:  # one at a time: few files are open
            yield number, positions, rows, self._reader(number, rows)

    def _read_one(self, index: int) -> Any:
        """Return the sample at a number from 0 on that is in range."""
        ends = self._ends
        part = int(np.searchsorted(ends, index, side="right")) if len(ends) > 1 else 0
        rows = [index - int(ends[part - 1])] if part else [index]
        return next(iter(self._samples(part, rows, self._reader(part, rows))))

    def _read_together(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples at ``indices``; see ``__getitems__``."""
        numbers = counted_from_starts(indices, len(self), "sample")
        found: list[Any] = [None] * len(numbers)
        for file_number, positions, rows, read in self._in_files(numbers):
            samples = self._samples(file_number, rows, read)
            for position, sample in zip(positions.tolist(), samples, strict=True):
                found[position] = sample
        return found

    def source_location(self, index: int) -> str:
        """Return the file of a sample, and where it is in there."""
        sample = counted_from_start(index, len(self))
        part = int(np.searchsorted(self._ends, sample, side="right"))
        return self._location(part, sample - int(self._ends[part - 1] if part else 0))

    @abstractmethod
    def _location(self, part: int, row: int) -> str:
        """Return a sample's file, or part of one, and its row there, in words."""


def counter(kind: str, num_samples: Callable[..., int]) -> Callable[..., list[CountedFile]]:
    """Return the ``counted_files`` of datasets: a function of their arguments, of files that are counted without a dataset.

    Args:
        kind: What is counted in them, and how.
        num_samples: Counts the samples of a file, given its path, the options for fsspec, and the dataset's other named
            arguments.
    """

    def counted_files(
        paths: Locations, *_: Any, storage_options: Mapping[str, Any] | None = None, **others: Any
    ) -> list[CountedFile]:
        options = dict(storage_options or {})
        found = locations_of("paths", paths)
        return [CountedFile(path, kind, options, partial(num_samples, path, options, **others)) for path in found]

    return counted_files
