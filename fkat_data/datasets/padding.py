"""Pad sequences of different lengths into one tensor."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from numbers import Real
from typing import Any, Literal, cast

import torch
import torch.utils.data

from fkat_data.errors import ConfigurationError
from fkat_data.errors.arguments import choice, integer
from fkat_data.errors.wording import Described
from fkat_data.runtime.interruption import genuine


class PaddingSide1D(StrEnum):
    """Side of the sequence to pad.

    Attributes:
        left: Before the sequence.
        right: After the sequence.
    """

    left = "left"
    right = "right"


def pad_stack_1d(
    items: Sequence[torch.Tensor],
    pad_value: float,
    padding_side: PaddingSide1D | Literal["left", "right"] = PaddingSide1D.right,
    pad_to_multiple_of: int | None = None,
) -> torch.Tensor:
    """Pad sequences and stack them as the rows of one tensor, (number of items, longest length).

    Args:
        items: At least one tensor; all have one dimension, and the same dtype and device.
        pad_value: Value of the padding.
        padding_side: Side to pad, as ``PaddingSide1D`` or its name.
        pad_to_multiple_of: Round the row length up to a multiple of this; None: no rounding.

    Raises:
        ConfigurationError: An argument is invalid.
    """
    if len(items) == 0:
        raise ConfigurationError("items", items, "at least one tensor")
    for index, item in enumerate(items):
        if not isinstance(item, torch.Tensor) or item.ndim != 1 or item.dtype != items[0].dtype:
            raise ConfigurationError(f"items[{index}]", item, "a one-dimensional tensor with the first one's dtype")
    side = PaddingSide1D(choice("padding_side", padding_side, list(PaddingSide1D)))
    multiple = 1 if pad_to_multiple_of is None else integer("pad_to_multiple_of", pad_to_multiple_of, minimum=1)
    width = -(-max(len(item) for item in items) // multiple) * multiple
    stacked = filled(items[0], (len(items), width), pad_value, "items")
    for row, item in zip(stacked, items, strict=True):
        (row[: len(item)] if side is PaddingSide1D.right else row[width - len(item) :]).copy_(item)
    return stacked


def filled(like: torch.Tensor, shape: tuple[int, ...], value: float, name: str) -> torch.Tensor:
    """Return a tensor of one value, with the type and the device of another one.

    Args:
        like: The other one.
        shape: Shape of the result.
        value: The value.
        name: What is padded, for the error.

    Raises:
        ConfigurationError: The type cannot hold the value: torch would change some, such as -100 for unsigned integers.
    """
    try:
        is_held = like.is_floating_point() or like.new_full((), value).item() == value
    except genuine(RuntimeError):
        is_held = False
    if not is_held:
        raise ConfigurationError("padding", value, f"a value that {like.dtype} can hold, the type of {name!r}")
    return like.new_full(shape, value)


class PaddingCollate(Described):
    """A ``collate_fn`` that pads sequences and collates other entries as torch does by default.

    Items are one-dimensional tensors, or dicts that contain such tensors.

    Args:
        pad_value: Value of the padding. A single value pads every entry that is a one-dimensional tensor; a mapping
            from names to values pads only the named entries.
        padding_side: As in ``pad_stack_1d``.
        pad_to_multiple_of: As in ``pad_stack_1d``.
        lengths_name: If given, the microbatch is a dict that also holds, under this name, the int64 lengths of the
            first padded entry before padding. Items that are tensors are then stored under "tokens".

    Raises:
        ConfigurationError: An argument is invalid.
    """

    def __init__(
        self,
        pad_value: float | Mapping[str, float] = 0,
        padding_side: PaddingSide1D | Literal["left", "right"] = PaddingSide1D.right,
        pad_to_multiple_of: int | None = None,
        lengths_name: str | None = None,
    ) -> None:
        values = list(cast("Mapping[str, Any]", pad_value).values()) if isinstance(pad_value, Mapping) else [pad_value]
        if not values or not all(isinstance(value, Real) for value in values):
            raise ConfigurationError("pad_value", pad_value, "a number, or a mapping from names to numbers")
        self.pad_value = pad_value
        self.padding_side: PaddingSide1D = PaddingSide1D(choice("padding_side", padding_side, list(PaddingSide1D)))
        if pad_to_multiple_of is not None:
            integer("pad_to_multiple_of", pad_to_multiple_of, minimum=1)
        self.pad_to_multiple_of = pad_to_multiple_of
        self.lengths_name = lengths_name

    def _repr_facts(self) -> Iterable[tuple[str, object]]:
        return [
            ("pad_value", self.pad_value),
            ("padding_side", self.padding_side.value),
            ("pad_to_multiple_of", self.pad_to_multiple_of),
            ("lengths_name", self.lengths_name),
        ]

    def __call__(self, items: Sequence[Any]) -> Any:
        """Return the microbatch of some items.

        Raises:
            ConfigurationError: An item lacks an entry to pad, or the entry is not a one-dimensional tensor.
        """
        is_bare = isinstance(items[0], torch.Tensor)
        if is_bare and self.lengths_name is None:
            return self._padded("items", items)
        if not is_bare and not isinstance(items[0], Mapping):
            expected = "one-dimensional tensors, or dicts that have some; other items need a collate_fn of your own"
            raise ConfigurationError("items", f"<a list of {type(items[0]).__name__}>", expected)
        entries: Sequence[Any] = [{"tokens": item} for item in items] if is_bare else items
        names = self._padded_names(entries[0])
        microbatch = {
            name: self._padded(name, values) if name in names else torch.utils.data.default_collate(values)
            for name, values in ((name, [item[name] for item in entries]) for name in entries[0])
        }
        if self.lengths_name is not None:
            microbatch[self.lengths_name] = torch.tensor([len(item[names[0]]) for item in entries])
        return microbatch

    def _padded_names(self, item: Mapping[str, Any]) -> list[str]:
        if isinstance(self.pad_value, Mapping):
            if not set(self.pad_value) <= set(item):
                raise ConfigurationError("pad_value", self.pad_value, f"names of entries, among {list(item)}")
            return list(self.pad_value)
        names = [name for name, value in item.items() if isinstance(value, torch.Tensor) and value.ndim == 1]
        if not names:
            found = {name: type(value).__name__ for name, value in item.items()}
            expected = "an entry that is a one-dimensional tensor; torch.tensor() makes one of a list of numbers"
            raise ConfigurationError("items", found, expected)
        return names

    def _padded(self, name: str, values: Sequence[Any]) -> torch.Tensor:
        value = self.pad_value[name] if isinstance(self.pad_value, Mapping) else self.pad_value
        return pad_stack_1d(values, value, self.padding_side, self.pad_to_multiple_of)
