"""Read from this machine what a loader depends on. Nothing here judges, and nothing is changed."""

import importlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from fkat_data.machine import num_usable_cpus
from fkat_data.transport.memory_limit import available_bytes, group_bytes
from fkat_data.transport.segment import SegmentPool

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


_CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_DRIVER = Path("/proc/driver/nvidia/version")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's, and only its size is read
_NUM_CLOCK_CALLS = 1000


class Accelerator(NamedTuple):
    """One GPU.

    Attributes:
        name: What torch calls it.
        locks_pages: Whether its driver page-locks memory of this process.
    """

    name: str
    locks_pages: bool


class MachineFacts(NamedTuple):
    """What was read. None stands for what this system does not have or does not tell.

    Attributes:
        system: The operating system's name, as ``sys.platform`` has it.
        shared_memory_error: Why a segment of shared memory cannot be made; None if it can.
        shm_bytes: Room in ``/dev/shm``, which torch's own workers use.
        most_open_files: The limit on open files, and the limit up to which this process may raise it.
        most_processes: The limit on the user's processes and threads; None where it does not bind, as for root.
        group_free_processes: How many processes and threads the tightest control group still permits.
        most_file_bytes: The limit on the size of a file, which shared memory counts as.
        most_address_bytes: The limit on this process's address space.
        total_bytes: The machine's memory.
        free_bytes: What can still be taken, of the machine's or a control group's.
        group_free_bytes: What the tightest control group leaves.
        num_cores: Cores of the machine.
        num_usable_cores: Cores that this process may run on.
        cpu_quota: Cores' worth of time that a control group grants.
        has_pidfds: Whether workers can be forked from a template.
        has_fixed_hash_seed: Whether strings hash alike in every run of this program.
        clock_source: The kernel's source of time.
        clock_call_s: Seconds that one reading of the clock takes.
        torch_cuda: The version of CUDA that torch was built for.
        driver: The NVIDIA driver's version.
        accelerators: The GPUs that torch sees.
    """

    system: str
    shared_memory_error: str | None
    shm_bytes: int | None
    most_open_files: tuple[int, int] | None
    most_processes: int | None
    group_free_processes: int | None
    most_file_bytes: int | None
    most_address_bytes: int | None
    total_bytes: int
    free_bytes: int
    group_free_bytes: int | None
    num_cores: int
    num_usable_cores: int
    cpu_quota: float | None
    has_pidfds: bool
    has_fixed_hash_seed: bool
    clock_source: str | None
    clock_call_s: float
    torch_cuda: str | None
    driver: str | None
    accelerators: list[Accelerator]


def read_machine() -> MachineFacts:
    """Read this machine. It makes a small segment of shared memory, and initialises CUDA where there is a GPU."""
    return MachineFacts(
        system=sys.platform,
        shared_memory_error=_shared_memory_error(),
        shm_bytes=_free_bytes(_SHARED_MEMORY),
        most_open_files=_limits("RLIMIT_NOFILE"),
        most_processes=_limit("RLIMIT_NPROC") if getattr(os, "geteuid", int)() else None,
        group_free_processes=num_free_processes(),
        most_file_bytes=_limit("RLIMIT_FSIZE"),
        most_address_bytes=_limit("RLIMIT_AS"),
        total_bytes=psutil.virtual_memory().total,
        free_bytes=available_bytes(),
        group_free_bytes=group_bytes(),
        num_cores=os.cpu_count() or 1,
        num_usable_cores=num_usable_cpus(),
        cpu_quota=cpu_quota(),
        has_pidfds=_has_pidfds(),
        has_fixed_hash_seed=not sys.flags.hash_randomization or os.environ.get("PYTHONHASHSEED", "").isdigit(),
        clock_source=text_of(_CLOCK_SOURCE),
        clock_call_s=_clock_call_s(),
        torch_cuda=torch.version.cuda,
        driver=_driver(),
        accelerators=_accelerators(),
    )


def _shared_memory_error() -> str | None:
    try:
        SegmentPool(1 << 20, _nothing, _nothing).take(1 << 16)
    except Exception as error:  # noqa: BLE001 - what it says is the finding
        return f"{type(error).__name__}: {error}"
    return None


def _nothing(*_: object) -> None:
    pass


def _free_bytes(path: Path) -> int | None:
    try:
        return psutil.disk_usage(str(path)).free
    except OSError:
        return None


def _limits(name: str) -> tuple[int, int] | None:
    try:
        resource: Any = importlib.import_module("resource")
    except ModuleNotFoundError:
        return None
    soft, hard = resource.getrlimit(getattr(resource, name))
    return tuple(sys.maxsize if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))  # type: ignore[return-value]  # two


def _limit(name: str) -> int | None:
    limits = _limits(name)
    return None if limits is None or limits[0] == sys.maxsize else limits[0]


def _has_pidfds() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _clock_call_s() -> float:
    began_s = time.perf_counter()
    for _ in range(_NUM_CLOCK_CALLS):
        time.monotonic()
    return (time.perf_counter() - began_s) / _NUM_CLOCK_CALLS


def _driver() -> str | None:
    words = (text_of(_DRIVER) or "").splitlines()[:1]
    versions = [word for word in " ".join(words).split() if word.count(".") >= 1 and word.replace(".", "").isdigit()]
    return versions[0] if versions else None


def _accelerators() -> list[Accelerator]:
    if not torch.cuda.is_available():
        return []
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return [Accelerator(name, _locks_pages()) for name in names]


def _locks_pages() -> bool:
    try:
        return bool(torch.empty(1 << 16, dtype=torch.uint8).pin_memory().is_pinned())
    except RuntimeError:
        return False
