"""Which tensors a microbatch consists of: those with memory of their own, at any depth."""

from collections.abc import Collection, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, ModuleType, NoneType
from typing import Any, cast

import torch

from fkat_data.interruption import suppress
from fkat_data.tree import map_tensors

__all__ = ["tensors_in"]


def tensors_in(microbatch: Any) -> list[torch.Tensor]:
    """Return every tensor in a microbatch, each once: those inside of objects with a ``to`` of their own as well.

    For a nested or a sparse tensor, those that it is made of.
    """
    search = _Search()
    map_tensors(search.take, microbatch)
    return search.found


class _Search:
    # Not a recursive function: its reference to itself would keep what it found until the next garbage collection.

    def __init__(self) -> None:
        self.found: list[torch.Tensor] = []
        # Keeps the values, so that a new one cannot get the id of one that is gone.
        self._seen: dict[int, Any] = {}

    def take(self, value: Any) -> Any:
        if id(value) not in self._seen:
            self._seen[id(value)] = value
            if isinstance(value, torch.Tensor):
                self.found.extend(_parts(value))
            else:
                self._look_into(value)
        return value

    def _look_into(self, value: object) -> None:
        """Take the contents of an object that moves itself, plain objects and sets in it included."""
        for item in _contents(value):
            map_tensors(self.take, item)
            if id(item) not in self._seen and not isinstance(item, _OPAQUE):
                self._seen[id(item)] = item
                self._look_into(item)


def _contents(value: object) -> Iterator[Any]:
    """Yield what an object consists of."""
    if isinstance(value, (tuple, list, set, frozenset)):  # a tuple as a PackedSequence is
        yield from cast("Collection[Any]", value)
    if isinstance(value, Mapping):
        yield from cast("Mapping[Any, Any]", value).values()
    yield from cast("dict[str, Any]", getattr(cast("object", value), "__dict__", {})).values()
    for kind in type(cast("object", value)).__mro__:
        for member in vars(kind).values():
            if isinstance(member, MemberDescriptorType):  # of a slot
                with suppress(AttributeError):  # that was never set
                    yield member.__get__(value)


# These cannot hold a microbatch's tensors, or hold the whole program.
_OPAQUE = (type, ModuleType, FunctionType, BuiltinFunctionType, str, bytes, int, float, complex, NoneType)


def _parts(tensor: Any) -> list[torch.Tensor]:
    if tensor.is_nested:
        if tensor.layout != torch.jagged:
            return [tensor.values()]
        return [part for part in (tensor.values(), tensor.offsets(), tensor.lengths()) if part is not None]
    names = _PARTS.get(tensor.layout)
    return [tensor] if names is None else [getattr(tensor, name)() for name in names]


_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),  # the names without underlines want a coalesced one
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
