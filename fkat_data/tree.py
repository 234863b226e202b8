"""Nested containers: a function applied to every tensor in them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch

__all__ = ["map_tensors"]


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """Return ``value`` with every tensor in it replaced by ``function(tensor)``.

    Looks into dicts and other mappings, lists, tuples, named tuples and dataclasses; leaves anything else as it is.
    """
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        items = {key: map_tensors(function, item) for key, item in mapping.items()}
        return items if type(mapping) is dict else _like(mapping, items)
    if isinstance(value, tuple):
        moved = [map_tensors(function, item) for item in cast("tuple[Any, ...]", value)]
        return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)  # type: ignore[call-arg]
    if isinstance(value, list):
        return [map_tensors(function, item) for item in cast("list[Any]", value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return dataclasses.replace(value, **{name: map_tensors(function, item) for name, item in fields.items()})
    return value


def _like(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    make = cast("Callable[[dict[Any, Any]], Any]", type(mapping))
    try:
        return make(items)
    except TypeError:  # a mapping that is made another way, a defaultdict for one
        return items
