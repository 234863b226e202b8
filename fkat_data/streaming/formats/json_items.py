"""A parser for a large JSON object that converts one of its lists item by item, to save the memory of its dicts."""

import json
import re
from collections.abc import Callable
from typing import Any

__all__ = ["read_object"]

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


def read_object(text: str, list_name: str, item: Callable[[int, Any], Any]) -> Any:
    """Return the value of a JSON text. If it is an object, convert the items of one of its lists.

    Args:
        text: The JSON text.
        list_name: Key of the list.
        item: Called with (index, item) for each item of the list, in order. Its result replaces the item.

    Raises:
        ValueError: The text is not valid JSON.
        RecursionError: The JSON is nested too deeply.
    """
    cursor = _Cursor(text)
    value = _object(cursor, list_name, item) if cursor.accept("{") else cursor.value()
    if cursor.offset != len(text):
        raise json.JSONDecodeError("extra data", text, cursor.offset)
    return value


def _object(cursor: "_Cursor", list_name: str, item: Callable[[int, Any], Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if cursor.accept("}"):
        return content
    while True:
        name = cursor.value()
        cursor.expect(":")
        if not isinstance(name, str):
            raise json.JSONDecodeError("expected a key", cursor.text, cursor.offset)
        content[name] = _list(cursor, item) if name == list_name and cursor.accept("[") else cursor.value()
        if cursor.accept("}"):
            return content
        cursor.expect(",")


def _list(cursor: "_Cursor", item: Callable[[int, Any], Any]) -> list[Any]:
    items: list[Any] = []
    if cursor.accept("]"):
        return items
    while True:
        items.append(item(len(items), cursor.value()))
        if cursor.accept("]"):
            return items
        cursor.expect(",")


class _Cursor:
    """An offset in a text, always after white space."""

    __slots__ = ("offset", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.offset = 0
        self._go_to(0)

    def value(self) -> Any:
        value, end = _DECODER.raw_decode(self.text, self.offset)
        self._go_to(end)
        return value

    def accept(self, character: str) -> bool:
        found = self.text.startswith(character, self.offset)
        if found:
            self._go_to(self.offset + 1)
        return found

    def expect(self, character: str) -> None:
        if not self.accept(character):
            raise json.JSONDecodeError(f"expected {character!r}", self.text, self.offset)

    def _go_to(self, offset: int) -> None:
        space = _SPACE.match(self.text, offset)
        self.offset = offset if space is None else space.end()
