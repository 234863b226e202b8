"""Compare two microbatches bit for bit, and find the first difference.

The comparison looks into mappings, lists, tuples, sets, dataclasses, tensors, arrays, and any other object that can be
pickled. Two values have the same digest if their structure, types, dtypes, shapes and bytes are equal: the order of a
dict counts, ``-0.0`` differs from ``0.0``, and a NaN equals a NaN with the same bits. A tensor's strides and device do
not count.
"""

import copyreg
import dataclasses
import enum
import hashlib
import struct
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple, cast

import numpy as np
import torch

_LONGEST_TEXT = 60
_DIGEST_BYTES = 16


class Difference(NamedTuple):
    """The first difference between two values.

    Attributes:
        path: The path in the tree, such as ``['tokens'][3]``; "" for the value itself.
        element: The index of the first different element of a tensor or an array; else None.
        first: The first value's content there, as text.
        second: The second value's content there, as text.
    """

    path: str
    element: tuple[int, ...] | None
    first: str
    second: str

    def __str__(self) -> str:
        text = self.path or "the microbatch itself"
        if self.element is not None:
            text += f", element {list(self.element)}"
        return f"{text}: {self.first} became {self.second}"


def digest(value: Any) -> str:
    """Return a digest of 32 hexadecimal digits, the same for equal values in any process.

    Raises:
        Exception: An object in the value cannot be pickled.
    """
    total = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for node in _walk(value, "", ()):
        path, kind = node.path.encode("utf-8", "surrogatepass"), node.kind.encode("utf-8", "surrogatepass")
        total.update(struct.pack("<QQQ", len(path), len(kind), memoryview(node.content).nbytes))
        total.update(path)
        total.update(kind)
        total.update(node.content)
    return total.hexdigest()


def first_difference(first: Any, second: Any) -> Difference | None:
    """Return the first difference between two values, in the order of the tree, or None if they are equal.

    Raises:
        Exception: An object in the values cannot be pickled.
    """
    for one, other in zip_longest(_walk(first, "", ()), _walk(second, "", ())):
        if one is None:
            return Difference(other.path, None, "nothing", other.shown())
        if other is None:
            return Difference(one.path, None, one.shown(), "nothing")
        if one.path != other.path:
            # The containers have the same kind and size, so the keys differ.
            return Difference(one.path, None, one.path, other.path)
        if one.kind != other.kind:
            return Difference(one.path, None, one.kind, other.kind)
        if bytes(one.content) != bytes(other.content):
            return _within(one, other)
    return None


class _Node(NamedTuple):
    path: str
    kind: str
    content: bytes | memoryview
    shape: tuple[int, ...] | None = None
    value: Any = None

    def shown(self) -> str:
        if self.shape is not None:
            return self.kind
        text = self.kind if self.value is None else repr(self.value)
        return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"


def _within(one: _Node, other: _Node) -> Difference:
    if one.shape is None:
        return Difference(one.path, None, one.shown(), other.shown())
    rows = [np.frombuffer(node.content, np.uint8).reshape(int(np.prod(one.shape)), -1) for node in (one, other)]
    first = int((rows[0] != rows[1]).any(axis=1).argmax())
    index = tuple(int(index) for index in np.unravel_index(first, one.shape))
    shown = [str(node.value[index].item()) for node in (one, other)]
    return Difference(one.path, index, *(f"{text[:_LONGEST_TEXT]} ({one.kind})" for text in shown))


# Each visitor yields a node for the value, then nodes for its content. ``above`` has the ids of its containers.
_Nodes = Iterator[_Node]


def _walk(value: Any, path: str, above: tuple[int, ...]) -> _Nodes:
    if id(value) in above:
        yield _Node(path, f"<the object {len(above) - above.index(id(value))} levels up>", b"")
        return
    plain = _plain(value)
    if plain is not None:
        yield _Node(path, type(value).__name__, plain, value=value)
        return
    visit = _visitor(value)
    yield from visit(value, path, (*above, id(value)))


def _plain(value: Any) -> bytes | None:
    kind = cast("type[Any]", type(value))
    if kind is str:
        return value.encode("utf-8", "surrogatepass")
    if kind is float:
        return struct.pack("<d", value)
    if kind is complex:
        return struct.pack("<2d", value.real, value.imag)
    if kind in (bytes, bytearray):
        return bytes(value)
    return repr(value).encode() if value is None or kind in (int, bool) else None


def _visitor(value: Any) -> Callable[[Any, str, tuple[int, ...]], _Nodes]:
    kinds: tuple[tuple[Any, Callable[[Any, str, tuple[int, ...]], _Nodes]], ...] = (
        (torch.Tensor, _walk_tensor),
        (np.ndarray, _walk_array),
        (np.generic, _walk_array),
        ((type, types.FunctionType, types.BuiltinFunctionType, enum.Enum), _walk_name),
        (Mapping, _walk_mapping),
        ((list, tuple), _walk_sequence),
        ((set, frozenset), _walk_set),
    )
    for kind, visit in kinds:
        if isinstance(value, kind):
            return visit
    return _walk_dataclass if dataclasses.is_dataclass(value) else _walk_object


def _name(value: Any) -> str:
    kind = cast("type[Any]", type(value))
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _walk_tensor(tensor: torch.Tensor, path: str, above: tuple[int, ...]) -> _Nodes:
    tensor = tensor.detach()
    shape = [*tensor.shape] if not tensor.is_nested else "nested"
    kind = f"{tensor.dtype} {shape}"
    if tensor.is_quantized:
        yield _Node(path, kind, str(tensor.qscheme()).encode())
        yield from _walk(tensor.int_repr(), f"{path}.int_repr()", above)
        yield from _walk(tensor.dequantize(), f"{path}.dequantize()", above)
    elif tensor.is_nested or tensor.layout is not torch.strided:
        yield from _walk_object(tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor, path, above)
    else:
        dense = tensor.cpu().resolve_conj().resolve_neg().contiguous()
        content = dense.reshape(-1).view(torch.uint8).numpy().data if dense.numel() else b""
        yield _Node(path, kind, content, tuple(tensor.shape), dense)


def _walk_array(value: Any, path: str, above: tuple[int, ...]) -> _Nodes:
    array: np.ndarray[Any, Any] = np.asarray(value)
    scalar = "" if isinstance(value, np.ndarray) else " scalar"
    kind = f"{_name(value)} {array.dtype.str}{scalar} {[*array.shape]}"
    if array.dtype.names:  # there may be meaningless padding between its fields
        yield _Node(path, kind, repr(array.dtype.names).encode())
        for name in array.dtype.names:
            yield from _walk(array[name], f"{path}[{name!r}]", above)
    elif array.dtype.hasobject:
        yield _Node(path, kind, b"")
        for index, item in enumerate(array.ravel().tolist()):
            yield from _walk(item, f"{path}.flat[{index}]", above)
    else:
        dense = np.ascontiguousarray(array).reshape(array.shape)
        content = dense.reshape(-1).view(np.uint8).data if dense.nbytes else b""
        yield _Node(path, kind, content, array.shape, dense)
    if isinstance(value, np.ma.MaskedArray):
        yield from _walk(np.ma.getmaskarray(cast("Any", value)), f"{path}.mask", above)


def _walk_name(value: Any, path: str, above: tuple[int, ...]) -> _Nodes:
    del above
    name = f".{value.name}" if isinstance(value, enum.Enum) else f" {value.__module__}.{value.__qualname__}"
    yield _Node(path, f"{_name(value)}{name}", b"")


def _walk_mapping(mapping: Mapping[Any, Any], path: str, above: tuple[int, ...]) -> _Nodes:
    yield _Node(path, f"{_name(mapping)} of {len(mapping)}", b"")
    for index, (key, item) in enumerate(mapping.items()):
        if _plain(key) is not None:
            yield from _walk(item, f"{path}[{key!r}]", above)
        else:
            yield from _walk(key, f"{path}.keys()[{index}]", above)
            yield from _walk(item, f"{path}.values()[{index}]", above)


def _walk_sequence(items: list[Any] | tuple[Any, ...], path: str, above: tuple[int, ...]) -> _Nodes:
    yield _Node(path, f"{_name(items)} of {len(items)}", b"")
    names: tuple[str, ...] | None = getattr(items, "_fields", None)
    for index, item in enumerate(items):
        yield from _walk(item, f"{path}.{names[index]}" if names else f"{path}[{index}]", above)


def _walk_set(items: Iterable[Any], path: str, above: tuple[int, ...]) -> _Nodes:
    digests = sorted(digest(item) for item in items)
    del above  # an element of a set cannot contain the set
    yield _Node(path, f"{_name(items)} of {len(digests)}", "".join(digests).encode())


def _walk_dataclass(instance: Any, path: str, above: tuple[int, ...]) -> _Nodes:
    names = [field.name for field in dataclasses.fields(instance) if hasattr(instance, field.name)]
    yield _Node(path, f"{_name(instance)} of {', '.join(names)}", b"")
    for name in names:
        yield from _walk(getattr(instance, name), f"{path}.{name}", above)


def _walk_object(value: Any, path: str, above: tuple[int, ...]) -> _Nodes:
    # Compare what pickle would store, but not its bytes: they also encode which parts are the same object in memory.
    reduce = copyreg.dispatch_table.get(cast("type[Any]", type(value)))
    reduced: Any = reduce(value) if reduce else value.__reduce_ex__(4)
    if isinstance(reduced, str):
        yield _Node(path, f"{_name(value)} {reduced}", b"")
        return
    call, arguments, state, items, entries, *_ = (*reduced, None, None, None, None)
    yield _Node(path, _name(value), b"")
    yield from _walk(call, f"{path}.<made by>", above)
    yield from _walk(arguments, f"{path}.<made of>", above)
    if isinstance(state, dict):
        for name, item in cast("dict[Any, Any]", state).items():
            yield from _walk(item, f"{path}.{name}", above)
    elif state is not None:
        yield from _walk(state, f"{path}.<state>", above)
    yield from _walk([*(items or ())], f"{path}.<items>", above)
    yield from _walk([*(entries or ())], f"{path}.<entries>", above)
