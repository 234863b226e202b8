"""Map files into memory, read their offsets, and notice that one is changed in place."""

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ShardCorruptError, ShardNotFoundError
from fkat_data.files.shard import FileInfo, MapRegister
from fkat_data.files.stored import check_size
from fkat_data.runtime.interruption import genuine
from fkat_data.storage.file_identity import FileIdentity

_FAILED = ctypes.c_void_p(-1).value


class _Calls(NamedTuple):
    """The C library's calls that map and unmap."""

    map: Any
    unmap: Any


@cache
def _calls() -> _Calls:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_int64 if ctypes.sizeof(ctypes.c_long) == 8 else ctypes.c_long,
    )
    # With what a weak reference passes to its callback, which the function does not read.
    unmap = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.py_object)(("munmap", library))
    return _Calls(library.mmap, unmap)


class _Map(weakref.ref[Any]):
    """A reference to what is mapped, in a set that it leaves at the end: no code of Python runs then."""

    __slots__ = ("company", "unmapping")
    company: object
    unmapping: "weakref.ref[Any]"
    __hash__ = object.__hash__


_maps: set[_Map] = set()


def map_file(descriptor: int, size_bytes: int, on_mapped: Callable[[], object], *, start: int = 0) -> memoryview:
    """Map an open file, read-only. The descriptor may be closed at once; the last view's end unmaps the file.

    ``mmap.mmap`` keeps a descriptor for each map (before Python 3.13), and a process has few of them.

    Args:
        descriptor: The open file.
        size_bytes: How many of its bytes, at least 1.
        on_mapped: Called once the file is mapped. What it returns is dropped once the file is unmapped.
        start: The first byte, a multiple of ``mmap.ALLOCATIONGRANULARITY``.

    Raises:
        OSError: The kernel refuses the map.
        Exception: What ``on_mapped`` raised.
    """
    calls = _calls()
    address: int = calls.map(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, start)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)}: cannot map {size_bytes} bytes")
    content = (ctypes.c_ubyte * size_bytes).from_address(address)
    # At the interpreter's end, a daemon thread may still read: the kernel unmaps then.
    map_ = _Map(content, _maps.discard)
    map_.unmapping = weakref.ref(content, partial(calls.unmap, address, size_bytes))
    _maps.add(map_)
    map_.company = on_mapped()
    return memoryview(content).cast("B").toreadonly()


def num_maps() -> int:
    """Return how many files this process has mapped."""
    return len(_maps)


_OFFSET_BYTES = 4


def mapped(path: Path, info: FileInfo, register: MapRegister | None = None) -> memoryview:
    """Map a file into memory and return its bytes, read-only. The kernel loads pages on first access.

    The map outlives the file's name, so readers keep working after the file is deleted. It takes no descriptor.

    Args:
        path: The file.
        info: The index's description of it.
        register: Records the map as long as it exists; None: it is not recorded.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: The size differs from the index, or the path is not a regular file.
        OSError: The file cannot be read.
    """
    return mapped_span(path, info, 0, info.bytes, register)


def mapped_span(path: Path, info: FileInfo, start: int, stop: int, register: MapRegister | None = None) -> memoryview:
    """Map the bytes of a file from ``start`` to ``stop``, and no others; see ``mapped``.

    Raises:
        ShardNotFoundError: The file does not exist.
        ShardCorruptError: The size differs from the index, or the path is not a regular file.
        OSError: The file cannot be read.
    """
    check_size(path, info)
    if start >= stop:
        return memoryview(b"")
    first = start - start % mmap.ALLOCATIONGRANULARITY
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            # A map beyond the file's end would end the process at the first access.
            if found.st_size < stop:
                raise ShardCorruptError(str(path), f"the file shrank below {stop} bytes while it was opened")

            def enter() -> object | None:
                return register.enter(path, found) if register else None

            return map_file(descriptor, stop - first, enter, start=first)[start - first :]
        finally:
            os.close(descriptor)
    except genuine(FileNotFoundError) as error:
        raise ShardNotFoundError(str(path), "no such file") from error


def offsets_of(path: Path, content: memoryview, num_samples: int, data_bytes: int) -> npt.NDArray[np.int64]:
    """Return the offsets of samples: sample *i* has the bytes from ``offsets[i]`` to ``offsets[i + 1]``.

    Args:
        path: Path of the file with the offsets, for messages.
        content: Bytes of that file: the number of samples, then the offsets.
        num_samples: Number of samples in the index.
        data_bytes: Size of the file with the samples, where the offsets must end.

    Returns:
        The offsets: shape (num_samples + 1,), int64.

    Raises:
        ShardCorruptError: The number of samples differs, an offset is below the one before it, or the last is not
            ``data_bytes``.
    """
    after = _OFFSET_BYTES * (num_samples + 2)
    if len(content) < after:
        raise ShardCorruptError.of_field(path, "size in bytes", f"at least {after} for the offsets", len(content))
    stored = int.from_bytes(content[:_OFFSET_BYTES], "little")
    if stored != num_samples:
        raise ShardCorruptError.of_field(path, "number of samples", f"{num_samples}, as in the index", stored)
    offsets = np.frombuffer(content, "<u4", num_samples + 1, _OFFSET_BYTES).astype(np.int64)
    falling = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falling):
        index = int(falling[0])
        expected = f"at least offsets[{index}] = {offsets[index]}"
        raise ShardCorruptError.of_field(path, f"offsets[{index + 1}]", expected, int(offsets[index + 1]))
    if offsets[-1] != data_bytes:
        expected = f"{data_bytes}, where the data end"
        raise ShardCorruptError.of_field(path, f"offsets[{num_samples}]", expected, int(offsets[-1]))
    return offsets


class WatchedFiles:
    """The files that a reader maps: a ``MapRegister`` that also remembers what each was when it was mapped.

    A file that shrinks ends the process at the next access to the missing bytes, and a file that is written in place
    mixes two contents. A file that is removed or replaced by another one does neither: the map keeps the old content.

    Args:
        register: Records the maps; None: they are not recorded.
    """

    def __init__(self, register: MapRegister | None) -> None:
        self._register = register
        self._mapped: list[tuple[str, FileIdentity]] = []

    def enter(self, path: Path, found: os.stat_result) -> object | None:
        """Record that this process maps a file; see ``MapRegister``."""
        lives_with_map = None if self._register is None else self._register.enter(path, found)
        self._mapped.append((str(path), FileIdentity.of_status(found)))
        return lives_with_map

    def check(self) -> None:
        """Check that no file was changed in place. Takes one look at each.

        Raises:
            ShardCorruptError: One was.
        """
        for path, before in self._mapped:
            try:
                now = FileIdentity.of_path(path)
            except genuine(OSError):
                continue
            if now.is_rewritten_in_place_since(before):
                raise ShardCorruptError(
                    path,
                    f"the file was changed while it was in use: it had {before.size_bytes} bytes, and now has "
                    f"{now.size_bytes}; the dataset was written again, or the file is damaged",
                )
