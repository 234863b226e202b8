"""The check whether forks of this process may use what it has opened, and what each of them must not share.

A fork has the threads of its parent no more. It shares with its parent, and with other forks, where each open file is
read and written next, sockets, and locks; and each fork would run the parent's exit hooks.
"""

import atexit
import logging
import multiprocessing.util
import os
import stat
import sys
import time
import weakref
from typing import Any, NamedTuple, NoReturn

from fkat_data.runtime import lifetime
from fkat_data.runtime.interruption import suppress
from fkat_data.runtime.machine import text_of

_HARMLESS = frozenset(map(os.makedev, (1, 1, 1, 1, 1), (3, 5, 7, 8, 9)))  # null, zero, full, random, urandom
_STANDARD = (0, 1, 2)
# jemalloc's, which pyarrow has: it stops at a fork, and each fork starts one when it needs it.
_FORK_SAFE = frozenset({"jemalloc_bg_thd"})
_ENDING_S, _PAUSE_S = 0.2, 0.005
_MOST_NAMED = 3
_OWN = "/proc/self"


class _File(NamedTuple):
    """An open file of this process.

    Attributes:
        target: What it is, as the system names it.
        device: The file system.
        inode: Its number there.
    """

    target: str
    device: int
    inode: int


class OpenThings:
    """A record of the files, shared memory and child processes of this process when it was made."""

    def __init__(self) -> None:
        self.files: dict[int, _File] = _open_files()
        self.shared_memory: frozenset[str] = _shared_memory()
        self.children: frozenset[str] = _children()

    def why_unfit(self) -> str:
        """Return why forks of this process may not go on with what it has opened since; empty: they may."""
        threads = _other_threads()
        if threads:
            return f"it started threads, which a fork would lose: {_listed(threads)}"
        children = sorted(_children() - self.children)
        if children:
            return f"it started processes, which a fork is not the parent of: {_listed(children)}"
        new, mapped = self._new_files().items(), _mapped_files()
        files = [found.target for number, found in new if not self._is_harmless(number, found, mapped)]
        if files:
            return f"it left files open, whose position forks would share: {_listed(files)}"
        memory = sorted(_shared_memory() - self.shared_memory)
        if memory:
            return f"it made shared memory, which forks would share: {_listed(memory)}"
        return ""

    def to_reopen(self) -> tuple[int, ...]:
        """Return the descriptors opened since that each fork is to open again."""
        new = self._new_files().items()
        return tuple(number for number, found in new if stat.S_ISREG(_mode_of(number)) and not self._is_standard(found))

    def _new_files(self) -> dict[int, _File]:
        return {number: found for number, found in _open_files().items() if self.files.get(number) != found}

    def _is_harmless(self, number: int, found: _File, mapped: frozenset[int]) -> bool:
        with suppress(OSError):
            status = os.fstat(number)
            if stat.S_ISCHR(status.st_mode):
                return status.st_rdev in _HARMLESS
            if stat.S_ISREG(status.st_mode) and _is_only_read(number) and found.inode in mapped:
                return True  # a mapping keeps a descriptor; each fork opens it again, see ``reopen``
        return self._is_standard(found)

    def _is_standard(self, found: _File) -> bool:
        return any(found == self.files.get(number) for number in _STANDARD)


def files_only_read() -> tuple[int, ...]:
    """Return the descriptors of this process's files that are only read, for ``reopen``."""
    numbers = (number for number in _open_files() if number not in _STANDARD)
    return tuple(number for number in numbers if stat.S_ISREG(_mode_of(number)) and _is_only_read(number))


def reopen(descriptors: tuple[int, ...]) -> None:
    """Give this process positions of its own in files that it shares with its parent.

    Args:
        descriptors: What ``OpenThings.to_reopen`` returned.
    """
    for descriptor in descriptors:
        with suppress(OSError):  # it may not be opened any more: nothing reads by a mapping's descriptor
            own = os.open(f"{_OWN}/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.lseek(own, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
                os.dup2(own, descriptor, inheritable=os.get_inheritable(descriptor))
            finally:
                os.close(own)


# What hooks and finalizers refer to: a destructor that ran in a fork would end what is its parent's.
_kept: list[Any] = []


def forget_exit_hooks() -> None:
    """Leave to the parent what it has registered for its end: two forks must not remove one temporary directory.

    What the hooks refer to stays, so that no destructor runs here.
    """
    _kept.append([(info, info.func, info.args, info.kwargs) for info in _finalizers().values()])
    for info in _finalizers().values():
        info.func, info.args, info.kwargs = _do_nothing, (), None
    finalizers: Any = weakref.finalize
    finalizers._registered_with_atexit = False  # noqa: SLF001 - those to come register themselves
    utilities: Any = multiprocessing.util
    _kept.append(dict(utilities._finalizer_registry))  # noqa: SLF001 - there is no other way
    utilities._finalizer_registry.clear()  # noqa: SLF001 - as above
    # Hooks are called newest first, and those before this one never: clearing them would drop what they refer to.
    atexit.register(_end_before_older_hooks)


def _finalizers() -> dict[Any, Any]:
    registered: Any = weakref.finalize
    return registered._registry  # noqa: SLF001 - there is no other way


def _do_nothing() -> None:
    """Stand in for a finalizer of the parent's."""


def _end_before_older_hooks() -> NoReturn:
    utilities: Any = multiprocessing.util
    try:
        # What a worker itself needs.
        for hook in (lifetime.call_at_exit, utilities._exit_function, logging.shutdown):  # noqa: SLF001 - as it does itself
            hook()
    finally:
        end_process()


def end_process() -> NoReturn:
    """End this process without taking apart what was imported, which would write to every object, and so copy its pages."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or without a reader
            stream.flush()
    os._exit(0)


def num_threads() -> int:
    """Return the number of threads of this process, those of libraries included that a fork would lose."""
    return 1 + len(_named_threads())


def stop_idle_threads() -> None:
    """Have libraries stop threads that wait for work: OpenBLAS does at a fork, and starts them again when needed."""
    if num_threads() > 1:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)


def _other_threads() -> list[str]:
    """Return the names of the threads of this process beside this one, but for those that end just now."""
    stop_idle_threads()
    deadline_s = time.monotonic() + _ENDING_S
    while num_threads() > 1 and time.monotonic() < deadline_s:
        time.sleep(_PAUSE_S)
    return _named_threads()


def _named_threads() -> list[str]:
    """Return the names of this process's threads beside the first one, but for those that forks start again."""
    others = set(os.listdir(f"{_OWN}/task")) - {str(os.getpid())}  # noqa: PTH208 - their names are enough
    names = (text_of(f"{_OWN}/task/{number}/comm").strip() or number for number in sorted(others))
    return [name for name in names if name not in _FORK_SAFE]


def _children() -> frozenset[str]:
    return frozenset(text_of(f"{_OWN}/task/{os.getpid()}/children").split())


def _open_files() -> dict[int, _File]:
    found: dict[int, _File] = {}
    for number in map(int, os.listdir(f"{_OWN}/fd")):  # noqa: PTH208 - their numbers are enough
        with suppress(OSError):  # that of the listing itself
            status = os.fstat(number)
            found[number] = _File(os.readlink(f"{_OWN}/fd/{number}"), status.st_dev, status.st_ino)  # noqa: PTH115 - as above
    return found


def _shared_memory() -> frozenset[str]:
    """Return the memory without a name that this process would share with its forks, by its addresses."""
    found: set[str] = set()
    for line in text_of(f"{_OWN}/maps").splitlines():
        addresses, rights, _, _, _, *path = line.split(maxsplit=5)
        if rights[1] == "w" and rights[3] == "s" and path and path[0].endswith(" (deleted)"):
            found.add(f"{addresses} {path[0]}")
    return frozenset(found)


def _mode_of(descriptor: int) -> int:
    with suppress(OSError):
        return os.fstat(descriptor).st_mode
    return 0


def _is_only_read(descriptor: int) -> bool:
    # The flags are octal.
    lines = text_of(f"{_OWN}/fdinfo/{descriptor}").splitlines()
    flags = next((int(line.split()[1], 8) for line in lines if line.startswith("flags:")), os.O_RDWR)
    return flags & os.O_ACCMODE == os.O_RDONLY


def _mapped_files() -> frozenset[int]:
    """Return the numbers of the files that this process has mapped; some file systems number them otherwise there."""
    fields = (line.split(maxsplit=5) for line in text_of(f"{_OWN}/maps").splitlines())
    return frozenset(int(inode) for _, _, _, _, inode, *path in fields if path)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (
        f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    )
