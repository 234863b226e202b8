"""What a loader that a configuration makes would do on this machine."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from fkat_data.loader.sharded import ShardedDataLoader
from fkat_data.location import path_of
from fkat_data.quantities import readable_bytes
from fkat_data.streaming.dataset import StreamingDataset
from fkat_data.tools.doctor.finding import Finding, Level
from fkat_data.tools.doctor.storage import storage_findings
from fkat_data.transport.memory_limit import available_bytes, default_limit_bytes

_WORKERS_A_CORE = 4
_MOST_SHARDS = 100_000


def configured_findings(make_loader: Callable[[], Any], num_cores: int) -> list[Finding]:
    """Return findings about the loader that a function makes. It is made, looked at and closed; no data are read.

    Args:
        make_loader: Returns a loader or a dataset. Its errors are findings.
        num_cores: Cores that the workers may use.
    """
    try:
        made = make_loader()
    except Exception as error:  # noqa: BLE001 - what it says is the finding
        message = " ".join(f"{type(error).__name__}: {error}".split())
        return [Finding("configuration", Level.WRONG, f"cannot be instantiated: {message}", "Correct what it names.")]
    try:
        return [Finding("configuration", Level.OK, f"makes a {type(made).__name__}"), *_findings(made, num_cores)]
    finally:
        close = getattr(made, "close", None)
        if callable(close):
            close()


def worker_finding(num_workers: int, num_cores: int) -> Finding:
    """Return what to say about a number of workers."""
    found = f"{num_workers} on {num_cores} cores"
    if num_workers > _WORKERS_A_CORE * num_cores:
        change = "Take fewer, unless they mostly wait for a store: for that, num_threads_per_worker needs less memory."
        return Finding("workers", Level.ADVICE, found, change)
    return Finding("workers", Level.OK, found if num_workers else "none; data are made in the trainer's process")


def memory_finding(limit_bytes: int, free_bytes: int) -> Finding:
    """Return what to say about the shared memory that a loader may take, with so much memory left on the machine."""
    found = f"at most {readable_bytes(limit_bytes)} of shared memory; {readable_bytes(free_bytes)} can be taken"
    if limit_bytes > free_bytes:
        return Finding("memory", Level.WRONG, found, "Set memory_limit_bytes to less than half of that.")
    if limit_bytes > free_bytes / 2:
        return Finding("memory", Level.ADVICE, found, "Leave more to the trainer: lower memory_limit_bytes.")
    return Finding("memory", Level.OK, found)


def _findings(made: Any, num_cores: int) -> Iterator[Finding]:
    dataset = made if isinstance(made, StreamingDataset) else getattr(made, "dataset", None)
    is_sharded = isinstance(made, ShardedDataLoader)
    num_workers = made.statistics().num_workers if is_sharded else getattr(made, "num_workers", None)
    if isinstance(num_workers, int):
        yield worker_finding(num_workers, num_cores)
    limit_bytes = cast("int | None", getattr(made, "memory_limit_bytes", 0))
    if num_workers and limit_bytes != 0:
        yield memory_finding(limit_bytes or default_limit_bytes(), available_bytes())
    if is_sharded:
        yield from _of_shards(cast("ShardedDataLoader[Any]", made))
    yield _of_length(made)
    if isinstance(dataset, StreamingDataset):
        yield from _of_dataset(dataset)


def _of_length(made: Any) -> Finding:
    try:
        length = len(made)
    except TypeError as error:
        return Finding("epoch", Level.ADVICE, f"the number of microbatches is not known: {error}", _LENGTH)
    except Exception as error:  # noqa: BLE001 - the user's: a run raises it, too
        return Finding("epoch", Level.WRONG, f"a shard cannot be opened: {error}", _OPENING)
    unit = "samples" if isinstance(made, StreamingDataset) else "microbatches"
    return Finding("epoch", Level.OK, f"{length:,} {unit} on this rank")


_OPENING = "Repair the shard or what opens it, or leave it out; on_shard_error='skip' leaves out a few."
_LENGTH = "Give the factory its lengths if a framework asks for len(loader)."


def _of_shards(loader: ShardedDataLoader) -> Iterator[Finding]:
    shards = loader.shards()
    if shards is None:
        yield Finding("shards", Level.OK, "the sampler does not say how many")
        return
    sizes = [_size_of(shard) for shard in shards[:_MOST_SHARDS]]
    missing = [shard for shard, size in zip(shards, sizes, strict=False) if size == -1]
    if missing:
        found = f"{len(missing):,} of {len(shards):,} do not exist; the first is {missing[0]!r}"
        yield Finding("shards", Level.WRONG, found, "Correct the sampler's paths.")
        return
    known = [size for size in sizes if size is not None]
    total = f", {readable_bytes(sum(known))} of files" if len(known) == len(shards) else ""
    level, change = (Level.OK, "") if shards else (Level.WRONG, "Give this rank shards: an epoch would be empty.")
    yield Finding("shards", level, f"{len(shards):,} on this rank in an epoch{total}", change)


def _size_of(shard: object) -> int | None:
    """Return the size of a file of this machine, -1 if it does not exist; None for anything else."""
    path = path_of(str(shard)) if isinstance(shard, (str, Path)) else None
    # A name without a folder may be a key of the user's own.
    if path is None or len(path.parts) == 1:
        return None
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _of_dataset(dataset: StreamingDataset) -> Iterator[Finding]:
    entries = dataset.shards
    stored, raw = sum(entry.stored_bytes for entry in entries), sum(entry.raw_bytes for entry in entries)
    unpacked = f", {readable_bytes(raw)} decompressed" if raw != stored else ""
    yield Finding(
        "dataset",
        Level.OK,
        f"{dataset.num_samples:,} samples in {dataset.num_shards:,} shards of {dataset.num_streams} streams, "
        f"{readable_bytes(stored)}{unpacked}",
    )
    kept = {Path(stream.local) for stream in dataset.streams if stream.remote and stream.local}
    wanted = max(raw, stored) if dataset.cache_limit is None else min(dataset.cache_limit, max(raw, stored))
    for directory in sorted(kept):
        yield from storage_findings(directory, wanted if len(kept) == 1 else None)
