"""A microbatch's content in four bytes: cheap enough for every one, distinct enough to find two that differ."""

import ctypes
import dataclasses
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch

from fkat_data.runtime.interruption import genuine

_EDGE_BYTES = 2048
_EDGE_ITEMS = 64
_PLAIN = (int, float, complex, bool, type(None))
# Python refuses to show longer integers in decimal digits.
_LONG_BITS = 2000
_DEEPEST = 100
_DIGEST = struct.Struct("<I")
_UNSET = object()
# Numbers of extended precision, with bytes that the processor does not use; and what holds nearly the same number.
_PADDED = {"g": np.float64, "G": np.complex128}

_Containers: TypeAlias = dict[int, tuple[Any, int]]
"""Containers by their ids, with their digests: one that is there a thousand times is gone through once. A container
that is being gone through has the digest 0, so one that holds itself ends there."""


def digest_of(microbatch: Any) -> int:
    """Return a checksum over a microbatch: its structure, and both ends of its tensors, arrays, texts and lists.

    Microbatches of equal content have equal digests, in every process. Those that differ in the middle of a long
    tensor alone are taken for equal: another draw, another order or another sample shows at the ends. Of objects that
    are no container, of those that cannot be read, and below a depth of 100, only the type counts.
    """
    return _add(microbatch, 0, {}, 0)


def _add(value: Any, digest: int, containers: _Containers, depth: int) -> int:
    if isinstance(value, str):
        value = value.encode(errors="surrogatepass")
    if isinstance(value, (bytes, bytearray)):
        return _add_bytes(memoryview(value), digest)
    try:
        if isinstance(value, _PLAIN):
            is_long = isinstance(value, int) and value.bit_length() > _LONG_BITS
            return zlib.crc32((hex(cast("int", value)) if is_long else repr(value)).encode(), digest)
        if isinstance(value, torch.Tensor):
            return _add_tensor(value, digest)
        if isinstance(value, (np.ndarray, np.generic)):
            return _add_array(np.asarray(cast("Any", value)), digest)
        return zlib.crc32(_DIGEST.pack(_digest_of_container(value, containers, depth)), digest)
    except genuine(Exception):
        return _add_type(value, digest)  # what can be delivered need not be readable


def _digest_of_container(value: Any, containers: _Containers, depth: int) -> int:
    known = containers.get(id(value))
    if known is None:
        containers[id(value)] = value, 0
        known = value, _walk(value, containers, depth)
        containers[id(value)] = known
    return known[1]


def _walk(value: Any, containers: _Containers, depth: int) -> int:
    digest = _add_type(value, 0)
    if depth >= _DEEPEST:
        return digest
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        parts = (*_edges(list(mapping)), *_edges(list(mapping.values())))
    elif isinstance(value, Sequence):
        parts = _edges(cast("Sequence[Any]", value))
    elif dataclasses.is_dataclass(value):
        parts = [getattr(value, field.name, _UNSET) for field in dataclasses.fields(value)]
    for part in parts:
        digest = _add(part, digest, containers, depth + 1)
    return digest


def _add_type(value: Any, digest: int) -> int:
    return zlib.crc32(type(value).__qualname__.encode(), digest)


def _edges(items: Sequence[Any]) -> Sequence[Any]:
    if len(items) <= 2 * _EDGE_ITEMS:
        return items
    return [len(items), *items[:_EDGE_ITEMS], *items[-_EDGE_ITEMS:]]


def _add_tensor(tensor: torch.Tensor, digest: int) -> int:
    if tensor.is_nested:  # its sizes are no numbers: each process counts them
        digest = zlib.crc32(f"{tensor.dtype}{tensor.layout}".encode(), digest)
        parts = cast("Sequence[torch.Tensor]", tensor.detach().unbind())
        for part in _edges(parts):
            digest = _add(part, digest, {}, 0)
        return digest
    digest = zlib.crc32(f"{tensor.dtype}{tuple(tensor.shape)}".encode(), digest)
    if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_quantized:
        return digest
    tensor = tensor.detach()
    if tensor.is_contiguous() or tensor.nbytes <= 2 * _EDGE_BYTES:
        return _add_memory(tensor, digest)
    # An expanded tensor may have more elements than memory has room for: only both ends are copied.
    num = _EDGE_BYTES // tensor.itemsize
    return _add_memory(_end(tensor, num, is_last=True), _add_memory(_end(tensor, num, is_last=False), digest))


def _end(tensor: torch.Tensor, num: int, *, is_last: bool) -> torch.Tensor:
    """Return the first or the last elements of a tensor that has more than this number."""
    while tensor.dim() > 1 and tensor[0].numel() >= num:
        tensor = tensor[-1 if is_last else 0]
    num_rows = -(-num // tensor[0].numel())
    return tensor[-num_rows:].reshape(-1)[-num:] if is_last else tensor[:num_rows].reshape(-1)[:num]


def _add_memory(tensor: torch.Tensor, digest: int) -> int:
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    if not tensor.nbytes:
        return digest
    memory = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    return _add_bytes(memoryview(memory).cast("B"), digest)


def _add_array(array: "np.ndarray[Any, Any]", digest: int) -> int:
    digest = zlib.crc32(f"{array.dtype}{array.shape}".encode(), digest)
    if array.dtype.hasobject or not array.nbytes:
        return digest
    if array.dtype.names is not None or array.dtype.char in _PADDED:
        return _add_padded_array(array.reshape(-1), digest)
    return _add_bytes(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, digest)


def _add_padded_array(array: "np.ndarray[Any, Any]", digest: int) -> int:
    """Add the values of an array whose items may have unused bytes: those differ from one process to the next."""
    if array.size > 2 * _EDGE_ITEMS:
        array = np.concatenate((array[:_EDGE_ITEMS], array[-_EDGE_ITEMS:]))
    if array.dtype.names is None:
        with np.errstate(all="ignore"):
            return _add_array(array.astype(_PADDED[array.dtype.char]), digest)
    for name in array.dtype.names:
        digest = _add_array(array[name], digest)
    return digest


def _add_bytes(content: memoryview, digest: int) -> int:
    if len(content) > 2 * _EDGE_BYTES:
        digest = zlib.crc32(content[:_EDGE_BYTES], digest)
        content = content[-_EDGE_BYTES:]
    return zlib.crc32(content, digest)
