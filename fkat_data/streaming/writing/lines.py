"""The base of writers of lines: samples in one file, their offsets in another."""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypedDict, Unpack

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
