"""Examine everything: packages, the machine, places for a cache, and what a configured loader would do here."""

import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import psutil
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from fkat_data.loader.sharded import ShardedDataLoader
from fkat_data.location import path_of
from fkat_data.streaming.cache import file_system_of, is_node_local
from fkat_data.streaming.dataset import StreamingDataset
from fkat_data.tools.doctor.findings import Finding, Level, machine_findings
from fkat_data.tools.doctor.machine_facts import read_machine
from fkat_data.transport.memory_limit import available_bytes, default_limit_bytes
from fkat_data.wording import readable_bytes


def examine(make_loader: Callable[[], Any] | None = None, directories: Iterable[Path] = ()) -> dict[str, list[Finding]]:
    """Return findings by the part of the examination: versions, machine, and what was asked for.

    Args:
        make_loader: Makes a loader to look at; None: only the machine is examined.
        directories: Places for a cache to look at.
    """
    facts = read_machine()
    found = {"versions": installed_findings(), "machine": machine_findings(facts)}
    places = [finding for directory in directories for finding in storage_findings(directory)]
    if places:
        found["storage"] = places
    if make_loader is not None:
        found["configuration"] = configured_findings(make_loader, facts.num_usable_cores)
    return found


_PACKAGE = "fkat_data"


def installed_findings() -> list[Finding]:
    """Return a finding for Python, for each package that is required, and for each of an extra that is installed."""
    try:
        needed = metadata.requires(_PACKAGE) or []
        pythons = metadata.metadata(_PACKAGE)["Requires-Python"] or ""
    except metadata.PackageNotFoundError:
        return [Finding(_PACKAGE, Level.ADVICE, "runs from a folder and is not installed", "pip install fkat_data")]
    found = [Finding(_PACKAGE, Level.OK, metadata.version(_PACKAGE)), _python(pythons)]
    extras = metadata.metadata(_PACKAGE).get_all("Provides-Extra") or []
    # The same package may be asked for by several extras.
    by_name: dict[str, Requirement] = {}
    for requirement in map(Requirement, needed):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            by_name.setdefault(requirement.name, requirement)
    by_name.pop(_PACKAGE, None)  # what its extras have of one another
    for name, requirement in sorted(by_name.items(), key=lambda item: (item[1].marker is not None, item[0])):
        finding = judge_version(name, _version_of(name), requirement.specifier, is_required=requirement.marker is None)
        if finding is not None:
            found.append(finding)
    return found


def judge_version(name: str, version: str | None, wanted: SpecifierSet, *, is_required: bool) -> Finding | None:
    """Return what to say about one package; None for one that is not installed and not required."""
    if version is None:
        return Finding(name, Level.WRONG, "not installed", f"pip install '{name}{wanted}'") if is_required else None
    if wanted.contains(version, prereleases=True):
        return Finding(name, Level.OK, version)
    level = Level.WRONG if is_required else Level.ADVICE
    return Finding(name, level, f"{version}; {wanted} is supported", f"pip install '{name}{wanted}'")


def _python(wanted: str) -> Finding:
    version = platform.python_version()
    if SpecifierSet(wanted).contains(version, prereleases=True):
        return Finding("python", Level.OK, version)
    return Finding("python", Level.WRONG, f"{version}; {wanted} is supported", f"Use Python {wanted}.")


def _version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


_MEMORY_FILE_SYSTEMS = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}
_LITTLE_ROOM_BYTES = 1 << 30


def storage_findings(directory: Path, wanted_bytes: int | None = None) -> list[Finding]:
    """Return findings about a directory's file system and its room.

    Args:
        directory: Need not exist: what counts is the nearest one above it that does.
        wanted_bytes: What a run would keep there; None: not known.
    """
    subject = f"cache {directory}"
    place = directory
    while not os.path.exists(place) and place != place.parent:  # noqa: PTH110 - pathlib raises below a closed folder
        place = place.parent
    if not place.is_dir():
        return [Finding(subject, Level.WRONG, f"{place} is not a directory", "Choose another `local`.")]
    if not os.access(place, os.W_OK | os.X_OK):
        change = "Choose a directory that this user may write to. One with every shard in it may stay read-only."
        return [Finding(subject, Level.ADVICE, "cannot be written to", change)]
    findings = [_of_file_system(subject, place), _of_room(subject, place, wanted_bytes)]
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        findings.append(Finding(subject, Level.WRONG, f"no file can be made: {error}", "Choose another `local`."))
    return findings


def _of_file_system(subject: str, place: Path) -> Finding:
    kind = file_system_of(place)
    if kind in _MEMORY_FILE_SYSTEMS:
        change = "Use a disk: shards there take memory from the loader and the trainer."
        return Finding(subject, Level.ADVICE, f"is in memory ({_MEMORY_FILE_SYSTEMS[kind]})", change)
    if not is_node_local(kind):
        change = "Use a disk of the node's own: a shared file system is slower, and nodes then share one limit."
        return Finding(subject, Level.ADVICE, f"is on a file system that machines may share ({kind:#x})", change)
    return Finding(subject, Level.OK, "is on a file system of this machine alone")


def _of_room(subject: str, place: Path, wanted_bytes: int | None) -> Finding:
    free_bytes = psutil.disk_usage(str(place)).free
    found = f"{readable_bytes(free_bytes)} free"
    if wanted_bytes is not None and wanted_bytes > free_bytes:
        change = f"Set cache_limit below {readable_bytes(free_bytes)}, or choose a larger disk."
        return Finding(subject, Level.WRONG, f"{found}; the run keeps {readable_bytes(wanted_bytes)}", change)
    if free_bytes < _LITTLE_ROOM_BYTES:
        return Finding(subject, Level.ADVICE, found, "Free some space, or set cache_limit.")
    kept = "" if wanted_bytes is None else f"; the run keeps at most {readable_bytes(wanted_bytes)}"
    return Finding(subject, Level.OK, found + kept)


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
    except Exception as error:  # noqa: BLE001 - what it says is the finding
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
