"""Apply a function to every tensor in nested containers."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch

from fkat_data.interruption import genuine


def map_tensors(function: Callable[[Any], Any], value: Any) -> Any:
    """Return ``value`` with every tensor in it replaced by ``function(tensor)``.

    Descends into mappings, lists, tuples, named tuples and dataclasses. Keeps any other value. An object with its own
    method ``to``, such as a ``PackedSequence``, counts as a tensor.
    """
    if isinstance(value, torch.Tensor) or (callable(getattr(value, "to", None)) and not isinstance(value, type)):
        return function(value)
    match value:
        case Mapping():
            mapping = cast("Mapping[Any, Any]", value)
            return _same_type(mapping, {key: map_tensors(function, item) for key, item in mapping.items()})
        case tuple():
            make = cast("Callable[..., Any]", type(cast("Any", value)))
            items = [map_tensors(function, item) for item in cast("tuple[Any, ...]", value)]
            return make(*items) if hasattr(make, "_fields") else make(items)
        case list():
            return [map_tensors(function, item) for item in cast("list[Any]", value)]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return _map_fields(function, value)
        case _:
            return value


def _map_fields(function: Callable[[Any], Any], instance: Any) -> Any:
    # Bypasses the constructor: it may require more than the fields, or change them.
    mapped = copy.copy(instance)
    for field in dataclasses.fields(instance):
        if hasattr(instance, field.name):
            object.__setattr__(mapped, field.name, map_tensors(function, getattr(instance, field.name)))
    return mapped


def _same_type(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if type(mapping) is dict:
        return items
    make = cast("Callable[[dict[Any, Any]], Any]", type(mapping))
    try:
        return make(items)
    except genuine(TypeError):  # a mapping with another constructor, such as a defaultdict
        return items
