"""All encodings, by name: those of this package, and those that users register."""

import json
import pickle
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError
from fkat_data.interruption import genuine
from fkat_data.registry import Registry
from fkat_data.streaming.formats.encoding import Encoding, EncodingError
from fkat_data.streaming.formats.images import (
    ImageFileEncoding,
    ImageListEncoding,
    JpegArrayEncoding,
    PixelsEncoding,
)
from fkat_data.streaming.formats.ndarray import NDArrayEncoding
from fkat_data.streaming.formats.scalars import SCALAR_DTYPES, IntEncoding, ScalarEncoding


class BytesEncoding(Encoding):
    """Bytes, unchanged."""

    def encode(self, value: Any) -> bytes:
        """Return the bytes."""
        if not isinstance(value, (bytes, bytearray)):
            raise EncodingError("bytes")
        return bytes(value)

    def decode(self, data: memoryview) -> bytes:
        """Return a copy of the bytes."""
        return bytes(data)


class StringEncoding(Encoding):
    """A string as UTF-8."""

    def encode(self, value: Any) -> bytes:
        """Return the UTF-8 of a string."""
        try:
            return str.encode(value)
        except genuine(TypeError, UnicodeEncodeError):
            raise EncodingError("a string that UTF-8 can encode") from None

    def decode(self, data: memoryview) -> str:
        """Return the string."""
        return str(data, "utf-8")


class StringIntEncoding(Encoding):
    """An int of any size as decimal digits."""

    def encode(self, value: Any) -> bytes:
        """Return the digits of an int. Refuse a bool, because its text could not be decoded."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise EncodingError("an int")
        try:
            return str(int(value)).encode()
        except genuine(ValueError) as error:
            raise EncodingError(f"an int that Python converts to text ({error})") from None

    def decode(self, data: memoryview) -> int:
        """Return the int."""
        return int(str(data, "utf-8"))


class StringFloatEncoding(Encoding):
    """A float as the shortest text that decodes to the same float."""

    def encode(self, value: Any) -> bytes:
        """Return the text of a float."""
        if not isinstance(value, float):
            raise EncodingError("a float")
        return str(float(value)).encode()

    def decode(self, data: memoryview) -> float:
        """Return the float."""
        return float(str(data, "utf-8"))


class StringDecimalEncoding(Encoding):
    """A ``decimal.Decimal`` as text."""

    def encode(self, value: Any) -> bytes:
        """Return the text of a Decimal."""
        if not isinstance(value, Decimal):
            raise EncodingError("a decimal.Decimal")
        return str(value).encode()

    def decode(self, data: memoryview) -> Decimal:
        """Return the Decimal."""
        try:
            return Decimal(str(data, "utf-8"))
        except genuine(InvalidOperation):
            raise EncodingError("the text is not a decimal number") from None


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


_LONGEST_NAME = 1_000

#: Constructor of each encoding. ``ndarray`` has its dtype and shape in the name, see ``encoding_of``.
ENCODINGS: dict[str, Callable[[], Encoding]] = {
    "bytes": BytesEncoding,
    "str": StringEncoding,
    "int": IntEncoding,
    **{name: lambda name=name: ScalarEncoding(name) for name in SCALAR_DTYPES},
    "str_int": StringIntEncoding,
    "str_float": StringFloatEncoding,
    "str_decimal": StringDecimalEncoding,
    "pil": PixelsEncoding,
    "jpeg": lambda: ImageFileEncoding("JPEG"),
    "png": lambda: ImageFileEncoding("PNG"),
    "list[pil]": lambda: ImageListEncoding(PixelsEncoding()),
    "list[jpeg]": lambda: ImageListEncoding(ImageFileEncoding("JPEG")),
    "list[png]": lambda: ImageListEncoding(ImageFileEncoding("PNG")),
    "jpeg_array": JpegArrayEncoding,
    "jpegarray": JpegArrayEncoding,
    "json": JsonEncoding,
    "pkl": PickleEncoding,
}
_FAMILY = "ndarray"
_registered: Registry[Callable[[], Encoding]] = Registry("encoding", lambda name: name in ENCODINGS or name == _FAMILY)


def register_encoding(name: str, make: Callable[[], Encoding]) -> None:
    """Let columns of MDS shards have an encoding of your own, in this process and in all that it starts for its data.

    Args:
        name: Its name, in ``MDSWriter(columns=...)`` and in the index. A program that reads the dataset must register
            it, too.
        make: Makes the encoding: the class itself, or a function without arguments.

    Raises:
        ConfigurationError: ``make`` makes no encoding, or the name is malformed or taken.
    """
    if not callable(make) or not isinstance(cast("object", make()), Encoding):
        raise ConfigurationError("make", make, "a subclass of Encoding, or a function that returns an Encoding")
    _registered.add(name, make)


def encoding_of(name: str) -> Encoding:
    """Return the encoding with a name.

    Raises:
        EncodingError: The name is unknown. The message lists the valid ones.
    """
    make = _registered.get(name)
    return _own_encoding(name) if make is None else make()


@lru_cache(maxsize=1024)
def _own_encoding(name: str) -> Encoding:
    family, *parts = name.split(":") if len(name) <= _LONGEST_NAME else [""]
    if family == _FAMILY:
        return NDArrayEncoding.of_name(parts)
    if name not in ENCODINGS:
        known = ", ".join((*ENCODINGS, *_registered.names))
        raise EncodingError(f"one of {known} or ndarray[:DTYPE[:D0,D1]]; register_encoding adds your own")
    return ENCODINGS[name]()
