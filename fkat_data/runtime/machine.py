"""What one call tells on Linux, and another one elsewhere: the CPUs, a process's start, the machine's start.

Four files hold what else differs between systems: ``fkat_data.transport.record_locks``, ``fkat_data.transport.anonymous``,
``fkat_data.transport.channel`` and ``fkat_data.worker.process.child``.
"""

import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from fkat_data.errors import ConfigurationError
from fkat_data.runtime.interruption import genuine, suppress

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def can_start_workers() -> bool:
    """Return whether worker processes work on this system: on Linux and macOS they do, on Windows they do not."""
    return sys.platform != "win32"


def refuse_workers(argument: str, value: object, instead: object = False) -> None:
    """Refuse an argument that needs worker processes, where this system has none.

    Args:
        argument: Its name.
        value: Its value.
        instead: The value that works.

    Raises:
        ConfigurationError: This is Windows.
    """
    if not can_start_workers():
        expected = f"{instead}, or workers='threads', on Windows: worker processes need Linux or macOS"
        raise ConfigurationError(argument, value, expected)


def call_in_forks(action: Callable[[], object]) -> None:
    """Call an action in each process that is forked from this one, where the system forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=action)


def text_of(path: str | Path) -> str:
    """Return the text of a file, empty if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except genuine(OSError):
        return ""


def num_usable_cpus() -> int:
    """Return how many CPUs this process may use; all of the machine's where the system sets no such limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def boot_text() -> str:
    """Return a text that changes when the machine restarts."""
    with suppress(OSError):
        return _BOOT.read_text()
    import psutil  # noqa: PLC0415 - on Linux, what needs this function does not need psutil

    return str(int(psutil.boot_time()))


_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


def path_in_file_system(path: str) -> str:
    """Return the file system that a path is on, and the path in it: the same for all directories where it is mounted.

    Args:
        path: An absolute path without links.

    Returns:
        "" where the system does not tell, or tells no path that is the same for all mounts of a file server.
    """
    mounts: list[tuple[str, str, str, str]] = []
    for line in text_of(_MOUNTS).splitlines():
        with suppress(ValueError, IndexError):  # a line of another form
            _, _, device, root, point, *others = (
                _OCTAL.sub(lambda found: chr(int(found[1], 8)), word) for word in line.split()
            )
            mounts.append((point.rstrip("/"), device, root.rstrip("/"), others[others.index("-") + 1]))
    # What was mounted last hides what was mounted there before.
    found = [mount for mount in reversed(mounts) if path == mount[0] or path.startswith(f"{mount[0]}/")]
    if not found:
        return ""
    point, device, root, kind = max(found, key=lambda mount: len(mount[0]))
    if kind.startswith("nfs") and sum(mount[1] == device for mount in mounts) > 1:
        return ""
    return f"{device} {root}{path[len(point) :]}"


def started_at(pid: int) -> int:
    """Return when a process started, in hundredths of a second; 0 if it has ended.

    On Linux they count from the machine's start.
    """
    if sys.platform == "linux":
        # The name of the program, in parentheses, may contain anything.
        numbers = text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return int(numbers[19]) if numbers else 0
    import psutil  # noqa: PLC0415 - as above

    try:
        return int(100 * psutil.Process(pid).create_time())
    except genuine(psutil.Error):
        return 0


def variables_at_start() -> dict[str, str]:
    """Return the environment variables that this process was started with; none if the system does not tell."""
    if sys.platform != "linux":
        import psutil  # noqa: PLC0415 - as above

        with suppress(psutil.Error, OSError):
            return psutil.Process().environ()
        return {}
    parts = (variable.partition("=") for variable in text_of("/proc/self/environ").split("\0") if variable)
    return {name: value for name, _, value in parts}


def required(module: str, extra: str) -> Any:
    """Import and return an optional module.

    Args:
        module: Full name of the module.
        extra: Extra of this package that installs the module.

    Raises:
        ConfigurationError: The module is not installed.
    """
    try:
        return import_module(module)
    except genuine(ModuleNotFoundError) as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the module is installed, but one of its own dependencies is not
        name = module.partition(".")[0]
        raise ConfigurationError(name, "<not installed>", f"pip install 'fkat_data[{extra}]'") from error
