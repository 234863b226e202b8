"""Writing shards of values with a separator between them, such as commas or tabs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Unpack

from fkat_data.errors import ConfigurationError, SampleError
from fkat_data.streaming.writing.lines import LinesWriter, WriterSettings

__all__ = ["CSVWriter", "TSVWriter", "XSVWriter"]


class XSVWriter(LinesWriter):
    r"""Writes samples as lines of separated values, with a header line, and their offsets in a file beside them.

    There is no quoting: a value that contains the separator or the newline is refused.

    Args:
        columns: From name to ``str``, ``int`` or ``float``.
        separator: What stands between values.
        out: As in ``ShardWriter``.
        newline: What ends a line.
        settings: The other arguments of ``ShardWriter``.

    Raises:
        ConfigurationError: An argument cannot work.
        FileExistsError: There is something already, and ``exist_ok`` is false.
    """

    format: ClassVar[str] = "xsv"

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        separator: str,
        out: str | Path | tuple[str, str],
        newline: str = "\n",
        **settings: Unpack[WriterSettings],
    ) -> None:
        self._separator = separator
        self._newline = newline
        super().__init__(columns=columns, out=out, **settings)

    def _described(self) -> dict[str, Any]:
        described = super()._described()
        if not isinstance(self._separator, str) or not self._separator or self._separator in self._newline:
            raise ConfigurationError("separator", self._separator, "a string that is not empty and not in the newline")
        if self._newline in self._separator:
            raise ConfigurationError("newline", self._newline, "a string that is not in the separator")
        if not self._can_be_read([*self.columns]):
            raise ConfigurationError("columns", [*self.columns], "names without the separator and the newline")
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
                raise SampleError(name, value, "an int: the text of a bool could not be read as one")
        values = {name: str(value) for name, value in typed.items()}
        if not self._can_be_read([*values.values()]):
            for name, value in values.items():
                if not self._can_be_read([value]):
                    raise SampleError(name, value, f"a text without {self._separator!r} and {self._newline!r}")
            raise SampleError("<all of them>", values, f"texts that {self._separator!r} can stand between")
        try:
            return self._line([*values.values()])
        except UnicodeEncodeError as error:
            raise SampleError("<all of them>", values, f"texts that UTF-8 can hold ({error})") from None

    def _line(self, values: list[str]) -> bytes:
        return (self._separator.join(values) + self._newline).encode()

    def _can_be_read(self, values: list[str]) -> bool:
        # Joined and split again: two values may make a separator of several characters where they meet.
        line = self._separator.join(values)
        return line.split(self._separator) == values and self._newline not in line


class CSVWriter(XSVWriter):
    """Writes samples as comma-separated values; otherwise as ``XSVWriter``, without ``separator``."""

    format: ClassVar[str] = "csv"

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        out: str | Path | tuple[str, str],
        newline: str = "\n",
        **settings: Unpack[WriterSettings],
    ) -> None:
        super().__init__(columns=columns, separator=",", out=out, newline=newline, **settings)


class TSVWriter(XSVWriter):
    """Writes samples as tab-separated values; otherwise as ``XSVWriter``, without ``separator``."""

    format: ClassVar[str] = "tsv"

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        out: str | Path | tuple[str, str],
        newline: str = "\n",
        **settings: Unpack[WriterSettings],
    ) -> None:
        super().__init__(columns=columns, separator="\t", out=out, newline=newline, **settings)
