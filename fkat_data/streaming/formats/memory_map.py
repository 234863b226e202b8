"""Map a file into memory without keeping its descriptor."""

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

_C = ctypes.CDLL(None, use_errno=True)
_C.mmap.restype = ctypes.c_void_p
_C.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
    ctypes.c_int64 if ctypes.sizeof(ctypes.c_long) == 8 else ctypes.c_long,
)
# With what a weak reference passes to its callback, which the function does not read.
_munmap = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.py_object)(("munmap", _C))
_FAILED = ctypes.c_void_p(-1).value


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
    address: int = _C.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, start)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)}: cannot map {size_bytes} bytes")
    content = (ctypes.c_ubyte * size_bytes).from_address(address)
    # At the interpreter's end, a daemon thread may still read: the kernel unmaps then.
    map_ = _Map(content, _maps.discard)
    map_.unmapping = weakref.ref(content, partial(_munmap, address, size_bytes))
    _maps.add(map_)
    map_.company = on_mapped()
    return memoryview(content).cast("B").toreadonly()


def num_maps() -> int:
    """Return how many files this process has mapped."""
    return len(_maps)
