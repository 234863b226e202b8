"""How much shared memory a loader may take when its user does not say."""

from pathlib import Path

import psutil

__all__ = ["available_bytes", "default_limit_bytes"]

_MEBIBYTE = 1 << 20
_CGROUP = Path("/sys/fs/cgroup")
# (limit, usage) of version 2, then of version 1.
_CGROUP_FILES = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


def available_bytes(cgroup: Path = _CGROUP) -> int:
    """Return the memory that can still be taken: the machine's, or the control group's where that is less."""
    available = psutil.virtual_memory().available
    for limit_name, usage_name in _CGROUP_FILES:
        limit, usage = _number_in(cgroup / limit_name), _number_in(cgroup / usage_name)
        if limit is not None and usage is not None:
            available = min(available, max(0, limit - usage))
    return available


def default_limit_bytes() -> int:
    """Return an eighth of what is available, from 64 MiB to 1 GiB.

    Modest on purpose: prefetching further than that hides no latency, and memory that is used again and again
    stays mapped and in the caches.
    """
    return min(max(available_bytes() // 8, 64 * _MEBIBYTE), 1024 * _MEBIBYTE)


def _number_in(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
