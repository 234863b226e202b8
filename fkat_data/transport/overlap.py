"""Which tensors of a microbatch share memory, and which pieces of memory hold them together."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import torch

__all__ = ["Extent", "dense", "extent_of", "overlapping", "shared_spans", "span"]

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
