"""Nested containers: a function applied to every tensor in them."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch

__all__ = ["map_tensors"]


def map_tensors(function: Callable[[Any], Any], value: Any) -> Any:
    """Return ``value`` with every tensor in it replaced by ``function(tensor)``.

    Looks into dicts and other mappings, lists, tuples, named tuples and dataclasses; leaves anything else as it is.
    An object with a method ``to`` of its own, a ``PackedSequence`` for one, counts as a tensor.
    """
    if isinstance(value, torch.Tensor) or (callable(getattr(value, "to", None)) and not isinstance(value, type)):
        return function(value)
    match value:
        case Mapping():
            mapping = cast("Mapping[Any, Any]", value)
            return _like(mapping, {key: map_tensors(function, item) for key, item in mapping.items()})
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
    # Not by its constructor, which may ask for more than its fields, or change them.
    mapped = copy.copy(instance)
    for field in dataclasses.fields(instance):
        if hasattr(instance, field.name):
            object.__setattr__(mapped, field.name, map_tensors(function, getattr(instance, field.name)))
    return mapped


def _like(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if type(mapping) is dict:
        return items
    make = cast("Callable[[dict[Any, Any]], Any]", type(mapping))
    try:
        return make(items)
    except TypeError:  # a mapping that is made another way, a defaultdict for one
        return items
