"""Encodings of bytes, strings, and numbers that are written as text."""

from decimal import Decimal, InvalidOperation
from typing import Any

from fkat_data.streaming.formats.encoding import Encoding, EncodingError

__all__ = ["BytesEncoding", "StringDecimalEncoding", "StringEncoding", "StringFloatEncoding", "StringIntEncoding"]


class BytesEncoding(Encoding):
    """Bytes as they are."""

    def encode(self, value: Any) -> bytes:
        """Return bytes as they are."""
        if not isinstance(value, (bytes, bytearray)):
            raise EncodingError("bytes")
        return bytes(value)

    def decode(self, data: memoryview) -> bytes:
        """Return a copy."""
        return bytes(data)


class StringEncoding(Encoding):
    """A string as UTF-8."""

    def encode(self, value: Any) -> bytes:
        """Return a string's UTF-8."""
        try:
            return str.encode(value)
        except (TypeError, UnicodeEncodeError):
            raise EncodingError("a string that UTF-8 can hold") from None

    def decode(self, data: memoryview) -> str:
        """Return the string."""
        return str(data, "utf-8")


class StringIntEncoding(Encoding):
    """An int of any size as decimal digits."""

    def encode(self, value: Any) -> bytes:
        """Return an int's digits; a bool is none, as its text could not be read."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise EncodingError("an int")
        return str(int(value)).encode()

    def decode(self, data: memoryview) -> int:
        """Return the int."""
        return int(str(data, "utf-8"))


class StringFloatEncoding(Encoding):
    """A float as text that gives the same float back."""

    def encode(self, value: Any) -> bytes:
        """Return a float's text."""
        if not isinstance(value, float):
            raise EncodingError("a float")
        return str(float(value)).encode()

    def decode(self, data: memoryview) -> float:
        """Return the float."""
        return float(str(data, "utf-8"))


class StringDecimalEncoding(Encoding):
    """A ``decimal.Decimal`` as text."""

    def encode(self, value: Any) -> bytes:
        """Return a Decimal's text."""
        if not isinstance(value, Decimal):
            raise EncodingError("a decimal.Decimal")
        return str(value).encode()

    def decode(self, data: memoryview) -> Decimal:
        """Return the Decimal."""
        try:
            return Decimal(str(data, "utf-8"))
        except InvalidOperation:
            raise EncodingError("not the text of a decimal number") from None
