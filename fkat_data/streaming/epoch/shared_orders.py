"""Orders that the processes of a node share: one computes a part into a file, and the others map it.

A file lies in a folder of the temporary directory that belongs to this user. Locks of the kernel order its life:

- Its maker holds an exclusive lock. If the maker dies, the lock is free, and the next process makes the file.
- A process that maps it holds a shared lock. The last one removes the file.
- A process that makes a file removes the files that none holds, which killed processes left.

A process waits for a maker for a limited time. It computes the part in its own memory if that passes, or if the folder
or the disk does not work.
"""

import functools
import logging
import mmap
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.runtime.lifetime import on_collected
from fkat_data.runtime.machine import boot_text
from fkat_data.streaming.cache.locks import LockFile, pauses
from fkat_data.streaming.cache.paths import allocate
from fkat_data.streaming.order.shuffle import OrderPart, in_memory

_Integers = npt.NDArray[Any]
_logger = logging.getLogger(__name__)

_SUFFIX = ".order"
#: Written last: a file that ends with it is whole.
_TRAILER = b"fkat_data order\n"
#: A part with fewer samples is not worth a file.
_LEAST_SAMPLES = 1 << 20
#: How long to wait for a maker: many times what the computation takes.
_WAIT_S, _WAIT_PER_SAMPLE_S = 30.0, 2e-6


def shared_part(
    key: str, size: int, dtype: type[np.signedinteger[Any]], make: Callable[[], Iterator[_Integers]]
) -> OrderPart:
    """Return a part of an order that this node's processes share: an ``OrderCache``."""
    if size < _LEAST_SAMPLES:
        return in_memory(key, size, dtype, make)
    try:
        # A file of before a failure of the power, when it was not synced, may look whole and be empty.
        path = _folder() / f"{key}-{boot_text().strip()}{_SUFFIX}"
        deadline_s = time.monotonic() + _WAIT_S + _WAIT_PER_SAMPLE_S * size

        def parts() -> Iterator[memoryview]:
            return (np.ascontiguousarray(samples, dtype).data for samples in make())

        lock = _opened(path, size * np.dtype(dtype).itemsize, parts, deadline_s)
        return SharedPart(lock, path, size, dtype)
    except genuine(OSError) as error:
        _logger.warning("each process computes the order of its epoch alone, because sharing it failed: %s", error)
        return in_memory(key, size, dtype, make)


class SharedPart:
    """A part of an order in a mapped file.

    Args:
        lock: The file, with a shared lock.
        path: Its path.
        size: Number of positions.
        dtype: Type of the samples.

    Raises:
        OSError: The file cannot be mapped.
    """

    def __init__(self, lock: LockFile, path: Path, size: int, dtype: type[np.signedinteger[Any]]) -> None:
        length = size * np.dtype(dtype).itemsize + len(_TRAILER)
        mapped = mmap.mmap(lock.descriptor, length, access=mmap.ACCESS_READ)
        # A list, which the finalizer can empty: the map has a descriptor, and so the lock, as long as it lives.
        self._samples: list[_Integers] = [np.frombuffer(mapped, dtype, size)]
        del mapped
        on_collected(self, functools.partial(_release, self._samples, lock, path), at_exit=True)

    def __getitem__(self, positions: Any) -> _Integers:
        """Return the samples at an array of positions."""
        return self._samples[0][positions]


def _release(samples: list[_Integers], lock: LockFile, path: Path) -> None:
    samples.clear()
    lock.close()
    _remove_unused(path)


def _opened(path: Path, size_bytes: int, parts: Callable[[], Iterator[memoryview]], deadline_s: float) -> LockFile:
    """Return the whole file, with a shared lock; make it unless another process has."""
    for pause_s in pauses():
        lock = LockFile(path)
        try:
            is_alone = lock.try_lock()
            if is_alone and lock.is_there and not _is_whole(lock, size_bytes):
                _remove_others(path)
                _fill(lock, path, size_bytes, parts)
            if lock.try_lock(shared=True) and _is_whole(lock, size_bytes):
                return lock
        except BaseException:
            lock.close()
            raise
        lock.close()
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"another process has not computed {path} in time")
        time.sleep(pause_s)
    raise AssertionError("pauses() has no end")


def _is_whole(lock: LockFile, size_bytes: int) -> bool:
    return os.pread(lock.descriptor, len(_TRAILER) + 1, size_bytes) == _TRAILER


def _fill(lock: LockFile, path: Path, size_bytes: int, parts: Callable[[], Iterator[memoryview]]) -> None:
    os.ftruncate(lock.descriptor, 0)
    try:
        allocate(lock.descriptor, size_bytes + len(_TRAILER))
        with open(lock.descriptor, "wb", closefd=False) as file:
            file.writelines(parts())
            file.write(_TRAILER)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


def _remove_others(path: Path) -> None:
    for other in path.parent.glob(f"*{_SUFFIX}"):
        if other != path:
            _remove_unused(other)


def _remove_unused(path: Path) -> None:
    """Remove a file unless a process maps or makes it."""
    with suppress(OSError), LockFile(path, os.O_RDWR) as lock:
        if lock.try_lock() and lock.is_there:
            path.unlink()


def _folder() -> Path:
    """Return the folder of this user's orders.

    Raises:
        OSError: It cannot be made, or another user could write into it.
    """
    folder = Path(tempfile.gettempdir()) / f"fkat_data-{os.geteuid()}-orders"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder that this user alone may write into")
    return folder
