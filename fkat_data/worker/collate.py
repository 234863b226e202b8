"""torch's default collate, into a segment: samples are stacked where their microbatch will lie.

The samples are looked through once, for the shapes and dtypes of what ``default_collate`` would return. If that takes
a segment, one of that size is taken, and torch stacks the samples into views of it, each where the codec would put a
copy. A small microbatch is stacked into new memory. Containers, values, dtypes and strides are those of
``default_collate``, which makes the microbatch itself where anything is unusual: subclasses, mixed dtypes, other memory
formats, and all that is an error.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch.utils import data as torch_data

from fkat_data.errors.sample_errors import collated
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.transport.codec import aligned

Batch: TypeAlias = "list[Any] | tuple[Any, ...]"

# Functions that a user registers collate in other ways.
_COLLATE: Any = getattr(getattr(torch_data, "_utils", None), "collate", None)
_FUNCTIONS: dict[Any, Any] = getattr(_COLLATE, "default_collate_fn_map", {})
_NUMPY_NUMBERS = (np.bool_, np.number, np.object_)
_KNOWN: dict[Any, Any] = {
    kind: getattr(_COLLATE, name, None)
    for kind, name in (
        (torch.Tensor, "collate_tensor_fn"),
        (np.ndarray, "collate_numpy_array_fn"),
        (_NUMPY_NUMBERS, "collate_numpy_scalar_fn"),
        (float, "collate_float_fn"),
        (int, "collate_int_fn"),
        (str, "collate_str_fn"),
        (bytes, "collate_str_fn"),
    )
}
_ARRAYS = {np.ndarray, np.memmap}
# Tensors of other dtypes are more than their numbers, or torch does not stack them.
_DTYPES = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
}
# Samples of this many dimensions have a memory format, which their stack keeps.
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
# What a leaf takes of the envelope at most, beside its text. From this size on, the segment has room for the envelope.
_LEAF_ENVELOPE_BYTES = 256
_SHORT_ENVELOPE_BYTES = 8192


def collates_as_known() -> bool:
    """Return whether no user has registered another way to collate."""
    return _FUNCTIONS == _KNOWN


class SegmentCollate:
    """Does what ``default_collate`` does, into memory that it asks for.

    Args:
        allocate: Called with a number of bytes; returns memory of at least that size, or None where fresh memory is to
            be used. What it raises is raised.
        smallest_bytes: A microbatch of at most this size is made in fresh memory.
    """

    def __init__(self, allocate: Callable[[int], memoryview | None], smallest_bytes: int) -> None:
        self._allocate = allocate
        self._smallest_bytes = smallest_bytes

    def __call__(self, batch: Any) -> Any:
        """Return the microbatch of a list of samples.

        Raises:
            Exception: What ``default_collate`` raises for these samples, with a note that says where they differ, and what ``allocate`` raises.
        """
        plan = _Plan()
        try:
            form = plan.add(batch) if collates_as_known() else None
        except genuine(Exception):  # default_collate raises its own below
            form = None
        if form is None:
            return collated(batch)
        memory = None
        if plan.size_bytes > self._smallest_bytes:
            room = self._allocate(plan.size_bytes + plan.envelope_bytes())
            memory = None if room is None else _Memory(room)
        with suppress(Exception):  # default_collate raises its own, or succeeds where only the views do not
            return form(memory)
        return collated(batch)

    def stack(self, shape: tuple[int, ...], *, dtype: torch.dtype) -> torch.Tensor:
        """Return memory for a microbatch that is one tensor; raise what ``allocate`` raises."""
        size_bytes = math.prod(shape) * dtype.itemsize
        memory = self._allocate(size_bytes) if size_bytes > self._smallest_bytes else None
        if memory is None:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape)).view(shape)


class FreshCollate:
    """Does what ``default_collate`` does, and knows which microbatch is in memory of its own for certain.

    torch stacks tensors, arrays and numbers into new memory, in new containers. Nothing else is known to be new.
    """

    def __init__(self) -> None:
        self._newest: Any = None

    def __call__(self, batch: Any) -> Any:
        """Return the microbatch of a list of samples.

        Raises:
            Exception: What ``default_collate`` raises for these samples, with a note that says where they differ.
        """
        self._newest = None
        microbatch = collated(batch)
        if collates_as_known() and type(batch) in (list, tuple) and _is_stacked(batch):
            self._newest = microbatch
        return microbatch

    def stack(self, shape: tuple[int, ...], *, dtype: torch.dtype) -> torch.Tensor:
        """Return memory for a microbatch that is one tensor."""
        self._newest = torch.empty(shape, dtype=dtype)
        return self._newest

    def take(self, microbatch: Any) -> bool:
        """Return whether this is the newest one and known to be new; forget it."""
        newest, self._newest = self._newest, None
        return newest is not None and newest is microbatch


def _is_stacked(batch: Batch, *, is_top: bool = True) -> bool:
    kind = cast("type[Any]", type(batch[0]))
    if not _is_of(batch, {kind}):
        return False
    if kind is torch.Tensor or kind in _ARRAYS or kind in (int, bool, float) or issubclass(kind, np.number):
        return True
    if kind in (str, bytes):  # the list of the samples itself, which may be the dataset's
        return not is_top
    if kind is dict:
        return all(_is_stacked([sample[name] for sample in batch], is_top=False) for name in batch[0])
    if kind in (list, tuple):
        return all(_is_stacked(samples, is_top=False) for samples in zip(*batch, strict=True))
    return False


class _Memory:
    """Hands out views of a segment, one after the other as the codec lays them out."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._offset = 0

    def take(self, leaf: "_Leaf") -> torch.Tensor:
        flat = torch.frombuffer(self._memory, dtype=leaf.dtype, count=leaf.numel, offset=self._offset)
        self._offset += aligned(leaf.size_bytes)
        return flat.view(leaf.shape)


class _Leaf(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    numel: int
    size_bytes: int


Form: TypeAlias = Callable[[_Memory | None], Any]
"""Makes a part of the microbatch; called for one after the other in the order of the microbatch. None: in new memory."""


class _Plan:
    """What a microbatch will take, known before it is made."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._text_bytes = 0
        self._num_leaves = 0

    def envelope_bytes(self) -> int:
        """Return what a long envelope may take of the segment; 0 for a short one."""
        size_bytes = self._text_bytes + self._num_leaves * _LEAF_ENVELOPE_BYTES
        return aligned(size_bytes) if size_bytes > _SHORT_ENVELOPE_BYTES else 0

    def add(self, batch: Any) -> Form | None:
        """Return how to make the microbatch of the samples; None where only ``default_collate`` knows.

        Raises:
            Exception: The samples do not fit together.
        """
        if type(batch) is not list and type(batch) is not tuple:
            return None
        batch = cast("Batch", batch)
        kind = cast("type[Any]", type(batch[0]))
        add = _BY_KIND.get(kind)
        if add is not None:
            return add(self, batch)
        if issubclass(kind, (np.bool_, np.number)):
            return self._add_made(torch.as_tensor(batch))
        return self._add_containers(batch, kind) if _is_of(batch, {kind}) else None

    def _add_containers(self, batch: Batch, kind: type[Any]) -> Form | None:
        make: Callable[[list[Any]], Any] = list
        if kind is dict:
            names = list(batch[0])
            parts: Any = ([sample[name] for sample in batch] for name in names)
            make = lambda made: dict(zip(names, made, strict=True))  # noqa: E731 - shorter than a function
        else:
            if kind.__bases__ == (tuple,) and hasattr(kind, "_fields") and kind.__iter__ is tuple.__iter__:
                make = lambda made: kind(*made)  # noqa: E731 - shorter than a function
            elif kind is not tuple and kind is not list:
                return None
            parts = zip(*batch, strict=True)
        forms = cast("list[Form]", [self.add(part) for part in parts])
        return (lambda memory: make([form(memory) for form in forms])) if all(forms) else None

    def add_tensors(self, batch: Batch) -> Form | None:
        first: torch.Tensor = batch[0]
        dtype = first.dtype
        if (
            dtype not in _DTYPES
            or first.layout is not torch.strided
            or not first.is_cpu
            or first.is_nested
            or {tensor.dtype for tensor in batch} != {dtype}
            or not _is_of(batch, {torch.Tensor})
            or not _stacks_contiguously(first)
        ):
            return None
        leaf = self._add_leaf(dtype, (len(batch), *first.shape))
        return lambda memory: torch.stack(batch, out=memory.take(leaf) if memory and leaf else None)  # type: ignore[arg-type]  # a tuple does as well

    def add_arrays(self, batch: Batch) -> Form | None:
        if batch[0].dtype.kind not in "biufc" or not _is_of(batch, _ARRAYS):
            return None
        return self.add_tensors([torch.as_tensor(array) for array in batch])

    def _add_made(self, tensor: torch.Tensor) -> Form | None:
        if tensor.dtype not in _DTYPES or not tensor.is_cpu or not tensor.is_contiguous() or tensor.requires_grad:
            return None
        leaf = self._add_leaf(tensor.dtype, tuple(tensor.shape))
        return None if leaf is None else lambda memory: memory.take(leaf).copy_(tensor) if memory else tensor

    def add_number(self, batch: Batch) -> Form | None:
        return self._add_made(torch.tensor(batch, dtype=torch.float64 if type(batch[0]) is float else None))

    def add_texts(self, batch: Batch) -> Form:
        self._num_leaves += len(batch)
        for text in batch:
            self._text_bytes += len(text.encode(errors="surrogatepass") if type(text) is str else text)
        return lambda _: batch

    def _add_leaf(self, dtype: torch.dtype, shape: tuple[int, ...]) -> _Leaf | None:
        """Return where a tensor goes in the order; None for one without bytes, which is in the envelope alone."""
        numel = math.prod(shape)
        leaf = _Leaf(dtype, shape, numel, numel * dtype.itemsize)
        self.size_bytes += aligned(leaf.size_bytes)
        self._num_leaves += 1
        return leaf if numel else None


_BY_KIND: dict[type[Any], Callable[[_Plan, Batch], Form | None]] = {
    torch.Tensor: _Plan.add_tensors,
    **dict.fromkeys(_ARRAYS, _Plan.add_arrays),
    **dict.fromkeys((int, bool, float), _Plan.add_number),
    **dict.fromkeys((str, bytes), _Plan.add_texts),
}


def _is_of(batch: Batch, kinds: set[type[Any]]) -> bool:
    return kinds.issuperset(map(type, batch))


def _stacks_contiguously(first: torch.Tensor) -> bool:
    """Return whether a stack of tensors like this one is contiguous, whatever the strides of the others."""
    memory_format = _FORMATS.get(first.dim())
    return memory_format is None or (first.is_contiguous() and not first.is_contiguous(memory_format=memory_format))
