"""Examine this machine, its installed packages, directories for a cache, and what a configured loader would do here."""

import importlib
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, cast

import psutil
import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from fkat_data.errors.wording import readable_bytes
from fkat_data.loaders.data_loader import DataLoader
from fkat_data.loaders.engine_settings import forks_program
from fkat_data.loaders.sharded import ShardedDataLoader
from fkat_data.runtime.launch import ranks_on_this_node
from fkat_data.runtime.machine import num_usable_cpus, text_of
from fkat_data.storage.location import path_of
from fkat_data.streaming.cache import file_system_of, is_node_local
from fkat_data.streaming.dataset import StreamingDataset
from fkat_data.transport.definitions import largest_part
from fkat_data.transport.memory_limit import WorkerMemory, available_bytes, default_limit, group_bytes
from fkat_data.transport.segment import SegmentPool


class Level(StrEnum):
    """The level: how good it is."""

    OK = "ok"
    ADVICE = "advice"
    WRONG = "wrong"


class Finding(NamedTuple):
    """One line of an examination.

    Attributes:
        subject: What was examined.
        level: ``OK``; ``ADVICE``: it works, and could be better; ``WRONG``: a run fails or loses much.
        found: What was found.
        change: What to change; empty where nothing should be.
    """

    subject: str
    level: Level
    found: str
    change: str = ""


def worst_of(findings: Iterable[Finding]) -> Level:
    """Return the worst level of the findings."""
    return max((finding.level for finding in findings), key=list(Level).index, default=Level.OK)


def examine(
    make_loader: Callable[[], Any] | None = None, directories: Iterable[Path] = (), root: Path = Path("/")
) -> dict[str, list[Finding]]:
    """Return findings by the part of the examination: versions, machine, and what was asked for.

    It makes a small segment of shared memory, and initialises CUDA where there is a GPU.

    Args:
        make_loader: Makes a loader to look at; None: only the machine is examined.
        directories: Directories for a cache to look at.
        root: Where the kernel's files are.
    """
    groups = root / "sys/fs/cgroup", root / "proc/self/cgroup"
    machine = [
        *_shared_memory(),
        *_limits(),
        *_memory(*groups),
        *_processors(*groups),
        _start_of_workers(),
        *_accelerators(text_of(root / "proc/driver/nvidia/version")),
    ]
    found = {"versions": list(_versions()), "machine": machine}
    storage = [finding for directory in directories for finding in _of_storage(directory)]
    if storage:
        found["storage"] = storage
    if make_loader is not None:
        found["configuration"] = _of_configuration(make_loader)
    return found


def _advice_if(is_poor: bool, subject: str, found: str, change: str) -> Finding:
    return Finding(subject, Level.ADVICE, found, change) if is_poor else Finding(subject, Level.OK, found)


def _by_number(number: int, few: int, fewest: int, subject: str, found: str, change: str) -> Finding:
    level = Level.OK if number >= few else Level.ADVICE if number >= fewest else Level.WRONG
    return Finding(subject, level, found, "" if level is Level.OK else change)


_PACKAGE = "fkat_data"


def _versions() -> Iterator[Finding]:
    """Yield a finding for Python, for each package that is required, and for each of an extra that is installed."""
    try:
        described = metadata.metadata(_PACKAGE)
    except metadata.PackageNotFoundError:
        yield Finding(_PACKAGE, Level.ADVICE, "runs from a folder and is not installed", "pip install fkat_data")
        return
    yield Finding(_PACKAGE, Level.OK, metadata.version(_PACKAGE))
    wanted = SpecifierSet(described["Requires-Python"] or "")
    yield from _version_of("python", platform.python_version(), wanted, is_required=True)
    extras = described.get_all("Provides-Extra") or []
    # The same package may be asked for by several extras.
    by_name: dict[str, Requirement] = {}
    for requirement in map(Requirement, metadata.requires(_PACKAGE) or []):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            by_name.setdefault(requirement.name, requirement)
    by_name.pop(_PACKAGE, None)  # what its extras have of one another
    for name, requirement in sorted(by_name.items(), key=lambda item: (item[1].marker is not None, item[0])):
        version = None
        with suppress(metadata.PackageNotFoundError):
            version = metadata.version(name)
        yield from _version_of(name, version, requirement.specifier, is_required=requirement.marker is None)


def _version_of(name: str, version: str | None, wanted: SpecifierSet, *, is_required: bool) -> Iterator[Finding]:
    """Yield what to say about one package; nothing for one that is not installed and not required."""
    change = f"pip install '{name}{wanted}'"
    if version is None:
        if is_required:
            yield Finding(name, Level.WRONG, "not installed", change)
    elif wanted.contains(version, prereleases=True):
        yield Finding(name, Level.OK, version)
    else:
        yield Finding(name, Level.WRONG if is_required else Level.ADVICE, f"{version}; {wanted} is supported", change)


_FEW_FILES, _FEWEST_FILES = 1024, 256
_FEW_PROCESSES, _FEWEST_PROCESSES = 1024, 64
_LITTLE_MEMORY_BYTES = 512 << 20
# More than the default, which is half of it when a loader is made.
_MUCH_TO_SHIP = 0.25
_MUCH_OF_MEMORY = 0.6
_SMALL_SHM_BYTES = 1 << 30


def _shared_memory() -> Iterator[Finding]:
    try:
        SegmentPool(WorkerMemory(1 << 20, 1 << 20, 1), _nothing, _nothing).take(1 << 16)
    except Exception as error:  # noqa: BLE001 - what it says is the finding
        change = "Let processes make shared memory, or set multiprocessing=False."
        yield Finding("shared memory", Level.WRONG, f"none can be made: {type(error).__name__}: {error}", change)
    else:
        limit = readable_bytes(default_limit(num_ranks=ranks_on_this_node()).limit_bytes)
        yield Finding("shared memory", Level.OK, f"works; a loader takes at most {limit} of it by default")
    with suppress(OSError):
        free_bytes = psutil.disk_usage("/dev/shm").free  # noqa: S108 - the kernel's, and only its size is read
        found = f"{readable_bytes(free_bytes)} free; only torch's own workers use it"
        change = "Enlarge it (docker run --shm-size=8g) if a DataLoader inside your factory has num_workers > 0."
        yield _advice_if(free_bytes < _SMALL_SHM_BYTES, "/dev/shm", found, change)  # noqa: S108 - its name


def _nothing(*_: object) -> None:
    pass


def _limits() -> Iterator[Finding]:
    """Yield findings about the limits of this process, where the system has them."""
    try:
        resource: Any = importlib.import_module("resource")
    except ModuleNotFoundError:
        return
    soft, hard = (
        sys.maxsize if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    found = f"at most {soft:,} for this process (it may raise that to {hard:,})" if hard > soft else f"{soft:,}"
    wanted = min(65536, hard)
    change = f"Run `ulimit -n {wanted}` before the program." if hard > soft else "Raise the hard limit (nofile)."
    yield _by_number(soft, _FEW_FILES, _FEWEST_FILES, "open files", found, change)
    # The limit on processes does not bind root.
    names = ("RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_AS")
    processes, file_bytes, address_bytes = (resource.getrlimit(getattr(resource, name))[0] for name in names)
    if processes != resource.RLIM_INFINITY and os.geteuid():
        found = f"at most {processes:,} of this user, threads included"
        change = "Run `ulimit -u 65536` before the program, or raise the hard limit (nproc): each worker has threads."
        yield _by_number(processes, _FEW_PROCESSES, _FEWEST_PROCESSES, "processes", found, change)
    if file_bytes != resource.RLIM_INFINITY:
        change = "Run `ulimit -f unlimited`: shared memory counts as a file, so a microbatch may not be larger."
        yield Finding("size of a file", Level.ADVICE, f"at most {readable_bytes(file_bytes)}", change)
    if address_bytes != resource.RLIM_INFINITY:
        change = "Run `ulimit -v unlimited`: libraries and mapped files count, though they take no memory."
        yield Finding("address space", Level.ADVICE, f"at most {readable_bytes(address_bytes)}", change)


def _memory(mounts: Path, own_groups: Path) -> Iterator[Finding]:
    free_bytes, left_bytes = available_bytes(mounts, own_groups), group_bytes(mounts, own_groups)
    found = f"{readable_bytes(free_bytes)} can be taken of {readable_bytes(psutil.virtual_memory().total)}"
    change = "Free some memory, or set memory_limit_bytes and fewer workers."
    yield _advice_if(free_bytes < _LITTLE_MEMORY_BYTES, "memory", found, change)
    if left_bytes is None:
        yield Finding("control group", Level.OK, "sets no limit on memory")
    else:
        found = f"leaves {readable_bytes(left_bytes)} of memory; beyond that the kernel kills processes"
        change = "Ask for more memory for the job, or set memory_limit_bytes."
        yield _advice_if(left_bytes < _LITTLE_MEMORY_BYTES, "control group", found, change)


def _processors(mounts: Path, own_groups: Path) -> Iterator[Finding]:
    usable, present = num_usable_cpus(), os.cpu_count() or 1
    change = "If that is not meant, check taskset, the job's cpuset, and OMP_PROC_BIND."
    yield _advice_if(usable == 1 < present, "cores", f"{usable} of {present} may be used", change)
    unified = list(_groups(mounts, own_groups, ""))
    of_cores = [
        *_pairs(unified, "cpu.max"),
        *_pairs(_groups(mounts, own_groups, "cpu"), "cpu.cfs_quota_us", "cpu.cfs_period_us"),
    ]
    if of_cores:
        quota = min(most / period for most, period in of_cores)
        change = f"Count on {quota:.3g} cores, not {usable}, when you choose the number of workers."
        found = f"a control group grants {quota:.3g} cores' worth of time"
        yield _advice_if(quota < usable, "CPU quota", found, change)
    of_processes = list(_pairs([*unified, *_groups(mounts, own_groups, "pids")], "pids.max", "pids.current"))
    if of_processes:
        num_free = max(0, min(most - taken for most, taken in of_processes))
        found = f"a control group permits {num_free:,} more, threads included"
        change = "Raise the limit (docker run --pids-limit, pids.max), or use fewer workers: each has threads."
        yield _by_number(num_free, _FEW_PROCESSES, _FEWEST_PROCESSES, "processes of the group", found, change)


def _groups(mounts: Path, own_groups: Path, controller: str) -> Iterator[Path]:
    """Yield this process's groups of a controller of version 1, or of version 2 (""), and those above them."""
    for line in text_of(own_groups).splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            group = mounts / controller / path.lstrip("/")
            yield from (each for each in (group, *group.parents) if each.is_relative_to(mounts / controller))


def _pairs(groups: Iterable[Path], *names: str) -> Iterator[tuple[int, int]]:
    """Yield the two numbers that files of each group hold; none of a group that lacks them, or sets no limit."""
    for group in groups:
        words = [word for name in names for word in text_of(group / name).split()]
        if len(words) == 2 and all(map(str.isdigit, words)):
            yield int(words[0]), int(words[1])


def _start_of_workers() -> Finding:
    if sys.platform == "win32":
        change = "Set multiprocessing=False, or use Linux or macOS."
        return Finding("start of workers", Level.WRONG, "this system has no worker processes", change)
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        change = "Expect a second or more for each worker. Linux 5.3 or newer starts them in milliseconds."
        return Finding("start of workers", Level.ADVICE, "each imports torch: this system has no pidfds", change)
    return Finding("start of workers", Level.OK, "in milliseconds, from a template process")


def _accelerators(about_driver: str) -> Iterator[Finding]:
    words = about_driver.partition("\n")[0].split()
    driver = next((word for word in words if "." in word and word.replace(".", "").isdigit()), None)
    built_for = torch.version.cuda
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            name = torch.cuda.get_device_name(index)
            found = f"{name}, driver {driver or 'unknown'}, CUDA {built_for or 'unknown'}"
            lock = "page-locked memory, copies to the GPU are slower and not asynchronous."
            locks = "" if _locks_pages() else "not "
            yield _advice_if(
                bool(locks),
                f"GPU {index}",
                f"{found}; memory can{locks} be page-locked",
                f"Raise `ulimit -l`: without {lock}",
            )
    elif driver is None:
        yield Finding("GPU", Level.OK, "none; microbatches stay on the CPU")
    elif built_for is None:
        change = "Install a build of torch with CUDA."
        yield Finding("GPU", Level.WRONG, f"driver {driver}, but torch was built without CUDA", change)
    else:
        change = "Check nvidia-smi, CUDA_VISIBLE_DEVICES, and whether the driver is new enough for this CUDA."
        found = f"driver {driver}, torch for CUDA {built_for}, but torch sees no GPU"
        yield Finding("GPU", Level.WRONG, found, change)


def _locks_pages() -> bool:
    try:
        return bool(torch.empty(1 << 16, dtype=torch.uint8).pin_memory().is_pinned())
    except RuntimeError:
        return False


_MEMORY_FILE_SYSTEMS = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}
_LITTLE_ROOM_BYTES = 1 << 30


def _of_storage(directory: Path, wanted_bytes: int | None = None) -> list[Finding]:
    """Return findings about a directory's file system and its room.

    Args:
        directory: Need not exist: what counts is the nearest one above it that does.
        wanted_bytes: What a run would keep there; None: not known.
    """
    subject = f"cache {directory}"
    path = directory
    while not os.path.exists(path) and path != path.parent:  # noqa: PTH110 - pathlib raises below a closed folder
        path = path.parent
    if not path.is_dir():
        return [Finding(subject, Level.WRONG, f"{path} is not a directory", "Choose another `local`.")]
    if not os.access(path, os.W_OK | os.X_OK):
        change = "Choose a directory that this user may write to. One with every shard in it may stay read-only."
        return [Finding(subject, Level.ADVICE, "cannot be written to", change)]
    findings = [_of_file_system(subject, file_system_of(path)), _of_room(subject, path, wanted_bytes)]
    try:
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        findings.append(Finding(subject, Level.WRONG, f"no file can be made: {error}", "Choose another `local`."))
    return findings


def _of_file_system(subject: str, kind: int) -> Finding:
    if kind in _MEMORY_FILE_SYSTEMS:
        change = "Use a disk: shards there take memory from the loader and the trainer."
        return Finding(subject, Level.ADVICE, f"is in memory ({_MEMORY_FILE_SYSTEMS[kind]})", change)
    if not is_node_local(kind):
        change = "Use a disk of the node's own: a shared file system is slower, and nodes then share one limit."
        return Finding(subject, Level.ADVICE, f"is on a file system that machines may share ({kind:#x})", change)
    return Finding(subject, Level.OK, "is on a file system of this machine alone")


def _of_room(subject: str, path: Path, wanted_bytes: int | None) -> Finding:
    free_bytes = psutil.disk_usage(str(path)).free
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


def _of_configuration(make_loader: Callable[[], Any]) -> list[Finding]:
    """Return findings about the loader that a function makes. It is made, looked at and closed; no data are read."""
    try:
        made = make_loader()
    except Exception as error:  # noqa: BLE001 - what it says is the finding
        message = " ".join(f"{type(error).__name__}: {error}".split())
        return [Finding("configuration", Level.WRONG, f"cannot be instantiated: {message}", "Correct what it names.")]
    try:
        return [Finding("configuration", Level.OK, f"makes a {type(made).__name__}"), *_of_loader(made)]
    finally:
        close = getattr(made, "close", None)
        if callable(close):
            close()


def _of_loader(made: Any) -> Iterator[Finding]:
    dataset = made if isinstance(made, StreamingDataset) else getattr(made, "dataset", None)
    is_sharded = isinstance(made, ShardedDataLoader)
    num_workers = made.statistics().num_workers if is_sharded else getattr(made, "num_workers", None)
    if isinstance(num_workers, int):
        num_cores = num_usable_cpus()
        found = f"{num_workers} on {num_cores} cores" if num_workers else "none; data are made in the trainer's process"
        change = "Take fewer, unless they mostly wait for a store: for that, workers='threads' needs less memory."
        yield _advice_if(num_workers > _WORKERS_A_CORE * num_cores, "workers", found, change)
    limit_bytes = cast("int | None", getattr(made, "memory_limit_bytes", 0))
    if num_workers and limit_bytes != 0:
        limit_bytes = limit_bytes or default_limit(num_ranks=ranks_on_this_node()).limit_bytes
        yield _of_memory(limit_bytes, available_bytes())
    if num_workers and dataset is not None:
        yield from _of_shipment(made, dataset)
    if is_sharded:
        yield _of_shards(cast("ShardedDataLoader[Any]", made))
    yield _of_length(made)
    if isinstance(dataset, StreamingDataset):
        yield from _of_dataset(dataset)


def _of_memory(limit_bytes: int, free_bytes: int) -> Finding:
    found = f"at most {readable_bytes(limit_bytes)} of shared memory; {readable_bytes(free_bytes)} can be taken"
    if limit_bytes > free_bytes:
        return Finding("memory", Level.WRONG, found, "Set memory_limit_bytes to less than half of that.")
    change = "Leave more to the trainer: lower memory_limit_bytes."
    return _advice_if(limit_bytes > _MUCH_OF_MEMORY * free_bytes, "memory", found, change)


def _of_shipment(made: Any, dataset: Any) -> Iterator[Finding]:
    """Advise on data in memory that workers get as a copy."""
    if not isinstance(made, DataLoader) or made.workers != "processes" or forks_program(cast("Any", made)):
        return
    path, size_bytes = largest_part("dataset", dataset)
    if size_bytes > _MUCH_TO_SHIP * psutil.virtual_memory().total:
        found = f"{path} has {readable_bytes(size_bytes)}, of which workers get a copy"
        change = "Pass start_method='fork', whose workers share this program's, or read it from a mapped file."
        yield Finding("data in memory", Level.ADVICE, found, change)


def _of_length(made: Any) -> Finding:
    try:
        length = len(made)
    except TypeError as error:
        change = "Give the factory its lengths if a framework asks for len(loader)."
        return Finding("epoch", Level.ADVICE, f"the number of microbatches is not known: {error}", change)
    except Exception as error:  # noqa: BLE001 - the user's: a run raises it, too
        change = "Repair the shard or what opens it, or leave it out; on_shard_error='skip' leaves out a few."
        return Finding("epoch", Level.WRONG, f"a shard cannot be opened: {error}", change)
    unit = "samples" if isinstance(made, StreamingDataset) else "microbatches"
    return Finding("epoch", Level.OK, f"{length:,} {unit} on this rank")


def _of_shards(loader: ShardedDataLoader) -> Finding:
    shards = loader.shards()
    if shards is None:
        return Finding("shards", Level.OK, "the sampler does not say how many")
    sizes = [_size_of(shard) for shard in shards[:_MOST_SHARDS]]
    missing = [shard for shard, size in zip(shards, sizes, strict=False) if size == -1]
    if missing:
        found = f"{len(missing):,} of {len(shards):,} do not exist; the first is {missing[0]!r}"
        return Finding("shards", Level.WRONG, found, "Correct the sampler's paths.")
    known = [size for size in sizes if size is not None]
    total = f", {readable_bytes(sum(known))} of files" if len(known) == len(shards) else ""
    level, change = (Level.OK, "") if shards else (Level.WRONG, "Give this rank shards: an epoch would be empty.")
    return Finding("shards", level, f"{len(shards):,} on this rank in an epoch{total}", change)


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
        yield from _of_storage(directory, wanted if len(kept) == 1 else None)
