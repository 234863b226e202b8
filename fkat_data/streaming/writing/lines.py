"""The base of writers of lines: samples in one file, their offsets in another."""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypedDict

import numpy as np

from fkat_data import arguments
from fkat_data.errors import ConfigurationError, SampleError
from fkat_data.streaming.formats.columns import TEXT_ENCODINGS
from fkat_data.streaming.writing.writer import ShardFile, ShardWriter

__all__ = ["LinesWriter", "WriterSettings"]


_KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int, np.integer), "float": (float, np.floating)}
_PLAIN: dict[str, Callable[[Any], str | int | float]] = {"str": str, "int": int, "float": float}


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
    """Base of writers whose samples are lines."""

    _newline: str

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
    return value if isinstance(value, bool) else _PLAIN[encoding](value)
