"""Writers of separated values, such as CSV and TSV."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Unpack

from fkat_data.errors import ConfigurationError, SampleError
from fkat_data.streaming.writing.lines import LinesWriter, WriterSettings


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
