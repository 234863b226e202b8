"""What the files of a dataset were when a state was saved."""

import zlib
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from fkat_data.errors import StateMismatchError

_FIELD = "files"
_MOST_VIEWS = 16  # a dataset may name itself
#: Of more files, neighbours share a number, so that a state stays small.
_MOST_NUMBERS = 256


@runtime_checkable
class OfFiles(Protocol):
    """A dataset that knows what its files were when it was made."""

    paths: list[str]

    def file_digests(self) -> list[int]:
        """Return a number for each file that differs where its content, or what says where its samples are, does."""
        ...


def files_field(dataset: object) -> dict[str, Any]:
    """Return the field of a state that says what a dataset's files are; no field where the dataset does not know."""
    numbers = numbers_of_files(dataset)
    return {} if numbers is None else {_FIELD: list(numbers)}


def numbers_of_files(dataset: object) -> tuple[int, ...] | None:
    """Return numbers that differ where a dataset's files do; None where the dataset does not know."""
    below = _of_files(dataset)
    return None if below is None else tuple(_numbers(below))


def check_files(saved: Sequence[int] | None, dataset: object) -> None:
    """Check that a dataset's files are those that a state was saved with.

    Args:
        saved: The numbers in the state; None: it does not say what the files were, and is taken.
        dataset: The present dataset.

    Raises:
        StateMismatchError: A file has changed. The message names it.
    """
    below = _of_files(dataset)
    if below is None or saved is None:
        return
    present = _numbers(below)
    if len(saved) != len(present):
        hint = "the state was saved with another number of files"
        raise StateMismatchError(_FIELD, f"<{len(saved)} numbers>", f"<{len(present)} numbers>", hint)
    size = _files_a_number(below)
    for index, (was, now) in enumerate(zip(saved, present, strict=True)):
        if was != now:
            found = below.paths[index * size : (index + 1) * size]
            which = found[0] if len(found) == 1 else f"one from {found[0]} to {found[-1]}"
            hint = f"the file has changed since the state was saved, or other files are read: {which}"
            raise StateMismatchError(f"{_FIELD}[{index}]", f"{was:08x}", f"{now:08x}", hint)


def _of_files(dataset: object) -> OfFiles | None:
    for _ in range(_MOST_VIEWS):
        if dataset is None:
            break
        if hasattr(dataset, "file_digests") and isinstance(dataset, OfFiles):  # the second question takes long
            return dataset
        dataset = getattr(dataset, "dataset", None)
    return None


def _files_a_number(dataset: OfFiles) -> int:
    return -(-len(dataset.paths) // _MOST_NUMBERS)


def _numbers(dataset: OfFiles) -> list[int]:
    digests, size = dataset.file_digests(), _files_a_number(dataset)
    if size == 1:
        return digests
    return [zlib.crc32(repr(digests[first : first + size]).encode()) for first in range(0, len(digests), size)]
