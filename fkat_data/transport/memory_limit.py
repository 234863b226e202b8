"""How much shared memory a loader may take: of the machine's, and of its control groups'.

A control group kills where it has no more memory: reserving it beforehand is no help there, as it is on a file system.
So what a group has left is asked before each new segment is made.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fkat_data.machine import text_of

_MEBIBYTE = 1 << 20
_SMALLEST_LIMIT_BYTES = 1 << 20
_MOUNTS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
# A limit that is none, in version 1: the largest number of whole pages.
_UNLIMITED_BYTES = 1 << 60
# What is left to the others in a group: the trainer's own tensors, page tables, sockets.
_KEPT_SHARE = 0.1


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


def default_limit_bytes(available: int | None = None) -> int:
    """Return an eighth of what is available, from 64 MiB to 1 GiB, and at most half of it.

    Modest on purpose: prefetching further than that hides no latency, and memory that is used again and again
    stays mapped and in the caches.

    Args:
        available: Bytes; None: what ``available_bytes`` returns.
    """
    available = available_bytes() if available is None else available
    modest = min(max(available // 8, 64 * _MEBIBYTE), 1024 * _MEBIBYTE)
    return max(min(modest, available // 2), _SMALLEST_LIMIT_BYTES)


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
