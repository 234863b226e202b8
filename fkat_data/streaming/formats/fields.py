"""Fields of a JSON object of unknown origin. Each access checks the field's type."""

from collections.abc import Sequence
from typing import Any, cast

from fkat_data.errors import ShardCorruptError


class Fields:
    """A JSON object and its path in a file, for messages.

    Args:
        file: Name of the file.
        path: Path of the object in the file, such as ``shards[3].raw_data``; empty for the whole file.
        content: The parsed JSON.

    Raises:
        ShardCorruptError: ``content`` is not a JSON object.
    """

    __slots__ = ("content", "file", "path")

    def __init__(self, file: str, path: str, content: object) -> None:
        if not isinstance(content, dict):
            raise ShardCorruptError.of_field(file, path or "the whole file", "a JSON object", content)
        self.file: str = file
        self.path: str = path
        self.content: dict[str, Any] = cast("dict[str, Any]", content)

    def wrong(self, name: str, expected: str, found: object) -> ShardCorruptError:
        """Return the error for an invalid field."""
        return ShardCorruptError.of_field(self.file, f"{self.path}.{name}".lstrip("."), expected, found)

    def version(self, expected: int) -> None:
        """Check that the field ``version`` is as expected.

        Raises:
            ShardCorruptError: The field is missing or invalid, as in every method here.
        """
        found = self.content.get("version")
        if isinstance(found, bool) or found != expected:
            raise self.wrong("version", str(expected), found)

    def integer(self, name: str, minimum: int, maximum: int) -> int:
        """Return a field that must be an integer from ``minimum`` to ``maximum``, both inclusive."""
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.wrong(name, f"an integer from {minimum} to {maximum}", value)
        return value

    def text(self, name: str, options: Sequence[str] = ()) -> str:
        """Return a field that must be a string; one of ``options`` unless they are empty."""
        value = self._value(name)
        if not isinstance(value, str) or (options and value not in options):
            raise self.wrong(name, f"one of {', '.join(options)}" if options else "a string", value)
        return value

    def nonempty_text(self, name: str) -> str:
        """Return a field that must be a string of at least one character."""
        value = self._value(name)
        if not isinstance(value, str) or not value:
            raise self.wrong(name, "a string of at least one character", value)
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a field that must be a string if present; None if it is missing or null."""
        return None if self.content.get(name) is None else self.text(name)

    def listing(self, name: str) -> list[Any]:
        """Return a field that must be a list."""
        value = self._value(name)
        if not isinstance(value, list):
            raise self.wrong(name, "a list", value)
        return cast("list[Any]", value)

    def texts(self, name: str) -> list[str]:
        """Return a field that must be a list of strings."""
        values = self.listing(name)
        if not all(isinstance(value, str) for value in values):
            raise self.wrong(name, "a list of strings", values)
        return values

    def fields(self, name: str) -> "Fields":
        """Return a field that must be an object."""
        return Fields(self.file, f"{self.path}.{name}".lstrip("."), self._value(name))

    def _value(self, name: str) -> Any:
        if name not in self.content:
            raise ShardCorruptError(self.file, f"{self.path}.{name} is missing".lstrip("."), f"{self.path}.{name}")
        return self.content[name]
