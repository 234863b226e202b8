"""Arrays and tensors of a shipment, which travel beside its pickle (protocol 5, PEP 574).

A buffer is copied once, to the shipment's file, which each worker maps privately: all share its pages, and what a worker
writes is its own. What lies in a mapped file, or in memory that processes share, is not copied: the worker maps it, too.
"""

import bisect
import mmap
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch

from fkat_data.runtime.interruption import suppress
from fkat_data.runtime.machine import text_of

_LEAST_BYTES = 64 << 10
_ALIGNMENT_BYTES = 64  # what pyarrow and vector instructions like
_END_BYTES = 8
_NUM_SAMPLES, _SAMPLE_BYTES = 16, 4096
_DELETED = " (deleted)"


class _Copied(NamedTuple):
    """A buffer in the shipment's file."""

    start: int
    size_bytes: int


class _Mapped(NamedTuple):
    """A buffer in a file that the worker maps, too.

    Attributes:
        path: The file.
        offset: Where the mapping begins in it.
        map_bytes: What of it is mapped.
        start: Where the buffer begins in the mapping.
        size_bytes: The buffer's.
        is_written: Whether this process may write there, and so the worker.
    """

    path: str
    offset: int
    map_bytes: int
    start: int
    size_bytes: int
    is_written: bool


_BufferSource: TypeAlias = _Copied | _Mapped


class FileMapping(NamedTuple):
    """Addresses of this process that show a file, unchanged.

    Attributes:
        start: The first address.
        stop: The one behind the last.
        offset: Where it begins in the file.
        device: What the file is on.
        inode: The file's number there.
        path: Its name, with a remark if it has none any more.
        is_shared: Whether what is written there is seen by all who map the file.
        is_written: Whether this process may write there.
    """

    start: int
    stop: int
    offset: int
    device: int
    inode: int
    path: str
    is_shared: bool
    is_written: bool


class Mappings:
    """The files that this process had mapped when this was made; none where the system does not tell."""

    def __init__(self) -> None:
        lines = text_of("/proc/self/maps").splitlines() if sys.platform == "linux" else []
        self._found = [found for line in lines if (found := _mapping_of(line)) is not None]
        self._starts = [found.start for found in self._found]
        self.has_shared: bool = any(found.is_shared for found in self._found)
        """Whether there is memory that other processes may write."""

    def find(self, address: int, size_bytes: int) -> FileMapping | None:
        """Return the mapping that these addresses lie in."""
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0 and address + size_bytes <= self._found[index].stop:
            return self._found[index]
        return None


def _mapping_of(line: str) -> FileMapping | None:
    """Return what a line of ``/proc/self/maps`` says; None where it is no file's, or may differ from the file."""
    addresses, rights, offset, device, inode, *path = line.split(maxsplit=5)
    is_shared, is_written = rights[3] == "s", rights[1] == "w"
    if not path or not path[0].startswith("/") or "x" in rights or not (is_shared or not is_written):
        return None
    start, stop = (int(number, 16) for number in addresses.split("-"))
    major, minor = (int(number, 16) for number in device.split(":"))
    return FileMapping(
        start, stop, int(offset, 16), os.makedev(major, minor), int(inode), path[0], is_shared, is_written
    )


class BufferTable:
    """Takes the buffers of a pickle, and writes what of them is copied.

    It is the pickler's ``buffer_callback``.
    """

    def __init__(self) -> None:
        self._mappings = Mappings()
        self._taken: list[memoryview | _Mapped] = []
        self._files: dict[int, tuple[str, int] | None] = {}
        self.descriptors: list[int] = []
        """Of shared memory without a name: workers open it by them, so they stay open for as long as one may start."""

    def __call__(self, buffer: pickle.PickleBuffer) -> bool:
        """Take a buffer; return whether it belongs in the pickle.

        Raises:
            PicklingError: It lies in memory that processes share, and that a worker cannot get at.
        """
        content = buffer.raw()
        if not content.nbytes or (content.nbytes < _LEAST_BYTES and not self._mappings.has_shared):
            return True
        mapping = self._mappings.find(_address_of(content), content.nbytes)
        mapped = None if mapping is None else self._mapped(mapping, content)
        if mapped is None and content.nbytes < _LEAST_BYTES:
            return True
        self._taken.append(content if mapped is None else mapped)
        return False

    def write(self, file: IO[bytes]) -> None:
        """Write what is copied, and where each buffer is, at the end of a file, behind the pickle."""
        sources: list[_BufferSource] = []
        position = file.tell()
        for taken in self._taken:
            if isinstance(taken, _Mapped):
                sources.append(taken)
                continue
            start = -(-position // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
            file.write(b"\0" * (start - position))
            file.write(taken)
            sources.append(_Copied(start, taken.nbytes))
            position = start + taken.nbytes
        file.write(pickle.dumps(sources))
        file.write(position.to_bytes(_END_BYTES, "little"))
        self._taken.clear()

    def close(self) -> None:
        """Close the descriptors. Any number of calls."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def _mapped(self, mapping: FileMapping, content: memoryview) -> _Mapped | None:
        if mapping.start not in self._files:
            self._files[mapping.start] = self._file_of(mapping, content)
        found = self._files[mapping.start]
        if found is None:
            if mapping.is_shared and mapping.is_written and _is_between_processes(mapping):
                raise pickle.PicklingError(
                    "it lies in memory that this process shares with others, which has neither a name nor a descriptor"
                )
            return None
        path, size_bytes = found
        start = _address_of(content) - mapping.start
        map_bytes = min(mapping.stop - mapping.start, size_bytes - mapping.offset)
        if start + content.nbytes > map_bytes:  # the file has become shorter
            return None
        is_written = mapping.is_shared and mapping.is_written
        return _Mapped(path, mapping.offset, map_bytes, start, content.nbytes, is_written)

    def _file_of(self, mapping: FileMapping, content: memoryview) -> tuple[str, int] | None:
        """Return what a worker opens the mapped file by, and its size; None: it cannot."""
        if not mapping.path.endswith(_DELETED):
            offset = mapping.offset + _address_of(content) - mapping.start
            with suppress(OSError):
                descriptor = os.open(mapping.path, (os.O_RDWR if mapping.is_written else os.O_RDONLY) | os.O_CLOEXEC)
                try:
                    found = os.fstat(descriptor)
                    # Some file systems number a file otherwise where it is mapped.
                    if _is_file_of(mapping, found) or _shows(descriptor, offset, content):
                        return mapping.path, found.st_size
                finally:
                    os.close(descriptor)
        if not mapping.is_shared:
            return None
        for name in _open_descriptors():
            with suppress(OSError):
                found = os.fstat(name)
                if _is_file_of(mapping, found):
                    kept = os.dup(name)
                    self.descriptors.append(kept)
                    return f"/proc/{os.getpid()}/fd/{kept}", found.st_size
        return None


def _is_between_processes(mapping: FileMapping) -> bool:
    """Return whether shared memory without a name is a program's; a driver's, for a device, looks alike."""
    return not torch.cuda.is_initialized() and mapping.path.endswith(_DELETED)


def _is_file_of(mapping: FileMapping, found: os.stat_result) -> bool:
    return (found.st_dev, found.st_ino) == (mapping.device, mapping.inode)


def _open_descriptors() -> Iterator[int]:
    with suppress(OSError):
        yield from (int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208 - their numbers are enough


def _shows(descriptor: int, offset: int, content: memoryview) -> bool:
    """Return whether a file has a buffer's content at an offset, by samples of it."""
    last = max(0, content.nbytes - _SAMPLE_BYTES)
    for number in range(_NUM_SAMPLES):
        start = last * number // (_NUM_SAMPLES - 1)
        expected = bytes(content[start : start + _SAMPLE_BYTES])
        if os.pread(descriptor, len(expected), offset + start) != expected:
            return False
    return True


def _address_of(content: memoryview) -> int:
    return int(np.frombuffer(content, np.uint8).__array_interface__["data"][0])


def pickled_bytes(file: mmap.mmap) -> int:
    """Return the bytes of a file for ``load_with_buffers`` that unpickling makes objects of: all but its large buffers."""
    start = int.from_bytes(file[-_END_BYTES:], "little")
    sources: Sequence[_BufferSource] = pickle.loads(file[start:-_END_BYTES])
    return start - sum(source.size_bytes for source in sources if isinstance(source, _Copied))


def load_with_buffers(file: mmap.mmap, before: Callable[[], object] = lambda: None) -> Any:
    """Unpickle what is at the position of a file whose end ``BufferTable.write`` has written.

    Args:
        file: It is mapped privately, and stays so for as long as anything of it is used.
        before: Called once the buffers are mapped, before anything is unpickled.

    Raises:
        OSError: A file that the trainer has mapped cannot be opened here.
        Exception: Whatever unpickling raises.
    """
    start = int.from_bytes(file[-_END_BYTES:], "little")
    sources: Sequence[_BufferSource] = pickle.loads(file[start:-_END_BYTES])
    content = memoryview(file)
    maps: dict[tuple[str, int, bool], memoryview] = {}
    buffers: list[memoryview] = []
    for source in sources:
        if isinstance(source, _Mapped):
            key = source.path, source.offset, source.is_written
            if key not in maps:
                maps[key] = _map(source)
            buffers.append(maps[key][source.start : source.start + source.size_bytes])
        else:
            buffers.append(content[source.start : source.start + source.size_bytes])
    before()
    return pickle.load(file, buffers=buffers)


def _map(source: _Mapped) -> memoryview:
    descriptor = os.open(source.path, (os.O_RDWR if source.is_written else os.O_RDONLY) | os.O_CLOEXEC)
    try:
        if source.is_written and not source.offset:
            # By torch, whose tensors there are shared ones, as they are in the trainer.
            storage: Any = torch.UntypedStorage.from_file(source.path, shared=True, nbytes=source.map_bytes)
            return memoryview(_bytes_of(storage))
        # A tensor does not know that it must not be written: what is written to it stays here, then.
        access = mmap.ACCESS_WRITE if source.is_written else mmap.ACCESS_COPY
        return memoryview(mmap.mmap(descriptor, source.map_bytes, access=access, offset=source.offset))
    finally:
        os.close(descriptor)


def _bytes_of(storage: torch.UntypedStorage) -> Any:
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()


class BufferReducer:
    """Reduces what holds memory of its own and would copy it into the pickle: torch's storages, ``numpy.memmap``."""

    def __init__(self) -> None:
        # By address: tensors that share memory share it in the worker, too.
        self._storages: dict[tuple[int, int], _Storage] = {}

    def __call__(self, value: Any) -> Any:
        """Return how to pickle a value; ``NotImplemented`` for any other."""
        if isinstance(value, torch.storage.TypedStorage):
            storage = self._storage(cast("Any", value)._untyped_storage)  # noqa: SLF001 - torch's reductions use it
            return NotImplemented if storage is None else (_typed, (storage, value.dtype))
        if type(value) is torch.UntypedStorage:
            storage = self._storage(value)
            return NotImplemented if storage is None else (_untyped, (storage,))
        if type(value) is np.memmap:
            array = cast("np.memmap[Any, Any]", value)
            if array.flags.c_contiguous or array.flags.f_contiguous:
                return _memmap, (np.asarray(array), array.filename, array.offset, array.mode)
        return NotImplemented

    def _storage(self, storage: torch.UntypedStorage) -> "_Storage | None":
        if storage.device.type != "cpu":
            return None
        return self._storages.setdefault((storage.data_ptr(), storage.nbytes()), _Storage(storage))


class _Storage:
    """Memory of a tensor, for a pickler.

    Args:
        storage: Torch's object.
    """

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage

    def __reduce__(self) -> Any:
        if not self._storage.nbytes():
            return torch.UntypedStorage, (0,)
        return _storage_of, (pickle.PickleBuffer(_bytes_of(self._storage)), self._storage.is_shared())


def _storage_of(content: Any, is_shared: bool) -> torch.UntypedStorage:
    mapped = getattr(getattr(content, "obj", None), "base", None)
    if is_shared and isinstance(mapped, torch.Tensor):
        storage = mapped.untyped_storage()
        if (storage.data_ptr(), storage.nbytes()) == (_address_of(content), content.nbytes):
            return storage
    # One within the pickle is a ``bytearray``, and its storage must be able to grow.
    tensor = torch.frombuffer(content, dtype=torch.uint8)
    return (tensor.clone() if isinstance(content, (bytes, bytearray)) else tensor).untyped_storage()


def _untyped(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return storage


def _typed(storage: torch.UntypedStorage, dtype: torch.dtype) -> Any:
    kind: Any = torch.storage.TypedStorage
    return kind(wrap_storage=storage, dtype=dtype, _internal=True)


def _memmap(array: Any, filename: Any, offset: int, mode: str) -> Any:
    mapped = array.view(np.memmap)
    mapped.filename, mapped.offset, mapped.mode = filename, offset, mode
    return mapped


def hashed_buffer(buffer: pickle.PickleBuffer, mappings: Mappings) -> memoryview | bytes | None:
    """Return what tells whether a buffer has changed: its content, or which file or shared memory it shows.

    Args:
        buffer: Of a pickle.
        mappings: Those of this process.

    Returns:
        None: It is small, and belongs in the pickle.
    """
    content = buffer.raw()
    is_small = content.nbytes < _LEAST_BYTES
    if not content.nbytes or (is_small and not mappings.has_shared):
        return None
    address = _address_of(content)
    mapping = mappings.find(address, content.nbytes)
    if mapping is None or (is_small and not mapping.is_shared):  # what workers write to shared memory is no change
        return None if is_small else content
    source = mapping.inode, mapping.offset + address - mapping.start, content.nbytes, mapping.path
    return repr(source).encode()
