"""Encodings of Python objects as JSON or pickles."""

import json
import pickle
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from fkat_data.interruption import genuine
from fkat_data.streaming.formats.encoding import Encoding, EncodingError

__all__ = ["JsonEncoding", "PickleEncoding"]


class JsonEncoding(Encoding):
    """Any value that JSON can represent. A NumPy array becomes nested lists."""

    def encode(self, value: Any) -> bytes:
        """Return the JSON of a value."""
        try:
            return json.dumps(_plain(value)).encode()
        except genuine(TypeError, ValueError, RecursionError) as error:
            raise EncodingError(f"a value that JSON can represent ({error})") from None

    def decode(self, data: memoryview) -> Any:
        """Return the value."""
        try:
            return json.loads(str(data, "utf-8"))
        except genuine(RecursionError):
            raise EncodingError("the JSON is nested too deeply") from None


class PickleEncoding(Encoding):
    """Any object that pickle supports. Decoding runs code that the file's author chose."""

    is_safe: ClassVar[bool] = False
    is_checked: ClassVar[bool] = False

    def encode(self, value: Any) -> bytes:
        """Return the pickle of an object."""
        try:
            return pickle.dumps(value)
        except genuine(Exception) as error:
            raise EncodingError(f"an object that can be pickled ({error})") from error

    def decode(self, data: memoryview) -> Any:
        """Return the object."""
        try:
            return pickle.loads(data)
        except genuine(Exception) as error:
            raise EncodingError(f"the pickle cannot be loaded: {type(error).__name__}: {error}") from error


def _plain(value: Any) -> Any:
    return cast("npt.NDArray[Any]", value).tolist() if isinstance(value, np.ndarray) else value
