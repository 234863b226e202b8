"""Extension types of Arrow: which are honoured, which are refused, and what is said of others.

``arrow.fixed_shape_tensor``, ``arrow.bool8``, ``arrow.uuid`` and ``arrow.json`` are what they say. ``arrow.opaque`` says
that its writer could not express its values in Arrow: it is refused. Any other is what its storage is.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError
from fkat_data.files.opening import shown_path
from fkat_data.runtime.machine import required

# pyarrow ships no types: required() returns Any.
_arrow = required("pyarrow", "parquet")

_logger = logging.getLogger(__name__)

_TENSOR, _OPAQUE = "arrow.fixed_shape_tensor", "arrow.opaque"
_HONOURED = (_TENSOR, "arrow.bool8", "arrow.uuid", "arrow.json")


class TensorShape(NamedTuple):
    """The layout in which a column of tensors is stored.

    Attributes:
        stored: The shape of the stored one.
        axes: Which axis of the stored one each axis is.
    """

    stored: tuple[int, ...]
    axes: tuple[int, ...]

    @classmethod
    def of(cls, kind: Any) -> "TensorShape | None":
        """Return how the values of a type are stored; None: it is not one of tensors."""
        if extension_of(kind) != _TENSOR:
            return None
        return cls(tuple(kind.shape), tuple(kind.permutation or range(len(kind.shape))))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each tensor."""
        return tuple(self.stored[axis] for axis in self.axes)

    def of_rows(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return what is stored of some rows as an array of their tensors."""
        shaped = numbers.reshape(len(numbers), *self.stored)
        return shaped.transpose(0, *(axis + 1 for axis in self.axes))

    def of_values(self, values: Sequence[Any]) -> list[Any]:
        """Return the values of one tensor as nested lists."""
        stored = np.empty(len(values), object)
        stored[:] = values
        (shaped,) = self.of_rows(stored[np.newaxis])
        return cast("list[Any]", shaped.tolist())


def extension_of(kind: Any) -> str:
    """Return the name of a type's extension; "" if it has none."""
    return str(kind.extension_name) if isinstance(kind, _arrow.BaseExtensionType) else ""


def is_honoured(kind: Any) -> bool:
    """Return whether a type is an extension whose values are more than its storage."""
    return extension_of(kind) in _HONOURED


def is_refused(kind: Any) -> bool:
    """Return whether a type is the extension whose values are not known."""
    return extension_of(kind) == _OPAQUE


def extensions_of(field: Any) -> list[str]:
    """Return the names of the extensions of a field and of those within it, with the type where it is refused."""
    # pyarrow leaves the name of an extension that it does not know in the metadata.
    metadata: Mapping[bytes, bytes] = field.metadata or {}
    unknown = metadata.get(b"ARROW:extension:name")
    found: list[str] = [] if unknown is None else [unknown.decode(errors="replace")]
    return [*found, *_within(field.type)]


def _within(kind: Any) -> Iterator[str]:
    while name := extension_of(kind):
        shape = TensorShape.of(kind)
        is_ambiguous = shape is not None and tuple(np.argsort(shape.axes)) != shape.axes
        yield str(kind) if is_ambiguous or name == _OPAQUE else name
        kind = kind.storage_type
    if _arrow.types.is_dictionary(kind):
        yield from _within(kind.value_type)
    for index in range(kind.num_fields):
        yield from extensions_of(kind.field(index))


class ExtensionCheck:
    """Looks at the extension types of the columns that a dataset reads of its files."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def check(self, file: str, extensions: Mapping[str, Sequence[str]], *, is_logged: bool = True) -> None:
        """Refuse columns whose values are not known, and say once which are read as their storage.

        Args:
            file: A file that has them.
            extensions: What ``extensions_of`` found of each column that is read.
            is_logged: Whether to say the latter: one of several workers does.

        Raises:
            ConfigurationError: A column has an extension of no known values.
        """
        for column, name in [(column, name) for column, names in extensions.items() for name in names]:
            reason = _reason_against(name)
            if reason is not None:
                expected = f"columns of other types than {name}, in {shown_path(file)}: {reason}"
                raise ConfigurationError("columns", column, expected)
            if is_logged and name not in _HONOURED and (column, name) not in self._logged:
                self._logged.add((column, name))
                text = (
                    "column %r of %s has the extension type %s, which is not known: its values are those of its storage"
                )
                _logger.warning(text, column, shown_path(file), name)


def _reason_against(name: str) -> str | None:
    if name.startswith(f"extension<{_OPAQUE}") or name == _OPAQUE:
        return "its writer could not express the values in Arrow"
    if name.startswith(f"extension<{_TENSOR}"):
        return "writers differ in what a permutation means that is not its own inverse"
    return None
