"""Encodings of bytes, strings, and numbers as text."""

from decimal import Decimal, InvalidOperation
from typing import Any

from fkat_data.interruption import genuine
from fkat_data.streaming.formats.encoding import Encoding, EncodingError

__all__ = ["BytesEncoding", "StringDecimalEncoding", "StringEncoding", "StringFloatEncoding", "StringIntEncoding"]


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
