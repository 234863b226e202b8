"""Segments: pieces of anonymous shared memory that hold one microbatch at a time and are used again.

A worker creates a segment, sends its descriptor once, and both sides map it once. Page faults of new memory cost a
loader more than copies do: a mapping that is kept has none. Anonymous memory has no name, so nothing
can be left behind, and it does not count against the size of /dev/shm.

The worker's side is ``SegmentPool``. The trainer's is ``SegmentLeases``: a *lease* is a microbatch's hold on its
segment, and ends when the last view of it dies, in whichever thread that happens; the loader's next call gives the
segment back.
"""

import bisect
import ctypes
import functools
import mmap
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fkat_data.errors import MemoryLimitError
from fkat_data.runtime.interruption import suppress
from fkat_data.transport.anonymous import anonymous_memory
from fkat_data.transport.memory_limit import WorkerMemory, group_bytes, left_on_machine, sufficient_limit

_SMALLEST = 1 << 16
_TAKES_BETWEEN_CLEARANCES = 1024
# Microbatches that a worker always has room for, within its limit: one in the making, two ready, and the caller's.
_MICROBATCHES_OF_A_WORKER = 4
_libc = ctypes.CDLL(None, use_errno=True)
_mmap = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
    use_errno=True,
)(("mmap", _libc))
# With what a weak reference passes to its callback, which the function does not read.
_munmap = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.py_object)(("munmap", _libc))
_MAP_FAILED = ctypes.c_void_p(-1).value

Bytes = npt.NDArray[np.uint8]


def rounded_size(size_bytes: int) -> int:
    """Return the size of the segment that holds ``size_bytes``: at most a quarter more, from few distinct values.

    Microbatches of similar size then share segments.
    """
    if size_bytes <= _SMALLEST:
        return _SMALLEST
    step = 1 << max(12, (size_bytes - 1).bit_length() - 3)
    return (size_bytes + step - 1) // step * step


class Mapping:
    """Where a piece of shared memory is mapped in this process; it is unmapped when the last view of it is gone.

    Views die inside other people's code, at any instruction. What is called then is no code of Python, which Ctrl-C
    could end half-way: the kernel's function, and the append of a deque that the next call empties.

    Args:
        memory: What exports the memory to the views.
        address: Where it begins.
        size_bytes: Its length.
    """

    def __init__(self, memory: Any, address: int, size_bytes: int) -> None:
        self.address = address
        """Where it begins."""
        self.size_bytes = size_bytes
        """Its length."""
        self._before_unmap: list[Callable[[], None]] = []
        self._unmapping: weakref.ref[Any] | None = weakref.ref(memory, functools.partial(_munmap, address, size_bytes))
        self._end = _MappingEnd(memory, _ended_mappings.append)
        self._end.mapping = self

    def before_unmap(self, action: Callable[[], None]) -> None:
        """Call an action before the memory is unmapped, which then waits for the next call of any loader."""
        self._before_unmap.append(action)
        self._unmapping = None

    def end(self) -> None:
        """Forget the mapping, whose last view is gone."""
        for mappings in (_mappings, _written):
            if mappings.get(self.address) is self:
                del mappings[self.address]
        while self._before_unmap:
            self._before_unmap.pop()()
        if self._unmapping is None:
            self._unmapping = self._end
            _munmap(self.address, self.size_bytes, None)


class _MappingEnd(weakref.ref[Any]):
    __slots__ = ("mapping",)
    mapping: Mapping


def _end_mappings() -> None:
    while _ended_mappings:
        with suppress(IndexError):  # another thread was quicker
            mapping = getattr(_ended_mappings.popleft(), "mapping", None)
            if mapping is not None:  # else a signal's handler interrupted its making
                mapping.end()


class Segment:
    """A mapped piece of shared memory.

    Attributes:
        index: Its number among its worker's segments.
        size_bytes: Its length.
        array: The memory, as uint8[size_bytes].
        view: The memory as a memoryview.
        address: Where it is mapped.

    Args:
        index: Its number.
        descriptor: The memory; may be closed afterwards.
        size_bytes: Its length.
        is_written: Whether this process writes it.
    """

    def __init__(self, index: int, descriptor: int, size_bytes: int, *, is_written: bool) -> None:
        self.index = index
        self.size_bytes = size_bytes
        # The array keeps the mapping: the memory goes back to the kernel when its last view is gone.
        self.array: Bytes = np.frombuffer(_mapped(descriptor, size_bytes, is_written=is_written), dtype=np.uint8)
        self.view: memoryview[int] = memoryview(self.array)  # pyright: ignore[reportArgumentType]  # an array is a buffer from 3.12's typing on
        self.address: int = self.array.ctypes.data


class SegmentPool:
    """The worker's segments: taken for a microbatch, given back by a credit, newest first while they are warm.

    Args:
        memory: What all of them may take together.
        announce: Called with a new segment and its descriptor, which is closed afterwards.
        retire: Called with the index of a segment that is dropped.
        left_bytes: Returns what the control groups leave; None where they limit nothing.
    """

    def __init__(
        self,
        memory: WorkerMemory,
        announce: Callable[[Segment, int], None],
        retire: Callable[[int], None],
        left_bytes: Callable[[], int | None] = group_bytes,
    ) -> None:
        self._memory = memory
        self._limit_bytes = memory.limit_bytes
        self.allowed_bytes: int = memory.prefetch_bytes
        """What they may take for now: it grows with the size of a microbatch, and where the trainer allows more."""
        self._left_bytes = left_bytes
        self.left_bytes: int | None = None
        """What the machine, or a control group, left when that was too little for the last segment; else None."""
        self._announce = announce
        self._retire = retire
        self._segments: dict[int, Segment] = {}
        self._free: list[Segment] = []
        self._total_bytes = 0
        self._next_index = 0
        self._num_takes = 0
        self._fewest_free = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the segments that are not free."""
        return self._total_bytes - sum(segment.size_bytes for segment in self._free)

    @property
    def num_segments(self) -> int:
        """Segments, free or not."""
        return len(self._segments)

    def take(self, size_bytes: int) -> Segment | None:
        """Return a segment of at least ``size_bytes``, or None while nothing is left for it.

        Raises:
            MemoryLimitError: No segment of that size fits the limit or the machine, now or later.
        """
        if size_bytes > self._limit_bytes:
            raise self._too_large(size_bytes)
        segment = self.take_free(size_bytes)
        if segment is not None:
            return segment
        self._fewest_free = 0
        size_bytes = self.size_of(size_bytes)
        self.allow(_MICROBATCHES_OF_A_WORKER * size_bytes)
        while self._total_bytes + size_bytes > self.allowed_bytes and self._free:
            self._drop(self._free.pop(0))
        if self._total_bytes + size_bytes > self.allowed_bytes:
            self.left_bytes = None
            return None
        return self._create(size_bytes) if self._is_granted(size_bytes) else None

    def allow(self, size_bytes: int) -> None:
        """Let the segments take so much together, within the limit."""
        self.allowed_bytes = max(self.allowed_bytes, min(size_bytes, self._limit_bytes))

    def take_free(self, size_bytes: int) -> Segment | None:
        """Return a free segment of at least ``size_bytes``, or None."""
        size_bytes = self.size_of(size_bytes)
        for position in range(len(self._free) - 1, -1, -1):
            # A segment much larger than its content would be missing for a microbatch that needs it.
            if size_bytes <= self._free[position].size_bytes <= 2 * size_bytes:
                segment = self._free.pop(position)
                self._count_take()
                return segment
        return None

    def size_of(self, size_bytes: int) -> int:
        """Return the size of the segment for ``size_bytes``."""
        return max(size_bytes, min(rounded_size(size_bytes), self._limit_bytes))

    def give_back(self, index: int) -> None:
        """Free a segment: the trainer no longer reads it."""
        self._free.append(self._segments[index])

    def discard(self, index: int) -> None:
        """Drop a segment that is not free and must not be written again."""
        self._drop(self._segments[index])

    def _too_large(self, size_bytes: int) -> MemoryLimitError:
        num_workers = self._memory.num_workers
        share = "" if num_workers == 1 else f" for {num_workers} workers, which have equal shares of it"
        sufficient = sufficient_limit(rounded_size(size_bytes), num_workers)
        reason = f"raise memory_limit_bytes{share} ({sufficient} is enough), or make smaller microbatches"
        return MemoryLimitError(self._limit_bytes, size_bytes, 0, reason)

    def _is_granted(self, size_bytes: int) -> bool:
        """Return whether enough is left for another segment: beyond that the kernel kills instead of refusing."""
        left_bytes = self._left_bytes()
        if self._total_bytes + size_bytes > self._memory.prefetch_bytes:
            left_bytes = min(left_on_machine(), sys.maxsize if left_bytes is None else left_bytes)
        if left_bytes is None or size_bytes <= left_bytes:
            self.left_bytes = None
            return True
        # Nothing uses a free segment: dropping it makes room once the trainer has dropped it, too.
        while self._free:
            self._drop(self._free.pop())
        self.left_bytes = left_bytes
        return False

    def _count_take(self) -> None:
        # One moment of a late trainer must not enlarge the pool forever: at intervals, drop half of what was never needed
        # since the interval before. The other half spares a trainer that is late again from new memory.
        self._num_takes += 1
        self._fewest_free = min(self._fewest_free, len(self._free))
        if self._num_takes >= _TAKES_BETWEEN_CLEARANCES:
            for _ in range((self._fewest_free + 1) // 2):
                self._drop(self._free.pop(0))
            self._num_takes, self._fewest_free = 0, len(self._free)

    def _drop(self, segment: Segment) -> None:
        del self._segments[segment.index]
        self._total_bytes -= segment.size_bytes
        self._retire(segment.index)

    def _create(self, size_bytes: int) -> Segment:
        descriptor = anonymous_memory(size_bytes)
        try:
            segment = Segment(self._next_index, descriptor, size_bytes, is_written=True)
            self._next_index += 1
            self._announce(segment, descriptor)
        finally:
            os.close(descriptor)
        self._segments[segment.index] = segment
        self._total_bytes += size_bytes
        return segment


class SegmentLeases:
    """The trainer's side: the mapped segments of one worker, and which are still viewed.

    Args:
        release: Called by ``collect`` with a segment's index and size when the last view of its microbatch is gone.
        discard: Called instead of ``release`` for a segment that must not be written again.
        ended: Takes the leases that have ended; the workers of a loader share one. None: one of its own.
    """

    def __init__(
        self,
        release: Callable[[int, int], None],
        discard: Callable[[int, int], None] | None = None,
        ended: "deque[Lease] | None" = None,
    ) -> None:
        self._release = release
        self._discard = discard
        self._ended: deque[Lease] = deque() if ended is None else ended
        self._shared: set[int] = set()
        self._segments: dict[int, Segment] = {}
        self._leases: dict[int, Lease] = {}
        self.mapped_bytes: int = 0
        """Bytes of all mapped segments."""

    @property
    def leased_bytes(self) -> int:
        """Bytes of the segments whose microbatch is still alive."""
        leased = [index for index, lease in list(self._leases.items()) if lease() is not None]
        return sum(self._segments[index].size_bytes for index in leased if index in self._segments)

    @property
    def num_mapped(self) -> int:
        """Segments that are mapped."""
        return len(self._segments)

    def add(self, index: int, descriptor: int, size_bytes: int) -> None:
        """Map a segment that the worker announced; closes the descriptor."""
        try:
            self._segments[index] = Segment(index, descriptor, size_bytes, is_written=False)
            self.mapped_bytes += size_bytes
        finally:
            os.close(descriptor)

    def remove(self, index: int) -> None:
        """Forget a segment that the worker dropped."""
        self.mapped_bytes -= self._segments.pop(index).size_bytes

    def lease(self, index: int) -> Bytes:
        """Return a segment's memory; the segment is released when the last view of what is returned dies."""
        segment = self._segments[index]
        # Of the memoryview: an array of an array's array refers to the first one, and the lease would end at once.
        exporter = np.frombuffer(segment.view, dtype=np.uint8)
        lease = Lease(exporter, self._ended.append)
        lease.segment_index = index
        lease.leases = self
        self._leases[index] = lease
        return exporter

    def collect(self) -> None:
        """Give back the segments whose leases have ended, of all that share the deque."""
        while self._ended:
            lease = self._ended.popleft()
            leases = getattr(lease, "leases", None)
            if leases is not None:  # else a signal's handler interrupted ``lease``
                leases.end(lease)
        if _ended_mappings:
            _end_mappings()

    def end(self, lease: "Lease") -> None:
        """Give back the segment of a lease that has ended; nothing if the segments were forgotten since."""
        index = lease.segment_index
        if self._leases.get(index) is not lease:
            return
        del self._leases[index]
        if index not in self._shared:
            self._release(index, self._segments[index].size_bytes)
        elif self._discard is not None:
            self._discard(index, self._segments[index].size_bytes)

    def share(self) -> None:
        """Before a fork: mark what is leased now, as the child may read it for as long as it lives."""
        self._shared.update(list(self._leases))

    def clear(self) -> None:
        """Forget all segments; memory that is still viewed stays mapped until its last view dies."""
        self._leases.clear()
        self._segments.clear()
        self.mapped_bytes = 0
        _end_mappings()


class Lease(weakref.ref[Any]):
    """A microbatch's hold on its segment. At its end it goes to a deque, which ``SegmentLeases.collect`` empties."""

    __slots__ = ("leases", "segment_index")
    leases: SegmentLeases
    segment_index: int


def _mapped(descriptor: int, size_bytes: int, *, is_written: bool) -> Any:
    """Return a mapping that lives as long as what is returned, and keeps no descriptor.

    Python's own ``mmap`` duplicates the descriptor: one file a segment would stay open on either side.
    """
    # Writing faults page by page: the writer maps all pages at once. Reading maps 16 at a time by itself.
    flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if is_written else 0)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = _mmap(None, size_bytes, protection, flags, descriptor, 0)
    if address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"mapping {size_bytes:,} bytes of shared memory: {os.strerror(number)}")
    memory = (ctypes.c_ubyte * size_bytes).from_address(address)
    if _ended_mappings:
        _end_mappings()
    mapping = Mapping(memory, address, size_bytes)
    if is_written:
        _written[address] = mapping
    else:
        _mappings[address] = mapping
        _ordered.clear()
    return memory


def mapping_at(address: int) -> Mapping | None:
    """Return the mapping for reading that an address lies in, or None."""
    if _ended_mappings:
        _end_mappings()
    addresses = next(iter(_ordered), None)
    if addresses is None:
        addresses = sorted(_mappings)
        _ordered[:] = [addresses]
    position = bisect.bisect_right(addresses, address) - 1
    mapping = _mappings.get(addresses[position]) if position >= 0 else None
    return mapping if mapping is not None and address < mapping.address + mapping.size_bytes else None


# Those for reading, by address. Any thread may unmap one at any instant, so their order is kept beside them, and sorted
# again when one is added. One that is gone may stay in it: no tensor's address lies there.
_mappings: dict[int, Mapping] = {}
_ordered: list[list[int]] = []
# Those for writing: a worker's.
_written: dict[int, Mapping] = {}
_ended_mappings: "deque[_MappingEnd]" = deque()
