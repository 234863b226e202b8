"""What a test's own processes leave: processes, shared memory, descriptors."""

import contextlib
import os
import re
from multiprocessing import resource_tracker
from pathlib import Path

import psutil

__all__ = ["SHARED", "SharedMemory", "descriptors", "processes"]

_SHARED_MEMORY = Path("/dev/shm")
# torch names its files by the process that made them, Python by chance.
_NAMES = re.compile(r"torch_(\d+)_|psm_|fkat")
#: A driver opens its own when it likes; a process shows until its end which version of a dataset it uses.
_KEPT = re.compile(r"/dev/nvidia.*|.*/\.fkat_data/users( \(deleted\))?")


#: What fixtures that tests share have started, which ends with them.
SHARED: set[tuple[str, int]] = set()


def processes():
    """Return the processes below this one that a test must end: neither shared ones nor Python's own."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            kept = any("multiprocessing.resource_tracker" in word for word in child.cmdline())
        except psutil.ZombieProcess:
            kept = False
        except psutil.NoSuchProcess:
            continue
        if not kept:
            found.add(("process", child.pid))
    return found - SHARED


def descriptors():
    """Return the descriptors of this process, with what each stands for, but for those that are kept until its end."""
    found = set()
    tracker = str(resource_tracker._resource_tracker._fd)
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            target = str(link.readlink())
            if link.name != tracker and not _KEPT.fullmatch(target):
                found.add(("descriptor", link.name, target))
    return found


class SharedMemory:
    """The files that own processes have left in shared memory since this was made; other programs make files, too.

    A file belongs to a test if it is named after a process of the test, or is in use by one. A process that is gone
    was the test's if it began after the test did, and a file without a process in its name was its own if no living
    process uses it.
    """

    def __init__(self):
        self._before = _files()
        self._pids_before = set(psutil.pids())

    def left(self):
        """Return what has been left."""
        return {("shared memory", name) for name in _files() - self._before if self._is_own(name)}

    def _is_own(self, name):
        own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
        if any(_uses(pid, name) for pid in own):
            return True
        named = _NAMES.match(name)
        if not named:
            return False
        if named[1]:
            pid = int(named[1])
            return pid in own or not (psutil.pid_exists(pid) or pid in self._pids_before)
        return not any(_uses(pid, name) for pid in psutil.pids())


def _files():
    return {file.name for file in _SHARED_MEMORY.iterdir() if _has_bytes(file)} if _SHARED_MEMORY.is_dir() else set()


def _has_bytes(file):
    """Return whether there is more than the name that a process leaves where it is killed before it has removed it."""
    try:
        return file.stat().st_size > 0
    except FileNotFoundError:
        return False


def _uses(pid, name):
    """Return whether a process has mapped a file of shared memory or holds it open."""
    file = _SHARED_MEMORY / name
    with contextlib.suppress(OSError):
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        if any(line.endswith(str(file)) for line in maps.splitlines()):
            return True
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if link.readlink() == file:
                    return True
    return False
