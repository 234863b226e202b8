"""How much shared memory a loader may take: of the machine's, and of its control groups'.

A control group kills where it has no more memory: reserving it beforehand is no help there, as it is on a file system.
So what a group has left is asked before each new segment is made.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fkat_data.runtime.machine import text_of

_MEBIBYTE = 1 << 20
#: The least that a worker can work with.
SMALLEST_SHARE_BYTES = 1 << 20
# A loop needs room for the microbatch that it works on and for the next one.
_LEAST_MICROBATCHES = 2
_MOUNTS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
# A limit that is none, in version 1: the largest number of whole pages.
_UNLIMITED_BYTES = 1 << 60
# What is left to the others in a group: the trainer's own tensors, page tables, sockets.
_KEPT_SHARE = 0.1
# What is left to the others on a machine: a twentieth of its memory, and no more than this.
_KEPT_OF_MACHINE, _MOST_KEPT_BYTES = 0.05, 512 * _MEBIBYTE


class _Files(NamedTuple):
    limits: tuple[str, ...]
    usage: str
    reclaimable: tuple[str, ...]


_VERSION_1 = _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))
_VERSION_2 = _Files(("memory.max", "memory.high"), "memory.current", ("active_file", "inactive_file"))


def available_bytes(mounts: Path = _MOUNTS, own_groups: Path = _OWN_GROUPS) -> int:
    """Return the memory that can still be taken: the machine's, or a control group's where that is less."""
    left = group_bytes(mounts, own_groups)
    import psutil  # noqa: PLC0415 - to import the package takes less without it

    available = psutil.virtual_memory().available
    return available if left is None else min(available, left)


def group_bytes(mounts: Path = _MOUNTS, own_groups: Path = _OWN_GROUPS) -> int | None:
    """Return what may be taken of the tightest of this process's control groups; None where none has a limit.

    A tenth of a limit is kept for others. Files that are only cached count as left: the kernel gives them up. A limit
    above which processes are slowed down counts as one. For cgroups of version 1 and 2; as in
    https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files.
    """
    left = [_left_bytes(group, files) for group, files in _memory_groups(mounts, own_groups)]
    return min((number for number in left if number is not None), default=None)


class WorkerMemory(NamedTuple):
    """The shared memory of one worker.

    Attributes:
        limit_bytes: What it may take.
        prefetch_bytes: What it takes to prefetch, unless its microbatches are large.
        num_workers: Workers of the loader, each of which may take as much.
    """

    limit_bytes: int
    prefetch_bytes: int
    num_workers: int


class MemoryLimit(NamedTuple):
    """The shared memory of a loader's workers together.

    Attributes:
        limit_bytes: What they may take.
        prefetch_bytes: What they take to prefetch, unless their microbatches are large.
    """

    limit_bytes: int
    prefetch_bytes: int

    def of_worker(self, num_workers: int) -> WorkerMemory:
        """Return what each of the workers gets: an equal share."""
        return WorkerMemory(self.limit_bytes // num_workers, self.prefetch_bytes // num_workers, num_workers)


def default_limit(num_workers: int = 1, num_ranks: int = 1, available: int | None = None) -> MemoryLimit:
    """Return what a loader takes if its user says nothing: of what is available, a rank's equal share.

    The limit is half of that. Prefetching stays within an eighth, from 64 MiB to 1 GiB: to prefetch further hides no
    latency, and memory that is used again and again stays mapped and in the caches.

    Args:
        num_workers: Workers of the loader.
        num_ranks: Ranks on this machine, each with such a loader.
        available: Bytes; None: what ``available_bytes`` returns.
    """
    share = (available_bytes() if available is None else available) // num_ranks
    least = SMALLEST_SHARE_BYTES * num_workers
    prefetch_bytes = min(max(share // 8, 64 * _MEBIBYTE), 1024 * _MEBIBYTE, share // 2)
    return MemoryLimit(max(share // 2, least), max(prefetch_bytes, least))


def sufficient_limit(microbatch_bytes: int, num_workers: int, held_bytes: int = 0) -> str:
    """Return the argument with which each worker has room for two microbatches, beside what the caller keeps.

    Args:
        microbatch_bytes: The size of the segment of one.
        num_workers: Workers of the loader.
        held_bytes: What the caller keeps of one worker's.
    """
    limit_bytes = num_workers * (held_bytes + _LEAST_MICROBATCHES * microbatch_bytes)
    available = available_bytes()
    if limit_bytes <= available:
        return f"memory_limit_bytes={limit_bytes}"
    return (
        f"memory_limit_bytes={limit_bytes}, where this process can take only {available} more, with fewer workers less"
    )


def left_on_machine() -> int:
    """Return what may be taken of the machine's memory: a twentieth of it, 512 MiB at most, is kept for others."""
    if sys.platform == "linux":  # without psutil, which a worker does not import
        fields = dict(line.split(":", 1) for line in text_of("/proc/meminfo").splitlines() if ":" in line)
        with suppress(KeyError, ValueError, IndexError):
            total, available = (1024 * int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
            return max(0, available - min(int(_KEPT_OF_MACHINE * total), _MOST_KEPT_BYTES))
    import psutil  # noqa: PLC0415 - as above

    memory = psutil.virtual_memory()
    return max(0, memory.available - min(int(_KEPT_OF_MACHINE * memory.total), _MOST_KEPT_BYTES))


@cache
def _memory_groups(mounts: Path, own_groups: Path) -> list[tuple[Path, _Files]]:
    """Return this process's control groups, and those around them, that may limit memory."""
    return [(group, files) for group, files in _groups(mounts, own_groups) if (group / files.usage).exists()]


def _groups(mounts: Path, own_groups: Path) -> Iterator[tuple[Path, _Files]]:
    for line in text_of(own_groups).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield from ((group, _VERSION_2) for mount in (mounts, mounts / "unified") for group in _up(mount, path))
        elif "memory" in controllers.split(","):
            yield from ((group, _VERSION_1) for group in _up(mounts / "memory", path))


def _up(mount: Path, path: str) -> Iterator[Path]:
    """Yield a group and those around it: in a container, the path may be the host's, and only the mount is there."""
    group = mount / path.lstrip("/")
    yield group
    while group != mount:
        group = group.parent
        yield group


def _left_bytes(group: Path, files: _Files) -> int | None:
    limit = min(_number_in(group / name, _UNLIMITED_BYTES) for name in files.limits)
    if limit >= _UNLIMITED_BYTES:
        return None
    taken = _number_in(group / files.usage, 0) - _reclaimable_bytes(group / "memory.stat", files.reclaimable)
    return max(0, int((1 - _KEPT_SHARE) * limit) - taken)


def _reclaimable_bytes(path: Path, names: tuple[str, ...]) -> int:
    pairs = (line.split() for line in text_of(path).splitlines())
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in names and pair[1].isdigit())


def _number_in(path: Path, otherwise: int) -> int:
    text = text_of(path).strip()
    return int(text) if text.isdigit() else otherwise
