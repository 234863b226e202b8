"""What control groups, of version 1 and 2, grant a process besides memory."""

from collections.abc import Iterator
from pathlib import Path

__all__ = ["cpu_quota", "num_free_processes", "text_of"]

_MOUNTS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def cpu_quota(mounts: Path = _MOUNTS, own_groups: Path = _OWN_GROUPS) -> float | None:
    """Return the smallest quota of this process's control groups, in cores; None: none has one."""
    quotas: list[float] = []
    for version, group in _groups(mounts, own_groups, "cpu"):
        if version == 2:
            quotas.append(_quota(text_of(group / "cpu.max")))
        else:
            texts = (text_of(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
            quotas.append(_quota(" ".join(text or "" for text in texts)))
    return min((quota for quota in quotas if quota), default=None)


def num_free_processes(mounts: Path = _MOUNTS, own_groups: Path = _OWN_GROUPS) -> int | None:
    """Return how many processes and threads this process's control groups still permit; None: they set no limit."""
    free: list[int] = []
    for _, group in _groups(mounts, own_groups, "pids"):
        most, present = (text_of(group / f"pids.{name}") or "" for name in ("max", "current"))
        if most.isdigit() and present.isdigit():
            free.append(max(0, int(most) - int(present)))
    return min(free, default=None)


def text_of(path: Path) -> str | None:
    """Return what a file of the kernel's says; None: it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _groups(mounts: Path, own_groups: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """Yield this process's groups of a controller and those above them, each with its version."""
    for line in (text_of(own_groups) or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield from ((2, group) for group in _up(mounts, path))
        elif controller in controllers.split(","):
            yield from ((1, group) for group in _up(mounts / controller, path))


def _up(mount: Path, path: str) -> list[Path]:
    group = mount / path.lstrip("/")
    return [group, *(parent for parent in group.parents if parent == mount or mount in parent.parents)]


def _quota(text: str | None) -> float:
    numbers = (text or "").split()
    if len(numbers) != 2 or not all(number.isdigit() for number in numbers) or not int(numbers[1]):
        return 0.0
    return int(numbers[0]) / int(numbers[1])
