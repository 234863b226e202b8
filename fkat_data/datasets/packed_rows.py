"""A packed sequence as tensors: its fields, the boundaries of its fragments, and how sequences become a microbatch."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from numbers import Real
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from fkat_data.datasets.padding import filled
from fkat_data.errors import ConfigurationError
from fkat_data.runtime.interruption import genuine

TOO_LONG = ("raise", "skip", "split", "truncate")
"""What ``too_long`` of a packing may be."""


class Fragment(NamedTuple):
    """A document, or a part of one, in a packed sequence.

    Attributes:
        document: Index of the document in the base dataset.
        start: Index of the fragment's first token in the document.
        length: Number of tokens in the fragment.
    """

    document: int
    start: int
    length: int


def padding_of(
    fields: str | Sequence[str], padding: Mapping[str, float] | None, pad_value: float = 0
) -> dict[str, float]:
    """Return the value behind the last document for each field to pack.

    Args:
        fields: Names of the fields.
        padding: Values for some of them.
        pad_value: The value for the others.

    Raises:
        ConfigurationError: There are no fields, one has a name that packing gives, or ``padding`` does not fit them.
    """
    names = [fields] if isinstance(fields, str) else list(fields)
    if not names or not _ADDED.isdisjoint(names):
        raise ConfigurationError("fields", fields, f"at least one name, and none that packing adds: {sorted(_ADDED)}")
    given: Mapping[str, float] = {} if padding is None else padding
    are_numbers = isinstance(given, Mapping) and all(isinstance(value, Real) for value in given.values())
    if not are_numbers or set(given) - set(names):
        raise ConfigurationError("padding", padding, f"numbers for fields, which are {names}")
    return {name: given.get(name, pad_value) for name in names}


def fields_of(sample: Any, fields: list[str], where: str) -> dict[str, torch.Tensor]:
    """Return the fields of a sample as tensors.

    Args:
        sample: A mapping, or the value of the only field.
        fields: Their names.
        where: Says in errors which sample it is.

    Raises:
        ConfigurationError: It has no such fields, or one that is not numbers.
    """
    if not isinstance(sample, Mapping) and len(fields) > 1:
        raise ConfigurationError("samples", f"a {type(sample).__name__} {where}", f"mappings with {fields}")
    entries = cast("Mapping[str, Any]", sample if isinstance(sample, Mapping) else {fields[0]: sample})
    found: dict[str, torch.Tensor] = {}
    for field in fields:
        try:
            value = entries[field]
        except genuine(KeyError):
            expected = f"names of entries of the samples: {[*map(str, entries)]} {where}"
            raise ConfigurationError("fields", fields, expected) from None
        # torch warns of an array that is read-only, as a stream's are, and refuses one that is reversed.
        is_odd = isinstance(value, np.ndarray) and not (value.flags.writeable and min(value.strides, default=0) >= 0)
        try:
            found[field] = torch.as_tensor(value.copy() if is_odd else value)
        except genuine(TypeError, ValueError, RuntimeError):
            expected = "numbers: tokens, in a list or a tensor"
            raise ConfigurationError(f"{field!r} {where}", entries[field], expected) from None
    return found


def packed_sequence(
    values: Mapping[str, Sequence[torch.Tensor]],
    lengths: Sequence[int],
    sequence_length: int,
    padding: Mapping[str, float],
) -> dict[str, torch.Tensor]:
    """Return a sequence of fragments, as ``PackedDataset`` describes it.

    Args:
        values: The fragments of each field, in order.
        lengths: Tokens of each fragment; together at most ``sequence_length``.
        sequence_length: Tokens of the sequence.
        padding: The value behind the last fragment, for each field.

    Raises:
        ConfigurationError: A field's type cannot hold its padding.
    """
    edges = [0, *accumulate(lengths)]
    num_missing = sequence_length - edges[-1]
    if num_missing:
        edges.append(sequence_length)
    # NumPy's functions take a third of the time of torch's for so few numbers.
    starts = np.array(edges)
    sizes, starts = np.diff(starts), starts[:-1]
    document_ids = np.arange(len(sizes), dtype=np.int32)
    if num_missing:
        document_ids[-1] = -1
    sequence: dict[str, torch.Tensor] = {}
    for field, fragments in values.items():
        rest = [filled(fragments[0], (num_missing,), padding[field], field)] if num_missing else []
        sequence[field] = torch.cat([*fragments, *rest])
    return sequence | {
        "document_ids": torch.from_numpy(np.repeat(document_ids, sizes)),
        "position_ids": torch.from_numpy(np.arange(sequence_length) - np.repeat(starts, sizes)),
        "cu_seqlens": torch.tensor(edges, dtype=torch.int32),
    }


def collate_packed(sequences: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Collate packed sequences into a microbatch: a ``collate_fn``.

    Entries are stacked, except ``cu_seqlens``, which is that of the flattened microbatch. ``max_seqlen`` is the length
    of its longest fragment.

    Args:
        sequences: Items of a ``PackedDataset``, rows of ``Pack``, or windows with boundaries: tensors or arrays.
    """
    columns = {name: [torch.as_tensor(sequence[name]) for sequence in sequences] for name in sequences[0]}
    edges = columns.pop(_RAGGED)
    length = int(edges[0][-1])
    cu_seqlens = torch.cat([edges[0][:1], *(each[1:] + index * length for index, each in enumerate(edges))])
    stacked = {name: torch.stack(column) for name, column in columns.items()}
    return stacked | {_RAGGED: cu_seqlens, "max_seqlen": int(cu_seqlens.diff().max())}


_RAGGED = "cu_seqlens"
_ADDED = {"document_ids", "position_ids", _RAGGED, "max_seqlen"}
