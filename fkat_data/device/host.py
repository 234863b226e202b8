"""What moves microbatches to the caller's device; on the host they stay in the memory that the worker wrote."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import torch

from fkat_data.runtime.interruption import genuine


class Mover(Protocol):
    """Takes microbatches to the caller's device.

    ``begin`` is called when a microbatch has arrived, which may be before the caller wants it; ``finish`` when it is
    delivered.
    """

    @property
    def copies(self) -> bool:
        """Whether anything is copied; if not, ``begin`` and ``finish`` return what they are given."""
        ...

    @property
    def copied_s(self) -> float:
        """Seconds in which copies were under way, those that are known to be complete."""
        ...

    def begin(self, microbatch: Any) -> Any:
        """Start to move a microbatch; return what ``finish`` needs."""
        ...

    def finish(self, moving: Any) -> Any:
        """Return the microbatch, where the caller may use it."""
        ...

    def wait(self) -> None:
        """Wait until the copies have read everything that ``begin`` was given, and release it."""
        ...


class HostMover:
    """Leaves a microbatch as it is."""

    copies = False
    """Nothing is copied."""
    copied_s: float = 0.0
    """0: nothing is copied."""

    def begin(self, microbatch: Any) -> Any:
        """Return the microbatch."""
        return microbatch

    def finish(self, moving: Any) -> Any:
        """Return the microbatch."""
        return moving

    def wait(self) -> None:
        """Do nothing: nothing is kept."""


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


class Placement:
    """Holds the mover that takes microbatches to the caller's device.

    Args:
        mover: The first one.
    """

    def __init__(self, mover: Mover) -> None:
        self.mover: Mover = mover
        """Moves the next microbatch."""
        self._copied_before_s = 0.0

    @property
    def copied_s(self) -> float:
        """Seconds in which copies were under way, those by earlier movers included."""
        return self._copied_before_s + self.mover.copied_s

    def use(self, mover: Mover) -> None:
        """Move by another mover from the next microbatch on."""
        self._copied_before_s = self.copied_s
        self.mover = mover

    def release(self) -> None:
        """Wait for the copies under way, and release the memory that they read."""
        self.mover.wait()
