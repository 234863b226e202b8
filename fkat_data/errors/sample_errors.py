"""Say which sample an error concerns. Collate samples as torch does, and say why they make no microbatch: which entry differs, how, and what would do."""

import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch.utils.data import default_collate  # pyright: ignore[reportUnknownVariableType]  # torch leaves its elements open

from fkat_data.errors import ShardError, WorkerError
from fkat_data.errors.wording import add_note, notes_of
from fkat_data.runtime.interruption import genuine

_NUM_SHOWN = 4
_MOST_DEPTH = 50
_PADDING = "collate_fn=fkat_data.datasets.PaddingCollate(...) pads them"
_IN_DATASET = "in the dataset (MapDataset, or transform= of a StreamingDataset)"
# What Pack and PackedDataset add: a list of each row's own length.
_PACKED = {"document_ids", "position_ids", "cu_seqlens"}
_OF_PACKS = "The rows are packs: collate_fn=fkat_data.datasets.collate_packed joins their cu_seqlens"
_COLLATING = "Collating:"
_RESIZED = "resize storage"
_DIFFERENTIATED = "automatic differentiation"
_WITH_GRAPH = "Samples require grad, and no graph leaves a worker: call detach() on them in the dataset"
_OWN = "a collate_fn of your own may keep them as a list"


def early_end(whose: str, of: str = "shard") -> WorkerError:
    """Return what is raised from a StopIteration of code of the user's, which Python would take for an end."""
    return WorkerError(f"{whose} raised StopIteration, which would end the {of} early")


class _Misfit(NamedTuple):
    path: str
    found: str
    advice: str
    values: Sequence[Any] = ()


def collated(batch: Any) -> Any:
    """Return what ``default_collate`` makes of samples.

    Raises:
        Exception: What ``default_collate`` raises, with a note that says where the samples differ.
    """
    try:
        return default_collate(batch)
    except genuine(Exception) as error:
        plain = _plain_error(error, batch)
        if plain is not None:
            note_misfit(plain, batch)
            raise plain from None
        note_misfit(error, batch)
        if isinstance(error, RuntimeError) and _DIFFERENTIATED in str(error):
            add_note(error, _WITH_GRAPH)
        raise


def _plain_error(error: Exception, batch: Any) -> Exception | None:
    """Return what ``default_collate`` raises in the program's own process, where a worker's error says less.

    There it stacks tensors into shared memory, and says only that this has another size.
    """
    if not isinstance(error, RuntimeError) or _RESIZED not in str(error):
        return None
    try:
        misfit = _misfit(batch, "", 0)
        if misfit is not None and misfit.values:
            torch.stack([torch.as_tensor(value) for value in misfit.values])
    except genuine(Exception) as plain:
        return plain.with_traceback(None)
    return None


def note_misfit(error: BaseException, batch: Any) -> None:
    """Note on an error of ``default_collate`` which entry of the samples is its cause, where that can be seen.

    Args:
        error: The error.
        batch: The samples.
    """
    try:
        misfit = _misfit(batch, "", 0)
    except genuine(Exception):  # samples may be anything, and this must not hide the error
        return
    if misfit is not None and not any(note.startswith(_COLLATING) for note in cast("Sequence[str]", notes_of(error))):
        where = f"entry {misfit.path} of the samples" if misfit.path else "the samples"
        add_note(error, f"{_COLLATING} {where}: {misfit.found}. {misfit.advice}")


def _misfit(batch: Sequence[Any], path: str, depth: int) -> _Misfit | None:
    first = batch[0]
    kinds = list(dict.fromkeys(_name_of(value) for value in batch))
    if len(kinds) > 1:
        at = next(position for position, value in enumerate(batch) if _name_of(value) != kinds[0])
        found = f"{_listed(kinds)} in one microbatch (sample {at} of it is the first that differs)"
        return _Misfit(path, found, "Make them one type in the dataset, or leave the entry out")
    if isinstance(first, torch.Tensor | np.ndarray):
        return _of_arrays(batch, path)
    if isinstance(first, str | bytes | int | float | np.number | np.bool_) or depth > _MOST_DEPTH:
        return None
    if isinstance(first, Mapping):
        return _of_mappings(batch, path, depth)
    if isinstance(first, Sequence):
        return _of_sequences(batch, path, depth)
    advice = f"Make numbers, tensors or strings of them {_IN_DATASET}, or pass a collate_fn of your own"
    return _Misfit(path, f"values of type {kinds[0]}", advice)


def _of_sequences(batch: Sequence[Any], path: str, depth: int) -> _Misfit | None:
    lengths = [len(value) for value in batch]
    if len(set(lengths)) > 1:
        advice = f"Make one-dimensional tensors of them {_IN_DATASET}, and {_PADDING}; or {_OWN}"
        return _Misfit(path, f"lists of {_listed(lengths)} items", advice)
    parts = enumerate(zip(*batch, strict=True))
    return next((found for at, part in parts if (found := _misfit(part, f"{path}[{at}]", depth + 1))), None)


def _of_arrays(batch: Sequence[Any], path: str) -> _Misfit | None:
    shapes = [tuple(value.shape) for value in batch]
    if len(set(shapes)) > 1:
        remedy = "Make them of one shape in the dataset"
        if {len(shape) for shape in shapes} == {1}:
            is_tensor = isinstance(batch[0], torch.Tensor)
            remedy = _PADDING if is_tensor else f"Make tensors of them {_IN_DATASET}, and {_PADDING}"
        return _Misfit(path, f"shapes {_listed(shapes)}", f"{remedy}; or {_OWN}", batch)
    dtypes = [str(value.dtype) for value in batch]
    if len(set(dtypes)) > 1:
        return _Misfit(path, f"dtypes {_listed(dtypes)}", "Make them one dtype in the dataset")
    if isinstance(batch[0], np.ndarray) and batch[0].dtype.kind not in "biufc":
        return _Misfit(path, f"arrays of {dtypes[0]}", f"Make numbers of them {_IN_DATASET}")
    return None


def _of_mappings(batch: Sequence[Any], path: str, depth: int) -> _Misfit | None:
    names = list(batch[0])
    for position, sample in enumerate(batch):
        missing = [name for name in names if name not in sample]
        if missing:
            advice = f"Give all samples the same entries {_IN_DATASET}"
            found = f"sample {position} of the microbatch has no entry {missing[0]!r}, and the first one has"
            return _Misfit(path, found, advice)
    for name in names:
        found = _misfit([sample[name] for sample in batch], f"{path}[{name!r}]", depth + 1)
        if found is not None:
            return found._replace(advice=_OF_PACKS) if name == "cu_seqlens" and set(names) >= _PACKED else found
    return None


def _name_of(value: object) -> str:
    # Of these, default_collate takes what the first one is.
    if isinstance(value, bool | int | float | np.number | np.bool_):
        return "a number"
    if isinstance(value, Mapping):
        return "a mapping"
    return "None" if value is None else type(value).__name__


def _listed(values: Sequence[Any]) -> str:
    different = list(dict.fromkeys(map(str, values)))
    more = f" and {len(different) - _NUM_SHOWN} others" if len(different) > _NUM_SHOWN else ""
    if not more and len(different) > 1:
        return f"{', '.join(different[:-1])} and {different[-1]}"
    return f"{', '.join(different[:_NUM_SHOWN])}{more}"


_NOTE, _NOTE_OF_SEVERAL = "Sample:", "Samples:"
_MOST_VIEWS = 16  # a dataset may name itself
#: How many locations a note shows.


def source_location_of(dataset: Any, index: Any) -> str | None:
    """Return the file and row that a map-style dataset has a sample from; None where it does not say.

    Looks through ``Subset`` and ``ConcatDataset`` of torch, and whatever has the same attributes.

    Args:
        dataset: Has ``source_location``, or is a view of one that has.
        index: The sample's index.
    """
    for _ in range(_MOST_VIEWS):
        if _is_of_one_class(dataset, "source_location", "__len__"):
            return dataset.source_location(index)
        if hasattr(dataset, "datasets") and hasattr(dataset, "cumulative_sizes"):
            index = index + len(dataset) if index < 0 else index
            part = bisect.bisect_right(dataset.cumulative_sizes, index)
            index -= dataset.cumulative_sizes[part - 1] if part else 0
            dataset = dataset.datasets[part]
        elif hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
            dataset, index = dataset.dataset, dataset.indices[index]
        else:
            return None
    return None


def has_located_samples(dataset: object) -> bool:
    """Return whether an iterable dataset has ``located_samples``, and a subclass gives no other samples."""
    return _is_of_one_class(dataset, "located_samples", "__iter__")


def note_source_location(error: BaseException, location: str | None) -> None:
    """Note on an error which sample it concerns, unless it says so itself or has such a note."""
    if location is not None and not _has_location(error):
        add_note(error, f"{_NOTE} {location}")


def note_source_locations(error: BaseException, dataset: Any, indices: Iterable[Any]) -> None:
    """Note on an error which samples it may concern, unless it says so itself or has such a note.

    Args:
        error: The error.
        dataset: The map-style dataset.
        indices: The samples' indices.
    """
    if _has_location(error):
        return
    try:
        chosen = list(indices)
        locations = [source_location_of(dataset, index) for index in chosen[:_NUM_SHOWN]]
    except genuine(Exception):  # an index may be anything, and this must not hide the error
        return
    known = [location for location in locations if location is not None]
    if len(chosen) == 1 and known:
        note_source_location(error, known[0])
    elif known:
        more = f"; and {len(chosen) - len(locations)} more" if len(chosen) > len(locations) else ""
        add_note(error, f"{_NOTE_OF_SEVERAL} {'; '.join(known)}{more}")


def _has_location(error: BaseException) -> bool:
    return isinstance(error, ShardError) or any(
        note.startswith((_NOTE, _NOTE_OF_SEVERAL)) for note in cast("Sequence[str]", notes_of(error))
    )


def _is_of_one_class(dataset: object, name: str, other: str) -> bool:
    """Return whether the class that has a method has another one, too: what a subclass overrides is about its own."""
    owner = next((each for each in type(dataset).__mro__ if name in vars(each) or other in vars(each)), object)
    return name in vars(owner) and other in vars(owner)
