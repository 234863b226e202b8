"""The writer of JSON lines."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.writing.lines import LinesWriter


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
