"""What an examination says about one thing, and about what was read of a machine."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from fkat_data.tools.doctor.machine_facts import MachineFacts
from fkat_data.transport.memory_limit import default_limit_bytes
from fkat_data.wording import readable_bytes, readable_duration


class Level(StrEnum):
    """How good it is."""

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

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, which JSON can hold."""
        return {name: str(value) for name, value in self._asdict().items()}


def worst_of(findings: list[Finding]) -> Level:
    """Return the worst level of the findings."""
    levels = list(Level)
    return max((finding.level for finding in findings), key=levels.index, default=Level.OK)


_FEW_FILES = 1024
_FEWEST_FILES = 256
_FEW_PROCESSES = 1024
_FEWEST_PROCESSES = 64
_LITTLE_MEMORY_BYTES = 512 << 20
_SMALL_SHM_BYTES = 1 << 30
_SLOW_CLOCK_S = 1e-6


def machine_findings(facts: MachineFacts) -> list[Finding]:
    """Return a finding for each thing that a loader depends on."""
    return [
        *_shared_memory(facts),
        *_limits(facts),
        *_memory(facts),
        *_cores(facts),
        *_workers(facts),
        _clock(facts),
        *_accelerators(facts),
    ]


def _shared_memory(facts: MachineFacts) -> Iterator[Finding]:
    if facts.shared_memory_error is not None:
        change = "Let processes make shared memory, or set multiprocessing=False."
        yield Finding("shared memory", Level.WRONG, f"none can be made: {facts.shared_memory_error}", change)
    else:
        limit = readable_bytes(default_limit_bytes(facts.free_bytes))
        yield Finding("shared memory", Level.OK, f"works; a loader takes at most {limit} of it by default")
    if facts.shm_bytes is not None:
        found = f"{readable_bytes(facts.shm_bytes)} free; only torch's own workers use it"
        change = "Enlarge it (docker run --shm-size=8g) if a DataLoader inside your factory has num_workers > 0."
        yield _advice_if(facts.shm_bytes < _SMALL_SHM_BYTES, "/dev/shm", found, change)  # noqa: S108 - its name


def _limits(facts: MachineFacts) -> Iterator[Finding]:
    if facts.most_open_files is not None:
        soft, hard = facts.most_open_files
        level = Level.OK if soft >= _FEW_FILES else Level.ADVICE if soft >= _FEWEST_FILES else Level.WRONG
        wanted = min(65536, hard)
        change = f"Run `ulimit -n {wanted}` before the program." if hard > soft else "Raise the hard limit (nofile)."
        found = f"at most {soft:,} for this process (it may raise that to {hard:,})" if hard > soft else f"{soft:,}"
        yield Finding("open files", level, found, "" if level is Level.OK else change)
    yield from _processes(facts)
    if facts.most_file_bytes is not None:
        change = "Run `ulimit -f unlimited`: shared memory counts as a file, so a microbatch may not be larger."
        yield Finding("size of a file", Level.ADVICE, f"at most {readable_bytes(facts.most_file_bytes)}", change)
    if facts.most_address_bytes is not None:
        change = "Run `ulimit -v unlimited`: libraries and mapped files count, though they take no memory."
        yield Finding("address space", Level.ADVICE, f"at most {readable_bytes(facts.most_address_bytes)}", change)


def _processes(facts: MachineFacts) -> Iterator[Finding]:
    if facts.most_processes is not None:
        found = f"at most {facts.most_processes:,} of this user, threads included"
        change = "Run `ulimit -u 65536` before the program, or raise the hard limit (nproc): each worker has threads."
        level = _level_of_processes(facts.most_processes)
        yield Finding("processes", level, found, "" if level is Level.OK else change)
    if facts.group_free_processes is not None:
        found = f"a control group permits {facts.group_free_processes:,} more, threads included"
        change = "Raise the limit (docker run --pids-limit, pids.max), or use fewer workers: each has threads."
        level = _level_of_processes(facts.group_free_processes)
        yield Finding("processes of the group", level, found, "" if level is Level.OK else change)


def _level_of_processes(count: int) -> Level:
    return Level.OK if count >= _FEW_PROCESSES else Level.ADVICE if count >= _FEWEST_PROCESSES else Level.WRONG


def _memory(facts: MachineFacts) -> Iterator[Finding]:
    found = f"{readable_bytes(facts.free_bytes)} can be taken of {readable_bytes(facts.total_bytes)}"
    change = "Free some memory, or set memory_limit_bytes and fewer workers."
    yield _advice_if(facts.free_bytes < _LITTLE_MEMORY_BYTES, "memory", found, change)
    if facts.group_free_bytes is None:
        yield Finding("control group", Level.OK, "sets no limit on memory")
    else:
        found = f"leaves {readable_bytes(facts.group_free_bytes)} of memory; beyond that the kernel kills processes"
        change = "Ask for more memory for the job, or set memory_limit_bytes."
        yield _advice_if(facts.group_free_bytes < _LITTLE_MEMORY_BYTES, "control group", found, change)


def _cores(facts: MachineFacts) -> Iterator[Finding]:
    usable = facts.num_usable_cores
    found = f"{usable} of {facts.num_cores} may be used"
    change = "If that is not meant, check taskset, the job's cpuset, and OMP_PROC_BIND."
    yield _advice_if(usable == 1 < facts.num_cores, "cores", found, change)
    if facts.cpu_quota is not None:
        found = f"a control group grants {facts.cpu_quota:.3g} cores' worth of time"
        change = f"Count on {facts.cpu_quota:.3g} cores, not {usable}, when you choose the number of workers."
        yield _advice_if(facts.cpu_quota < usable, "CPU quota", found, change)


def _workers(facts: MachineFacts) -> Iterator[Finding]:
    if facts.system == "win32":
        change = "Set multiprocessing=False, or use Linux or macOS."
        yield Finding("start of workers", Level.WRONG, "this system has no worker processes", change)
    elif facts.has_pidfds:
        yield Finding("start of workers", Level.OK, "in milliseconds, from a template process")
    else:
        change = "Expect a second or more for each worker. Linux 5.3 or newer starts them in milliseconds."
        yield Finding("start of workers", Level.ADVICE, "each imports torch: this system has no pidfds", change)
    if facts.has_fixed_hash_seed:
        yield Finding("hash seed", Level.OK, "fixed: sets of strings have one order in all runs")
    else:
        change = "Set PYTHONHASHSEED=0 before the program if data may depend on the order of a set."
        yield Finding("hash seed", Level.OK, "random for each run; the workers of a loader share one", change)


def _clock(facts: MachineFacts) -> Finding:
    found = f"{facts.clock_source or 'unknown source'}, {readable_duration(facts.clock_call_s)} a reading"
    change = "Set the kernel's clock source to tsc or kvm-clock: a loader reads the clock several times a microbatch."
    return _advice_if(facts.clock_call_s > _SLOW_CLOCK_S, "clock", found, change)


def _advice_if(is_poor: bool, subject: str, found: str, change: str) -> Finding:
    return Finding(subject, Level.ADVICE, found, change) if is_poor else Finding(subject, Level.OK, found)


def _accelerators(facts: MachineFacts) -> Iterator[Finding]:
    if not facts.accelerators:
        if facts.driver is not None and facts.torch_cuda is None:
            change = "Install a build of torch with CUDA."
            yield Finding("GPU", Level.WRONG, f"driver {facts.driver}, but torch was built without CUDA", change)
        elif facts.driver is not None:
            change = "Check nvidia-smi, CUDA_VISIBLE_DEVICES, and whether the driver is new enough for this CUDA."
            found = f"driver {facts.driver}, torch for CUDA {facts.torch_cuda}, but torch sees no GPU"
            yield Finding("GPU", Level.WRONG, found, change)
        else:
            yield Finding("GPU", Level.OK, "none; microbatches stay on the CPU")
        return
    for index, accelerator in enumerate(facts.accelerators):
        found = f"{accelerator.name}, driver {facts.driver or 'unknown'}, CUDA {facts.torch_cuda or 'unknown'}"
        if accelerator.locks_pages:
            yield Finding(f"GPU {index}", Level.OK, f"{found}; memory can be page-locked")
        else:
            change = "Raise `ulimit -l`: without page-locked memory, copies to the GPU are slower and not asynchronous."
            yield Finding(f"GPU {index}", Level.ADVICE, f"{found}; memory cannot be page-locked", change)
