"""The writer of MDS shards."""

import json
import struct
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, ClassVar

from fkat_data.errors import ConfigurationError, SampleError
from fkat_data.files.encoding import Encoding, EncodingError
from fkat_data.files.encodings import encoding_of
from fkat_data.streaming.writing.writer import ShardFile, ShardWriter


class MDSWriter(ShardWriter):
    """Writes samples in the MDS format. It takes the arguments of ``ShardWriter``.

    A column's encoding is one of ``fkat_data.files.encodings.ENCODINGS``, or ``ndarray``,
    ``ndarray:DTYPE``, ``ndarray:DTYPE:D0,D1``.

    For any encoding, a value of type ``bytes`` counts as already encoded, such as the content of a JPEG file, and is
    written unchanged. The writer decodes it once as a check, except images in files and pickles.
    """

    format: ClassVar[str] = "mds"
    sample_overhead_bytes: ClassVar[int] = 4  # the sample's offset

    def _described(self) -> dict[str, Any]:
        self._encodings = {name: _encoding(name, encoding) for name, encoding in self.columns.items()}
        return {
            "column_names": list(self.columns),
            "column_encodings": list(self.columns.values()),
            "column_sizes": [encoding.size_bytes for encoding in self._encodings.values()],
        }

    def _empty_shard_bytes(self) -> int:
        self._config_json = json.dumps(self._config).encode()
        return 8 + len(self._config_json)

    def _encoded(self, sample: Mapping[str, Any]) -> bytes:
        lengths: list[int] = []
        payloads: list[bytes] = []
        for name, encoding in self._encodings.items():
            payload = _payload(name, encoding, sample[name])
            if encoding.size_bytes is None:
                lengths.append(len(payload))
            payloads.append(payload)
        return struct.pack(f"<{len(lengths)}I", *lengths) + b"".join(payloads)

    def _files(self, samples: list[bytes]) -> list[ShardFile]:
        begin = 8 + 4 * len(samples) + len(self._config_json)
        offsets = accumulate(map(len, samples), initial=begin)
        header = struct.pack(f"<{len(samples) + 2}I", len(samples), *offsets)
        return [ShardFile("data", "", b"".join([header, self._config_json, *samples]))]


def _encoding(name: str, encoding: str) -> Encoding:
    try:
        return encoding_of(encoding)
    except EncodingError as error:
        raise ConfigurationError(f"columns[{name!r}]", encoding, str(error)) from None


def _payload(name: str, encoding: Encoding, value: Any) -> bytes:
    if not isinstance(value, bytes):
        try:
            return encoding.encode(value)
        except EncodingError as error:
            raise SampleError(name, value, str(error)) from error
    if encoding.size_bytes is not None and len(value) != encoding.size_bytes:
        raise SampleError(name, value, f"{encoding.size_bytes} bytes, not {len(value)}")
    if encoding.is_checked:
        try:
            encoding.decode(memoryview(value))
        except ValueError as error:
            raise SampleError(name, value, f"bytes that the encoding can decode ({error})") from error
    return value
