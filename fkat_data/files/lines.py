"""Shards of lines: JSON, and separated values."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ShardCorruptError
from fkat_data.files.encoding import EncodingError
from fkat_data.files.mapping import mapped, offsets_of
from fkat_data.files.shard import (
    ReadOptions,
    ShardEntry,
    checked_row,
    checked_rows,
)
from fkat_data.interruption import genuine


class SplitReader(ABC):
    """An open shard of lines.

    Args:
        directory: Directory of the dataset.
        entry: The shard.
        options: How its rows are read.

    Raises:
        ShardNotFoundError: A file does not exist.
        ShardCorruptError: A file's size, its offsets or its header contradict the index.
    """

    def __init__(self, directory: Path, entry: ShardEntry, options: ReadOptions) -> None:
        if entry.raw_meta is None:
            raise TypeError(f"a shard of format {entry.format!r} needs a file of offsets")
        self.num_samples: int = entry.samples
        self._names = [column.name for column in entry.columns if entry.chosen is None or column.name in entry.chosen]
        self._is_whole = entry.chosen is None
        self._path = directory / entry.raw_data.basename
        self._content = mapped(self._path, entry.raw_data, options.register)
        meta_path = directory / entry.raw_meta.basename
        meta = mapped(meta_path, entry.raw_meta, options.register)
        self._offsets = offsets_of(meta_path, meta, entry.samples, entry.raw_data.bytes)
        self._newline = entry.newline.encode()
        header = self._header(entry)
        if bytes(self._content[: self._offsets.item(0)]) != header:
            found = bytes(self._content[: min(self._offsets.item(0), 2 * len(header) + 1)])
            raise ShardCorruptError.of_field(self._path, "header", repr(header), found)

    def sample(self, row: int) -> dict[str, Any]:
        """Return a sample; see ``ShardReader``."""
        line = bytes(self.raw(row))
        try:
            if not line.endswith(self._newline):
                raise ValueError(f"the line does not end with {self._newline!r}")
            sample = self._parsed(line[: -len(self._newline)])
        except genuine(ValueError) as error:
            raise ShardCorruptError(str(self._path), f"row {row}: {error}", f"row {row}") from error
        return sample if self._is_whole else {name: sample[name] for name in self._names}

    def samples(self, rows: Sequence[int] | npt.NDArray[Any]) -> list[dict[str, Any]]:
        """Return samples; see ``ShardReader``."""
        chosen: list[int] = checked_rows(rows, self.num_samples).tolist()
        return [self.sample(row) for row in chosen]

    def column_arrays(self, rows: Sequence[int] | npt.NDArray[Any]) -> dict[str, npt.NDArray[Any] | list[Any]]:
        """Return each column's values as a list; see ``ShardReader``."""
        samples = self.samples(rows)
        return {name: [sample[name] for sample in samples] for name in self._names}

    def raw(self, row: int) -> memoryview:
        """Return a sample's line; see ``ShardReader``."""
        number = checked_row(row, self.num_samples)
        return self._content[self._offsets.item(number) : self._offsets.item(number + 1)]

    def close(self) -> None:
        """Release the file and have no rows afterwards; see ``ShardReader``."""
        self.num_samples = 0
        self._content = memoryview(b"")
        self._offsets = np.zeros(1, np.int64)

    @abstractmethod
    def _header(self, entry: ShardEntry) -> bytes:
        """Return the bytes that must precede the first sample."""

    @abstractmethod
    def _parsed(self, line: bytes) -> dict[str, Any]:
        """Parse a line, without its newline, into a sample.

        Raises:
            ValueError: The line is invalid.
        """


# Types of a column's values. Another program may have written a float without a decimal point.
_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (float, int)}


class JSONReader(SplitReader):
    """An open shard of JSON lines. Each line is an object with a sample."""

    def __init__(self, directory: Path, entry: ShardEntry, options: ReadOptions) -> None:
        super().__init__(directory, entry, options)
        self._types = [(column.name, column.encoding, _TYPES[column.encoding]) for column in entry.columns]

    def _header(self, entry: ShardEntry) -> bytes:
        del entry
        return b""

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except genuine(RecursionError):
            raise EncodingError("the JSON is nested too deeply") from None
        if not isinstance(value, dict):
            raise EncodingError("not a JSON object")
        sample = cast("dict[str, Any]", value)
        for name, encoding, types in self._types:
            if not isinstance(sample.get(name), types):
                raise EncodingError(f"column {name!r} is missing or not {encoding}")
        return sample


_PARSERS: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float}


class XSVReader(SplitReader):
    """An open shard of separated values. The first line has the columns' names. Quotes have no special meaning."""

    def __init__(self, directory: Path, entry: ShardEntry, options: ReadOptions) -> None:
        self._separator = entry.separator
        super().__init__(directory, entry, options)
        self._parsers = [(column.name, _PARSERS[column.encoding]) for column in entry.columns]

    def _header(self, entry: ShardEntry) -> bytes:
        return (entry.separator.join(column.name for column in entry.columns) + entry.newline).encode()

    def _parsed(self, line: bytes) -> dict[str, Any]:
        values = line.decode().split(self._separator)
        if len(values) != len(self._parsers):
            raise EncodingError(f"{len(values)} values for {len(self._parsers)} columns")
        return {name: parse(value) for (name, parse), value in zip(self._parsers, values, strict=True)}
