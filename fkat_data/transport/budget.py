"""How much shared memory a loader may take: of the machine's, and of its control groups'.

A control group kills where it has no more memory: reserving it beforehand is no help there, as it is on a file system.
So what a group has left is asked before the pool of segments grows.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import psutil

__all__ = ["available_bytes", "default_limit_bytes", "group_bytes"]

_MEBIBYTE = 1 << 20
_SMALLEST_LIMIT_BYTES = 1 << 20
_MOUNTS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


class _Files(NamedTuple):
    limit: str
    usage: str
    reclaimable: tuple[str, ...]


_VERSION_1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))
_VERSION_2 = _Files("memory.max", "memory.current", ("active_file", "inactive_file"))


def available_bytes(mounts: Path = _MOUNTS, own_groups: Path = _OWN_GROUPS) -> int:
    """Return the memory that can still be taken: the machine's, or a control group's where that is less."""
    available = psutil.virtual_memory().available
    left = group_bytes(mounts, own_groups)
    return available if left is None else min(available, left)


def group_bytes(mounts: Path = _MOUNTS, own_groups: Path = _OWN_GROUPS) -> int | None:
    """Return what the tightest of this process's control groups has left; None where none has a limit.

    Files that are only cached count as left: the kernel gives them up. For cgroups of version 1 and 2; as in
    https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files.
    """
    left = [_left_bytes(group, files) for group, files in _limited_groups(mounts, own_groups)]
    return min(left, default=None)


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
def _limited_groups(mounts: Path, own_groups: Path) -> list[tuple[Path, _Files]]:
    """Return this process's control groups, and those around them, that have a limit below the machine's memory."""
    total = psutil.virtual_memory().total
    return [
        (group, files)
        for group, files in _groups(mounts, own_groups)
        if (limit := _number_in(group / files.limit)) is not None and limit < total
    ]


def _groups(mounts: Path, own_groups: Path) -> Iterator[tuple[Path, _Files]]:
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
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


def _left_bytes(group: Path, files: _Files) -> int:
    limit, usage = _number_in(group / files.limit), _number_in(group / files.usage)
    if limit is None or usage is None:  # it is gone, or has no limit any more
        return psutil.virtual_memory().available
    return max(0, limit - usage + _reclaimable_bytes(group / "memory.stat", files.reclaimable))


def _reclaimable_bytes(path: Path, names: tuple[str, ...]) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    pairs = (line.split() for line in lines)
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in names and pair[1].isdigit())


def _number_in(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
