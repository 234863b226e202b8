"""Encodings of Python objects: as JSON, or pickled."""

import json
import pickle
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from fkat_data.streaming.formats.encoding import Encoding, EncodingError

__all__ = ["JsonEncoding", "PickleEncoding"]


class JsonEncoding(Encoding):
    """Whatever JSON can hold; an array is written as nested lists."""

    def encode(self, value: Any) -> bytes:
        """Return an object's JSON."""
        try:
            return json.dumps(_plain(value)).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise EncodingError(f"what JSON can hold ({error})") from None

    def decode(self, data: memoryview) -> Any:
        """Return the object."""
        try:
            return json.loads(str(data, "utf-8"))
        except RecursionError:
            raise EncodingError("JSON that is nested too deeply") from None


class PickleEncoding(Encoding):
    """Any object that can be pickled. Reading it runs whatever code the file's author chose."""

    is_safe: ClassVar[bool] = False
    is_checked: ClassVar[bool] = False

    def encode(self, value: Any) -> bytes:
        """Return an object's pickle."""
        try:
            return pickle.dumps(value)
        except Exception as error:
            raise EncodingError(f"what can be pickled ({error})") from error

    def decode(self, data: memoryview) -> Any:
        """Return the object."""
        try:
            return pickle.loads(data)
        except Exception as error:
            raise EncodingError(f"not a pickle that can be read here: {type(error).__name__}: {error}") from error


def _plain(value: Any) -> Any:
    return cast("npt.NDArray[Any]", value).tolist() if isinstance(value, np.ndarray) else value
