"""Writers of lines, JSON or separated values: samples in one file, their offsets in another."""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, TypedDict, Unpack

import numpy as np

from fkat_data import arguments
from fkat_data.errors import ConfigurationError, SampleError
from fkat_data.files.index import TEXT_ENCODINGS
from fkat_data.streaming.writing.writer import ShardFile, ShardWriter

_KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int, np.integer), "float": (float, np.floating)}
_PLAIN: dict[str, Callable[[Any], Any]] = {"str": str, "int": int, "float": float}
#: Python converts no int of more than 4,300 digits to text, or back.
_MOST_BITS = 14_000


class WriterSettings(TypedDict, total=False):
    """The arguments of ``ShardWriter`` for every format."""

    keep_local: bool
    compression: str | None
    hashes: Sequence[str] | None
    size_limit: int | str | None
    progress_bar: bool
    max_workers: int | None
    retry: int
    exist_ok: bool
    storage_options: Mapping[str, Any] | None


class LinesWriter(ShardWriter):
    r"""Base of writers whose samples are lines.

    Args:
        columns: Encoding by column name: ``str``, ``int`` or ``float``.
        out: See ``ShardWriter``.
        newline: End of a line. For JSON lines ``"\n"``, ``"\r\n"`` or other white space.
        settings: The other arguments of ``ShardWriter``.

    Raises:
        ConfigurationError: An argument is invalid.
        FileExistsError: ``out`` already has content, and ``exist_ok`` is false.
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        out: str | Path | tuple[str, str],
        newline: str = "\n",
        **settings: Unpack[WriterSettings],
    ) -> None:
        self._newline = newline
        super().__init__(columns=columns, out=out, **settings)

    def _described(self) -> dict[str, Any]:
        for name, encoding in self.columns.items():
            arguments.choice(f"columns[{name!r}]", encoding, TEXT_ENCODINGS)
        if not isinstance(self._newline, str) or not self._newline:
            raise ConfigurationError("newline", self._newline, "a string of at least one character")
        return {"newline": self._newline}

    def _empty_shard_bytes(self) -> int:
        return 0  # the limit counts only samples

    def _header(self) -> bytes:
        return b""

    def _files(self, samples: list[bytes]) -> list[ShardFile]:
        header = self._header()
        offsets = accumulate(map(len, samples), initial=len(header))
        meta = struct.pack(f"<{len(samples) + 2}I", len(samples), *offsets) + json.dumps(self._config).encode()
        return [ShardFile("data", "", b"".join([header, *samples])), ShardFile("meta", ".meta", meta)]

    def _values(self, sample: Mapping[str, Any]) -> dict[str, str | int | float]:
        return {name: _checked(name, encoding, sample[name]) for name, encoding in self.columns.items()}


def _checked(name: str, encoding: str, value: Any) -> str | int | float:
    if not isinstance(value, _KINDS[encoding]):
        raise SampleError(name, value, f"{'an' if encoding == 'int' else 'a'} {encoding}")
    plain = value if isinstance(value, bool) else _PLAIN[encoding](value)
    if encoding == "int" and plain.bit_length() > _MOST_BITS:
        raise SampleError(name, f"<an int of {plain.bit_length()} bits>", f"an int of at most {_MOST_BITS} bits")
    return plain


class JSONWriter(LinesWriter):
    """Writes samples as JSON lines, and their offsets in a second file. It takes the arguments of ``LinesWriter``."""

    format: ClassVar[str] = "json"

    def _described(self) -> dict[str, Any]:
        described = super()._described()
        if self._newline.strip(" \t\r\n"):
            raise ConfigurationError("newline", self._newline, "white space that JSON ignores")
        return {**described, "columns": self.columns}

    def _encoded(self, sample: Mapping[str, Any]) -> bytes:
        return (json.dumps(self._values(sample), sort_keys=True) + self._newline).encode()


class _SeparatedWriter(LinesWriter):
    _separator: str

    def _described(self) -> dict[str, Any]:
        described = super()._described()
        if not isinstance(self._separator, str) or not self._separator or self._separator in self._newline:
            raise ConfigurationError("separator", self._separator, "a non-empty string that is not part of the newline")
        if self._newline in self._separator:
            raise ConfigurationError("newline", self._newline, "a string that is not part of the separator")
        if not self._can_be_read([*self.columns]):
            raise ConfigurationError("columns", [*self.columns], "names without separator and newline")
        of_xsv = {"separator": self._separator} if self.format == "xsv" else {}
        return {
            **described,
            **of_xsv,
            "column_names": list(self.columns),
            "column_encodings": list(self.columns.values()),
        }

    def _header(self) -> bytes:
        return self._line([*self.columns])

    def _encoded(self, sample: Mapping[str, Any]) -> bytes:
        typed = self._values(sample)
        for name, value in typed.items():
            if isinstance(value, bool):
                raise SampleError(name, value, "an int, because the text of a bool cannot be read back as one")
        values = {name: str(value) for name, value in typed.items()}
        if not self._can_be_read([*values.values()]):
            for name, value in values.items():
                if not self._can_be_read([value]):
                    raise SampleError(name, value, f"text without {self._separator!r} or {self._newline!r}")
            raise SampleError("<all>", values, f"values that can be joined with {self._separator!r} and split again")
        try:
            return self._line([*values.values()])
        except UnicodeEncodeError as error:
            raise SampleError("<all>", values, f"text that UTF-8 can encode ({error})") from None

    def _line(self, values: list[str]) -> bytes:
        return (self._separator.join(values) + self._newline).encode()

    def _can_be_read(self, values: list[str]) -> bool:
        # Join and split again, because a separator of several characters can arise where two values meet it.
        line = self._separator.join(values)
        return line.split(self._separator) == values and self._newline not in line


class XSVWriter(_SeparatedWriter):
    """Writes samples as lines of separated values after a header line, and their offsets in a second file.

    The format has no quoting, so ``write`` refuses a value that contains the separator or the newline.

    Args:
        separator: Separator between values.
        columns: Encoding by column name: ``str``, ``int`` or ``float``.
        out: See ``ShardWriter``.
        newline: End of a line.
        settings: The other arguments of ``ShardWriter``.

    Raises:
        ConfigurationError: An argument is invalid.
        FileExistsError: ``out`` already has content, and ``exist_ok`` is false.
    """

    format: ClassVar[str] = "xsv"

    def __init__(
        self,
        *,
        separator: str,
        columns: Mapping[str, str],
        out: str | Path | tuple[str, str],
        newline: str = "\n",
        **settings: Unpack[WriterSettings],
    ) -> None:
        self._separator = separator
        super().__init__(columns=columns, out=out, newline=newline, **settings)


class CSVWriter(_SeparatedWriter):
    """Writes samples as comma-separated values. See ``XSVWriter``."""

    format: ClassVar[str] = "csv"
    _separator = ","


class TSVWriter(_SeparatedWriter):
    """Writes samples as tab-separated values. See ``XSVWriter``."""

    format: ClassVar[str] = "tsv"
    _separator = "\t"
