"""What a state says of a shard that was begun, to compare it with what it is now: its files, and how it is batched."""

import re
import zlib
from collections.abc import Sequence
from operator import eq
from typing import Any, Protocol, cast, runtime_checkable

from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, IterableDataset

from fkat_data.errors import StateMismatchError
from fkat_data.errors.acceptance import Acceptance
from fkat_data.plan.position import ShardFingerprint
from fkat_data.types import stream_source_of
from fkat_data.worker.batches import BatchSequence

_FIELD = "files"
_MOST_VIEWS = 16  # a dataset may name itself
_CLASS_NAMES = re.compile(r"(sampler=)[^,)]*")
#: Of more files, neighbours share a number, so that a state stays small.
_MOST_NUMBERS = 256


@runtime_checkable
class SupportsFileDigests(Protocol):
    """What knows what a dataset's files were when it was made: the dataset, or what it is made of."""

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
    return tuple(_numbers(_with_digests(dataset))) or None


def check_files(saved: Sequence[int] | None, dataset: object, acceptance: Acceptance, price: str) -> None:
    """Check that a dataset's files are those that a state was saved with.

    Args:
        saved: The numbers in the state; None: it does not say what the files were, and is taken.
        dataset: The present dataset.
        acceptance: What may differ.
        price: What others cost, in words.

    Raises:
        StateMismatchError: A file has changed, and is not accepted. The message names it.
    """
    below = _with_digests(dataset)
    paths = [path for part in below for path in part.paths]
    if not paths or saved is None:
        return
    present = _numbers(below)
    if len(saved) != len(present):
        hint = "the state was saved with another number of files"
        error = StateMismatchError(_FIELD, f"<{len(saved)} numbers>", f"<{len(present)} numbers>", hint)
        acceptance.settle(error, price)
        return
    size = _files_a_number(len(paths))
    for index, (was, now) in enumerate(zip(saved, present, strict=True)):
        if was != now:
            found = paths[index * size : (index + 1) * size]
            which = found[0] if len(found) == 1 else f"one from {found[0]} to {found[-1]}"
            hint = f"the file has changed since the state was saved, or is read in another way, or others are: {which}"
            acceptance.settle(StateMismatchError(f"{_FIELD}[{index}]", f"{was:08x}", f"{now:08x}", hint), price)
            return


def has_appended(saved: Sequence[int] | None, dataset: object) -> bool:
    """Return whether files were appended to those that a state was saved with.

    Args:
        saved: The numbers in the state; None: it does not say what the files were.
        dataset: The present dataset.
    """
    digests = [digest for part in _with_digests(dataset) for digest in part.file_digests()]
    if not saved:
        return False
    for size in range(1, _files_a_number(len(digests)) + 1):
        # Of how many files the last number is, the state does not say.
        first, most = (len(saved) - 1) * size, _MOST_NUMBERS * size
        ends = range(max(first, most - _MOST_NUMBERS) + 1, min(first + size, most, len(digests) - 1) + 1)
        others = (_number_of(digests[index : index + size], size) for index in range(0, first, size))
        last = (_number_of(digests[first:end], size) for end in ends)
        if ends and all(map(eq, saved, others)) and saved[-1] in last:
            return True
    return False


def _with_digests(dataset: object) -> list[SupportsFileDigests]:
    """Return what knows the files, of each dataset that is joined."""
    for _ in range(_MOST_VIEWS):
        if dataset is None:
            break
        source = stream_source_of(dataset)
        if source is not None:
            return [source.files]
        # The second question takes long.
        if hasattr(dataset, "file_digests") and isinstance(dataset, SupportsFileDigests):
            return [dataset]
        if isinstance(dataset, ConcatDataset):
            return [found for each in cast("Any", dataset).datasets for found in _with_digests(each)]
        dataset = getattr(dataset, "of_files", getattr(dataset, "dataset", None))
    return []


def _files_a_number(num_files: int) -> int:
    return -(-num_files // _MOST_NUMBERS)


def _numbers(below: Sequence[SupportsFileDigests]) -> list[int]:
    digests = [digest for part in below for digest in part.file_digests()]
    return _numbers_of(digests, _files_a_number(len(digests)))


def _numbers_of(digests: list[int], size: int) -> list[int]:
    return [_number_of(digests[first : first + size], size) for first in range(0, len(digests), size or 1)]


def _number_of(digests: list[int], size: int) -> int:
    return digests[0] if size == 1 else zlib.crc32(repr(digests).encode())


def fingerprint_of(product: object) -> ShardFingerprint:
    """Return what a product says of its batches and of its files.

    Args:
        product: What the factory returned for a shard.
    """
    if not isinstance(product, DataLoader):
        return ShardFingerprint(files=numbers_of_files(product))
    loader = cast("DataLoader[Any]", product)
    if isinstance(cast("Any", loader.batch_sampler), BatchSequence) or isinstance(loader.sampler, BatchSequence):
        return ShardFingerprint()  # a part of an epoch of fkat_data.DataLoader, whose state says more
    return ShardFingerprint(_batching_of(loader), numbers_of_files(loader.dataset))


def without_names(batching: str) -> str:
    """Return what is reported of a shard's batches without the names of the samplers' classes."""
    return _CLASS_NAMES.sub(r"\1*", batching)


def price_of_begun(num_delivered: int) -> str:
    """Return what it costs to go on with a begun shard that has changed, in words."""
    return (
        f"as many microbatches as were delivered of the begun shard are left out of it as it is now: {num_delivered:,}. What "
        "other samples they have is lost, or comes again, in each such shard"
    )


def check_fingerprint(saved: ShardFingerprint, present: ShardFingerprint, product: object, num_delivered: int) -> None:
    """Compare what was reported of a begun shard with what it is now, where both are known.

    Args:
        saved: What was reported.
        present: What the worker has found.
        product: What the factory returned for the shard.
        num_delivered: Microbatches of the shard that were delivered.

    Raises:
        StateMismatchError: It is batched in another way, or a file has changed: samples would be lost or repeated. The
            message names the file.
    """
    was, now = saved.batching, present.batching
    if was is not None and now is not None and was not in (now, without_names(now)):
        error = StateMismatchError(
            "fingerprint.batching",
            f"<{was}>",
            f"<{now}>",
            "finish a shard that was begun in the same batches: let the dataloader_factory return what it did then",
        )
        if without_names(was) != without_names(now):
            raise error
        Acceptance().settle(error, price_of_begun(num_delivered))
    if saved.files != present.files:
        check_files(saved.files, product, Acceptance(), price_of_begun(num_delivered))


def _batching_of(loader: "DataLoader[Any]") -> str:
    """Return a DataLoader's batch size, samplers and ``drop_last`` in words."""
    batch_sampler, sampler = cast("Any", loader.batch_sampler), cast("Any", loader.sampler)
    facts: dict[str, object] = {}
    if batch_sampler is not None and type(batch_sampler) is not BatchSampler:
        facts["batch_sampler"] = type(batch_sampler).__qualname__
    source = loader if batch_sampler is None or loader.batch_size is not None else batch_sampler
    # A batch sampler of a user's own may say something else under these names.
    if type(batch_size := getattr(source, "batch_size", None)) is int or source is loader:
        facts["batch_size"] = batch_size
    if batch_sampler is not None and source is not loader:
        sampler = getattr(batch_sampler, "sampler", None)
    if sampler is not None and not isinstance(loader.dataset, IterableDataset):
        facts["sampler"] = type(sampler).__qualname__
    if type(drop_last := getattr(source, "drop_last", None)) is bool:
        facts["drop_last"] = drop_last
    return f"DataLoader({', '.join(f'{name}={value}' for name, value in facts.items())})"
