"""Where a sample comes from, in the notes of an error: its file, and the line, the row or the member there."""

import bisect
from collections.abc import Iterable, Sequence
from typing import Any, cast

from fkat_data.errors import ShardError
from fkat_data.interruption import genuine
from fkat_data.notes import add_note, notes_of

_NOTE, _NOTE_OF_SEVERAL = "Sample:", "Samples:"
_MOST_VIEWS = 16  # a dataset may name itself
#: How many places a note shows.
_NUM_SHOWN = 4


def place_of_sample(dataset: Any, index: Any) -> str | None:
    """Return where a map-style dataset has a sample from; None where it does not say.

    Looks through ``Subset`` and ``ConcatDataset`` of torch, and whatever has the same attributes.

    Args:
        dataset: Has ``sample_place``, or is a view of one that has.
        index: The sample's index.
    """
    for _ in range(_MOST_VIEWS):
        if _is_of_one_class(dataset, "sample_place", "__len__"):
            return dataset.sample_place(index)
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


def says_places(dataset: object) -> bool:
    """Return whether an iterable dataset has ``placed_samples``, and a subclass gives no other samples."""
    return _is_of_one_class(dataset, "placed_samples", "__iter__")


def note_place(error: BaseException, place: str | None) -> None:
    """Note on an error which sample it concerns, unless it says so itself or has such a note."""
    if place is not None and not _has_place(error):
        add_note(error, f"{_NOTE} {place}")


def note_places(error: BaseException, dataset: Any, indices: Iterable[Any]) -> None:
    """Note on an error which samples it may concern, unless it says so itself or has such a note.

    Args:
        error: The error.
        dataset: The map-style dataset.
        indices: The samples' indices.
    """
    if _has_place(error):
        return
    try:
        chosen = list(indices)
        places = [place_of_sample(dataset, index) for index in chosen[:_NUM_SHOWN]]
    except genuine(Exception):  # an index may be anything, and this must not hide the error
        return
    known = [place for place in places if place is not None]
    if len(chosen) == 1 and known:
        note_place(error, known[0])
    elif known:
        more = f"; and {len(chosen) - len(places)} more" if len(chosen) > len(places) else ""
        add_note(error, f"{_NOTE_OF_SEVERAL} {'; '.join(known)}{more}")


def _has_place(error: BaseException) -> bool:
    return isinstance(error, ShardError) or any(
        note.startswith((_NOTE, _NOTE_OF_SEVERAL)) for note in cast("Sequence[str]", notes_of(error))
    )


def _is_of_one_class(dataset: object, name: str, other: str) -> bool:
    """Return whether the class that has a method has another one, too: what a subclass overrides is about its own."""
    owner = next((each for each in type(dataset).__mro__ if name in vars(each) or other in vars(each)), object)
    return name in vars(owner) and other in vars(owner)
