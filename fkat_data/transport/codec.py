"""A microbatch as an envelope and parts: memory leaves the pickle stream, everything else stays in it.

``encode`` pickles with protocol 5. Dense CPU tensors and contiguous arrays become *parts*, memory to be copied
once into a segment; everything else that pickles stays in the envelope. ``decode`` builds views of the memory that
the parts were written to. Both are functions of values: no process, pipe or segment is known here.

A flat container of dense tensors is not pickled: its envelope is its *form*, which both sides look up. Most shards
repeat one form for every microbatch.
"""

import bisect
import ctypes
import io
import math
import pickle
import struct
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch

from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.lifetime import WeakTable
from fkat_data.runtime.modes import is_any_autocast_enabled, num_dispatch_modes, num_function_modes, without_modes
from fkat_data.transport.definitions import is_definition, is_importable, reduce_definition


def reduce_of_torch(value: Any) -> Any:
    """Return what a pickler's ``reducer_override`` returns: the reduction of a sparse tensor or a storage on the CPU.

    It is NotImplemented for anything else.
    """
    if type(value) is torch.UntypedStorage and value.device.type == "cpu":
        # As a tensor, it shares memory with those that lie in it.
        return _storage, (torch.empty(0, dtype=torch.uint8, device="cpu").set_(value),)
    if type(value) is not torch.Tensor or value.layout is torch.strided or value.is_nested:
        return NotImplemented
    reduced: tuple[Any, ...] = cast("Any", value.__reduce_ex__(5))
    function, arguments = reduced[:2]
    if function is _TORCH_REBUILDS:
        return _rebuilt_sparse, arguments
    if arguments[0] is _TORCH_REBUILDS:  # the tensor has attributes
        return function, (_rebuilt_sparse, *arguments[1:])
    return NotImplemented


# Made in this way it brings no warning, which torch 2.12 gives for one of indices and values.
_EMPTY: torch.Tensor = torch.empty(0, layout=torch.sparse_coo, device="cpu")
_TORCH_REBUILDS: Any = cast("Any", _EMPTY.__reduce_ex__(5))[0]


def _rebuilt_sparse(layout: torch.layout, data: tuple[Any, ...]) -> torch.Tensor:
    if layout is torch.sparse_coo:
        indices, values, size, is_coalesced = data
        return torch.sparse_coo_tensor(indices, values, size, check_invariants=False, is_coalesced=is_coalesced)
    return torch.sparse_compressed_tensor(*data, layout=layout, check_invariants=False)


def _storage(content: torch.Tensor) -> torch.UntypedStorage:
    storage = content.untyped_storage()
    return storage if storage.nbytes() == content.nbytes else content.clone().untyped_storage()


# Of all forms together, some 300 bytes each. A bound on the forms alone would not do where each has a thousand tensors.
_MOST_LEAVES = 1 << 16


class RememberedForms(dict[Any, Any]):
    """What is known of forms, until they have too many leaves together."""

    def __init__(self) -> None:
        super().__init__()
        self._num_leaves = 0

    def remember(self, key: Any, known: Any, num_leaves: int) -> None:
        """Keep what is known of a form; forget all others where they have too many leaves."""
        self._num_leaves += 1 + num_leaves
        if self._num_leaves > _MOST_LEAVES:
            self.clear()
            self._num_leaves = 1 + num_leaves
        self[key] = known


# The largest element, complex128: a span that begins at a multiple of it holds every element at a multiple of its size.
_ELEMENT_BYTES = 16


class Extent(NamedTuple):
    """The memory from a tensor's first byte to its last.

    Attributes:
        start: Address of the first.
        end: Address after the last.
        used_bytes: Bytes in it that belong to the tensor: fewer than it is long, if there are gaps.
        owner: What keeps it.
    """

    start: int
    end: int
    used_bytes: int
    owner: Any


def span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the number of elements from the first to the last, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def dense(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...] | None]:
    """Return the tensor with memory worth copying, and its strides unless they are the usual ones."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_contiguous():
        return tensor, None
    strides = tensor.stride()
    # A permuted or an expanded tensor spans no more memory than its elements: it keeps its strides.
    if span(tuple(tensor.shape), strides) <= tensor.numel():
        return tensor, strides
    return tensor.contiguous(), None


def extent_of(tensor: torch.Tensor) -> Extent:
    """Return the memory from the first byte of a tensor to its last."""
    address = tensor.data_ptr() if tensor.numel() else 0
    size_bytes = span(tuple(tensor.shape), tensor.stride()) * tensor.itemsize
    return Extent(address, address + size_bytes, min(size_bytes, tensor.nbytes), tensor)


def overlapping(extents: Iterable[Extent]) -> bool:
    """Return whether any two extents have memory in common."""
    ordered = sorted((start, end) for start, end, _, _ in extents if end > start)
    return any(start < end for (_, end), (start, _) in pairwise(ordered))


def shared_spans(extents: Iterable[Extent]) -> list[Extent]:
    """Return the unions of extents that overlap, by their addresses.

    A union of views with wide gaps between them is left out: it would be much larger than what is in it.
    """
    unions: list[tuple[int, int, int, list[Any]]] = []
    for start, end, used_bytes, owner in sorted(extents, key=lambda extent: extent.start):
        if end == start:
            continue
        if unions and start < unions[-1][1]:
            first, last, total, owners = unions[-1]
            owners.append(owner)
            unions[-1] = (first, max(last, end), total + used_bytes, owners)
        else:
            unions.append((start, end, used_bytes, [owner]))
    return [
        Extent(start // _ELEMENT_BYTES * _ELEMENT_BYTES, end, used_bytes, owners)
        for start, end, used_bytes, owners in unions
        if len(owners) > 1 and end - start <= 2 * used_bytes
    ]


ALIGNMENT = 64
"""Bytes that every part's offset is a multiple of: a cache line, and what vector instructions like."""

# In one order in both processes, which run the same torch. Quantised tensors are more than their numbers.
_QUANTISED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)} - _QUANTISED, key=str)
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
# Those that numpy has: an array becomes a tensor in half of the time.
_ARRAY_DTYPES = {
    getattr(torch, name): np.dtype(name)
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}

# Replaces a tensor's memory in the stream; protocol 5 requires an object that exports a writable buffer.
_PLACEHOLDER = bytearray(1)


class MemoryPart(NamedTuple):
    """Memory to be written beside the envelope.

    Attributes:
        size_bytes: Its length.
        is_tensor: Whether ``decode`` hands it on as (base, offset) for a tensor, or as a memoryview.
        address: Where it is, for a tensor.
        owner: What keeps it: the tensor, or the buffer itself.
    """

    size_bytes: int
    is_tensor: bool
    address: int
    owner: Any


class Encoded(NamedTuple):
    """A microbatch, ready to be written.

    Attributes:
        envelope: The pickle stream without the parts.
        parts: The parts, in the order in which the stream asks for them.
        layout: What ``decode`` has to know about the parts, 8 bytes each; nothing where a form says it.
        size_bytes: Size of all parts together, each aligned.
    """

    envelope: bytes
    parts: list[MemoryPart]
    layout: bytes
    size_bytes: int


def encode(microbatch: Any, *, is_staying: bool = False) -> Encoded:
    """Return the microbatch as an envelope and parts; the parts still lie in the microbatch's own memory.

    Tensors that share memory share it after ``decode``, too, unless the gaps between them are larger than they are.

    Args:
        microbatch: What to encode.
        is_staying: Whether it is decoded in this process, while it is alive: classes and functions are referred to.

    Raises:
        RuntimeError: A tensor of it has a graph of autograd's.
        Exception: Whatever the pickling of the microbatch raises.
    """
    flat = _flat(microbatch)
    if flat is not None and not _parts_overlap(flat[1]):
        signature, parts = flat
        envelope, size_bytes = _forms.get(signature) or _remember_form(signature, parts)
        # tuple.__new__ skips NamedTuple's Python `__new__`: twice as fast
        return tuple.__new__(Encoded, (envelope, parts, b"", size_bytes))
    stream = io.BytesIO()
    pickler = _Pickler(stream, is_staying=is_staying)
    pickler.dump(microbatch)
    is_sharing = overlapping(pickler.extents)
    if is_sharing:
        stream = io.BytesIO()
        pickler = _SharingPickler(stream, shared_spans(pickler.extents), is_staying=is_staying)
        pickler.dump(microbatch)
    parts = pickler.parts
    layout = struct.pack(
        f"<{len(parts)}q", *(part.size_bytes if part.is_tensor else -1 - part.size_bytes for part in parts)
    )
    return Encoded(stream.getvalue(), parts, layout, copied_size([part.size_bytes for part in parts]))


def copied(microbatch: Any) -> tuple[Any, int]:
    """Return the microbatch as another process would get it from this one, and the bytes that were copied.

    Classes and functions are the same ones. So is what cannot be pickled; lists, tuples and dicts around it are new.

    Raises:
        RecursionError: It is lists, tuples or dicts nested too deep.
    """
    try:
        return _copy(microbatch)
    except genuine(Exception):
        pass  # what stays in this process need not be fit for another
    except BaseException as raised:
        # Raised again by what is pickled; what a signal has raised here is the caller's.
        try:
            _copy(microbatch)
        except BaseException as again:  # noqa: BLE001 - see above
            if type(again) is type(raised):
                return _copy_by_parts(microbatch)
        raise
    return _copy_by_parts(microbatch)  # here, the errors of parts have no context


def _copy(microbatch: Any) -> tuple[Any, int]:
    encoded = encode(microbatch, is_staying=True)
    memory: Any = torch.empty(encoded.size_bytes, dtype=torch.uint8, device="cpu").numpy()
    write(encoded.parts, memoryview(memory), memory.ctypes.data, 0)
    sizes = struct.unpack(f"<{len(encoded.layout) // 8}q", encoded.layout)
    return decode(encoded.envelope, sizes, memory, 0), encoded.size_bytes


_CONTAINERS: frozenset[Any] = frozenset({dict, list, tuple})


def _copy_by_parts(value: Any) -> tuple[Any, int]:
    kind = cast("Any", type(value))
    if kind not in _CONTAINERS:
        return value, 0
    copies = [copied(part) for part in (value.values() if kind is dict else value)]
    parts = [part for part, _ in copies]
    contents = zip(value, parts, strict=True) if kind is dict else parts
    return cast("Any", type(value))(contents), sum(size for _, size in copies)


def copied_size(sizes: list[int]) -> int:
    """Return the bytes that parts of these sizes take together, each aligned."""
    return sum(aligned(size) for size in sizes)


def lies_at(parts: list[MemoryPart], address: int) -> bool:
    """Return whether the parts lie where ``write`` would copy them for a memory that starts at ``address``."""
    for part in parts:
        if not part.is_tensor or part.address != address:
            return False
        address += aligned(part.size_bytes)
    return True


def apart(parts: list[MemoryPart]) -> list[MemoryPart]:
    """Return copies of the parts, in memory of their own."""
    return [MemoryPart(part.size_bytes, False, 0, _bytes_of(part)) for part in parts]


def _bytes_of(part: MemoryPart) -> Any:
    return ctypes.string_at(part.address, part.size_bytes) if part.is_tensor else bytes(part.owner)


def write(parts: list[MemoryPart], memory: memoryview, address: int, offset: int) -> None:
    """Copy the parts, one after the other, to ``offset`` and on, each aligned.

    Args:
        parts: What to copy.
        memory: Writable, large enough.
        address: Where ``memory`` starts.
        offset: Where in ``memory`` to begin; a multiple of ``ALIGNMENT``.
    """
    for part in parts:
        size = part.size_bytes
        if part.is_tensor:
            ctypes.memmove(address + offset, part.address, size)
        else:
            memory[offset : offset + size] = part.owner
        offset += aligned(size)


def decode(envelope: bytes | memoryview, sizes: tuple[int, ...], base: Any, offset: int) -> Any:
    """Return the microbatch as views of ``base``, made in none of the modes that this thread is in.

    Args:
        envelope: What ``encode`` gave.
        sizes: The parts' sizes as ``layout`` packed them: negative for a part that is no tensor. None for a form.
        base: Exports the memory that the parts were written to; every view keeps it alive.
        offset: Where in it the first part lies.

    Raises:
        Exception: Whatever the unpickling raises.
    """
    # What has_modes() asks: a call less for each microbatch.
    if (
        num_function_modes()
        or num_dispatch_modes()
        or not torch.is_grad_enabled()
        or torch.is_inference_mode_enabled()
        or is_any_autocast_enabled()
    ):
        with without_modes():
            return _decode(envelope, sizes, base, offset)
    return _decode(envelope, sizes, base, offset)


def _decode(envelope: bytes | memoryview, sizes: tuple[int, ...], base: Any, offset: int) -> Any:
    if envelope[0] == _FORM:
        envelope = bytes(envelope)
        kind, names, leaves = _plans.get(envelope) or _remember_plan(envelope)
        tensors = [
            torch.from_numpy(np.ndarray(shape, array_dtype, base, offset + start))
            if array_dtype is not None
            else torch.frombuffer(base, dtype=dtype, count=numel, offset=offset + start).view(shape)
            for start, shape, numel, dtype, array_dtype in leaves
        ]
        if kind is dict:
            return dict(zip(names, tensors, strict=True))
        return tensors if kind is list else tuple(tensors) if kind is tuple else tensors[0]
    buffers: list[Any] = []
    for size in sizes:
        if size < 0:
            size = -1 - size  # noqa: PLW2901 - the sign says what it is
            buffers.append(memoryview(base)[offset : offset + size])
        else:
            buffers.append((base, offset))
        offset += (size + ALIGNMENT - 1) & -ALIGNMENT
    return pickle.loads(envelope, buffers=buffers)


def dumps(value: Any) -> bytes:
    """Pickle a value for the other process, classes and functions of the user's script included."""
    encoded = io.BytesIO()
    _InBandPickler(encoded).dump(value)
    return encoded.getvalue()


def loads(data: bytes | memoryview) -> Any:
    """Return the value that ``dumps`` pickled."""
    return pickle.loads(data)


# The names, dtypes and shapes of a flat container of dense tensors are all that there is to it beside its memory. A form
# is pickled once for all microbatches that have it, behind a byte that no stream of pickle begins with.
_FORM = 0
_KINDS: tuple[Any, ...] = (torch.Tensor, tuple, list, dict)

_Plan: TypeAlias = "tuple[Any, Any, list[tuple[int, tuple[int, ...], int, torch.dtype, np.dtype[Any] | None]]]"
_forms = RememberedForms()
_plans = RememberedForms()


def _remember_form(signature: Any, parts: list[MemoryPart]) -> tuple[bytes, int]:
    kind, names, forms = signature
    leaves = tuple((_DTYPE_CODES[dtype], tuple(shape)) for dtype, shape in forms)
    envelope = bytes([_FORM]) + pickle.dumps((_KINDS.index(kind), names, leaves), protocol=5)
    form = envelope, copied_size([part.size_bytes for part in parts])
    _forms.remember(signature, form, len(parts))
    return form


def _remember_plan(envelope: bytes) -> _Plan:
    kind, names, forms = cast("tuple[int, Any, list[tuple[int, tuple[int, ...]]]]", pickle.loads(envelope[1:]))
    start = 0
    leaves: list[Any] = []
    for code, shape in forms:
        dtype = _DTYPES[code]
        numel = math.prod(shape)
        leaves.append((start, shape, numel, dtype, _ARRAY_DTYPES.get(dtype)))
        start += aligned(numel * dtype.itemsize)
    plan = _KINDS[kind], names, leaves
    _plans.remember(envelope, plan, len(leaves))
    return plan


def _flat(microbatch: Any) -> tuple[Any, list[MemoryPart]] | None:
    """Return the signature of a flat container of dense tensors, and its parts; None for anything else."""
    kind = cast("type[Any]", type(microbatch))
    names: Any = ()
    tensors: Any = microbatch
    if kind is dict:
        names, tensors = tuple(microbatch), microbatch.values()
        for name in names:
            if type(name) is not str:
                return None
    elif kind is torch.Tensor:
        tensors = (microbatch,)
    elif kind is not tuple and kind is not list:
        return None
    forms: list[Any] = []
    parts: list[MemoryPart] = []
    for tensor in tensors:
        if (
            type(tensor) is not torch.Tensor
            or not _has_plain_memory(tensor)
            or not tensor.is_contiguous()
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            return None
        size_bytes = tensor.nbytes
        if not size_bytes:
            return None
        forms.append((tensor.dtype, tensor.shape))
        parts.append(tuple.__new__(MemoryPart, (size_bytes, True, tensor.data_ptr(), tensor)))
    return (kind, names, tuple(forms)), parts


def _parts_overlap(parts: list[MemoryPart]) -> bool:
    if len(parts) < 2:
        return False
    if len(parts) == 2:
        (one_size, _, one, _), (other_size, _, other, _) = parts
        return one < other + other_size and other < one + one_size
    return overlapping(Extent(part.address, part.address + part.size_bytes, 0, None) for part in parts)


def aligned(size: int) -> int:
    """Return what a part of this size takes."""
    return (size + ALIGNMENT - 1) & -ALIGNMENT


class _InBandPickler(pickle.Pickler):
    """Ships by value what the other process cannot import: classes and functions of ``__main__`` and of functions."""

    def __init__(self, file: io.BytesIO, *, is_staying: bool = False, **options: Any) -> None:
        super().__init__(file, protocol=5, **options)
        self._is_staying = is_staying

    def reducer_override(self, obj: Any) -> Any:
        if not is_definition(obj):
            return reduce_of_torch(obj)
        if self._is_staying:
            if is_importable(obj):
                return NotImplemented
            _definitions[id(obj)] = obj
            return _definition, (id(obj),)
        return reduce_definition(obj)


# Classes and functions of microbatches that stay in this process, by their ids, for as long as they live.
_definitions: WeakTable[int, Any] = WeakTable()


def _definition(number: int) -> Any:
    return _definitions.get(number)


class _Pickler(_InBandPickler):
    """Takes tensors and arrays out of the stream."""

    def __init__(self, file: io.BytesIO, *, is_staying: bool = False) -> None:
        parts: list[MemoryPart] = []

        # Not a method: a pickler that refers to itself would keep the microbatch until the next garbage collection.
        def take(buffer: pickle.PickleBuffer) -> None:
            memory = buffer.raw()
            if memory.obj is not _PLACEHOLDER:
                parts.append(MemoryPart(memory.nbytes, is_tensor=False, address=0, owner=memory))

        self.parts = parts
        self.extents: list[Extent] = []
        super().__init__(file, is_staying=is_staying, buffer_callback=take)

    def reducer_override(self, obj: Any) -> Any:
        kind = cast("type[Any]", type(obj))
        if kind is torch.Tensor:
            return self._reduce_tensor(obj)
        if kind is np.ndarray:
            if obj.flags.forc or obj.dtype.hasobject:
                return NotImplemented
            return np.ascontiguousarray(obj).__reduce_ex__(5)
        if isinstance(obj, torch.Tensor):
            refuse_graph(obj)
        return super().reducer_override(obj)

    def _reduce_tensor(self, tensor: torch.Tensor) -> Any:
        if not _has_plain_memory(tensor):
            refuse_graph(tensor)
            return reduce_of_torch(tensor)
        self.extents.append(extent_of(tensor))
        tensor, strides = dense(tensor)
        shape = tuple(tensor.shape)
        numel = span(shape, strides) if strides else tensor.numel()
        code = _DTYPE_CODES[tensor.dtype]
        if numel == 0:
            return _rebuild_empty, (code, shape)
        self.parts.append(MemoryPart(numel * tensor.itemsize, is_tensor=True, address=tensor.data_ptr(), owner=tensor))
        return _rebuild, (pickle.PickleBuffer(_PLACEHOLDER), code, numel, shape, strides)


class _SharingPickler(_Pickler):
    """Ships overlapping tensors as views of one part, so that they still share memory afterwards."""

    def __init__(self, file: io.BytesIO, spans: list[Extent], *, is_staying: bool = False) -> None:
        super().__init__(file, is_staying=is_staying)
        # One object for each span: the pickler's memo then makes one part of it, for any number of tensors.
        self._spans = [_SharedMemory(span) for span in spans]
        self._ends = [span.end for span in spans]

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is _SharedMemory:
            start, end, _, owner = obj.span
            self.parts.append(MemoryPart(end - start, is_tensor=True, address=start, owner=owner))
            return _rebuild, (pickle.PickleBuffer(_PLACEHOLDER), _DTYPE_CODES[torch.uint8], end - start, None, None)
        return super().reducer_override(obj)

    def _reduce_tensor(self, tensor: torch.Tensor) -> Any:
        if _has_plain_memory(tensor) and tensor.numel() and not tensor.is_conj() and not tensor.is_neg():
            address = tensor.data_ptr()
            # A span begins before its first tensor, perhaps within the span before: the first that ends behind the address.
            position = bisect.bisect_right(self._ends, address)
            for memory in self._spans[position : position + 1]:
                offset = address - memory.span.start
                if offset >= 0 and offset % tensor.itemsize == 0:
                    code, shape, strides = _DTYPE_CODES[tensor.dtype], tuple(tensor.shape), tuple(tensor.stride())
                    return _rebuild_view, (memory, code, offset, shape, strides)
        return super()._reduce_tensor(tensor)


class _SharedMemory:
    def __init__(self, span: Extent) -> None:
        self.span = span


def refuse_graph(tensor: torch.Tensor) -> None:
    """Raise what torch's multiprocessing raises of a tensor with a graph, and say what would do.

    Raises:
        RuntimeError: The tensor has a graph.
    """
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support "
            "crossing process boundaries. If you just want to transfer the data, call detach() on the tensor in the "
            "dataset or in collate_fn; without worker processes, it keeps its graph."
        )


def _has_plain_memory(tensor: torch.Tensor) -> bool:
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.dtype in _DTYPE_CODES
        and not tensor.is_nested
        and not tensor.requires_grad
        and not tensor.__dict__
    )


def _rebuild(
    source: tuple[Any, int], code: int, numel: int, shape: tuple[int, ...] | None, strides: tuple[int, ...] | None
) -> torch.Tensor:
    base, offset = source
    flat = torch.frombuffer(base, dtype=_DTYPES[code], count=numel, offset=offset)
    if shape is None:
        return flat
    if strides:
        return flat.as_strided(shape, strides)
    return flat if len(shape) == 1 else flat.view(shape)


def _rebuild_empty(code: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, dtype=_DTYPES[code], device="cpu")


def _rebuild_view(
    memory: torch.Tensor, code: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    dtype, num_bytes = _DTYPES[code], span(shape, strides) * _DTYPES[code].itemsize
    return memory[offset : offset + num_bytes].view(dtype).as_strided(shape, strides)
