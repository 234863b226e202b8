"""Files and memory without a name, so that nothing can be left behind.

Linux has one thing for both, ``memfd``. Elsewhere a file is a temporary file, and memory is what ``shm_open`` returns;
either loses its name before anything else happens. macOS can neither read, write nor lock what ``shm_open`` returns,
and gives it a size only once.
"""

import errno
import fcntl
import os
import resource
import secrets
import tempfile
from importlib import import_module
from typing import Any

from fkat_data.errors import MemoryLimitError
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.transport.memory_limit import available_bytes


def anonymous_file() -> int:
    """Return a descriptor of an empty file: to read, to write, to lock and to map. No program inherits it.

    Raises:
        OSError: There is no memory, no room on the disk, or no descriptor.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fkat_data", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:  # its name is gone already
        return os.dup(file.fileno())


def anonymous_memory(size_bytes: int) -> int:
    """Return a descriptor of memory of this size, to map. No program inherits it.

    On Linux the memory is reserved, and neither side can shrink it while the other uses it.

    Raises:
        MemoryLimitError: The machine has no more shared memory, or a limit of this process does not allow it.
        OSError: There is no descriptor.
    """
    is_sealable = hasattr(os, "memfd_create")
    descriptor = anonymous_file() if is_sealable else _unnamed_memory()
    try:
        _reserve(descriptor, size_bytes)
        if is_sealable:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _unnamed_memory() -> int:
    # Not by ctypes: shm_open takes a variable number of arguments, which macOS passes in another way than ctypes does.
    shared_memory: Any = import_module("_posixshmem")
    name = f"/fkat_data-{secrets.token_hex(8)}"  # macOS takes 31 characters
    try:
        return shared_memory.shm_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode=0o600)
    finally:
        with suppress(FileNotFoundError):
            shared_memory.shm_unlink(name)


def _reserve(descriptor: int, size_bytes: int) -> None:
    """Give the file its size, with memory behind it: exhaustion is an error here instead of a SIGBUS while writing."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size_bytes)
        else:
            os.ftruncate(descriptor, size_bytes)
    except genuine(OSError) as error:
        if error.errno == errno.EFBIG:
            limit_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            reason = "the limit of file sizes (`ulimit -f`) counts for shared memory"
            raise MemoryLimitError(limit_bytes, size_bytes, 0, reason) from error
        if error.errno not in (errno.ENOSPC, errno.ENOMEM):
            raise
        raise MemoryLimitError(
            available_bytes(), size_bytes, 0, f"the machine has no more shared memory ({os.strerror(error.errno)})"
        ) from error
