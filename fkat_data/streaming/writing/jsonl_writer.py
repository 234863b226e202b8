"""The writer of JSON lines."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Unpack

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.writing.lines import LinesWriter, WriterSettings

__all__ = ["JSONWriter"]


class JSONWriter(LinesWriter):
    r"""Writes samples as JSON lines, and their offsets in a second file.

    Args:
        columns: Encoding by column name: ``str``, ``int`` or ``float``.
        out: See ``ShardWriter``.
        newline: End of a line: ``"\n"``, ``"\r\n"`` or other white space.
        settings: The other arguments of ``ShardWriter``.

    Raises:
        ConfigurationError: An argument is invalid.
        FileExistsError: ``out`` already has content, and ``exist_ok`` is false.
    """

    format: ClassVar[str] = "json"

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
        described = super()._described()
        if self._newline.strip(" \t\r\n"):
            raise ConfigurationError("newline", self._newline, "white space that JSON ignores")
        return {**described, "columns": self.columns}

    def _encoded(self, sample: Mapping[str, Any]) -> bytes:
        return (json.dumps(self._values(sample), sort_keys=True) + self._newline).encode()
